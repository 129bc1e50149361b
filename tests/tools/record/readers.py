"""What the readers answer: the models of the tests' zoos, generated ones, and real architectures.

A model is asked four questions: "reading" (network, fidelity and notes, node by node), "kept" (a
new model of the network as it was read, with the model's weights: names, edits, statistics of its
outputs), "shaped" (the same of the network shaped by DKS with tanh), "exports" (of that shaping).
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import chdir
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np

import kcalc as kc
from kcalc.interchange.apply import apply_to, edits_of

from .corpus import numbered
from .questions import NODE, Answer, Slow, limited, number

LIMIT = 60.0  # seconds of processor time for one question
FORMATS = ("torch", "jax", "flax", "keras", "numpy", "onnx", "json", "latex")
GENERATED = 300  # models: half of them torch networks, a tenth JAX ones, then ONNX files
Made = tuple[Any, tuple[Any, ...]]
Model = tuple[str, Callable[[], Made]]


def _drawn(shape: tuple[int, ...]) -> Any:
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _seeded() -> None:
    """Models with random weights are the same in every record."""
    import torch

    torch.manual_seed(0)
    if keras := sys.modules.get("keras"):
        keras.utils.set_random_seed(0)


# -- the models ------------------------------------------------------------------------------------


def zoos() -> Iterator[Model]:
    """The models of tests/modern_zoo.py, tests/torch_zoo/ and the tables of reader tests."""
    _seeded()  # some tables build their models when they are imported
    import modern_zoo
    import test_apply_jax_layers
    import test_apply_parts
    import test_apply_torch_layers
    import test_read_jax_primitives
    import test_read_modern_refused
    import test_read_onnx_models
    import test_read_onnx_operators
    import test_read_torch_operators
    import torch_zoo
    import transformer_formats

    def shaped(make: Callable[[], Any]) -> Made:
        model, given, _ = make()
        shapes = (given,) if isinstance(given[0], int) else given
        return model, tuple(_drawn(s) if isinstance(s, tuple) else s for s in shapes)

    for name, make in {**modern_zoo.ZOO, **torch_zoo.ZOO}.items():
        yield f"zoo {name}", lambda make=make: shaped(make)
    w = transformer_formats.weights()
    for (kind, name), form in transformer_formats.FORMATS.items():
        yield f"format {kind} {name}", lambda form=form: (lambda m, *x: (m, x))(*form(w))
    for name, (model, shape, _) in test_read_modern_refused.UNREAD.items():
        yield f"unread {name}", lambda model=model, shape=shape: (model, (_drawn(shape),))
    for name, (module, _, shape) in test_read_onnx_models.zoo().items():
        yield f"onnx zoo {name}", lambda module=module, shape=shape: (module, (_drawn(shape),))
    for name, made in test_apply_parts.MODELS.items():
        for whole in (True, False):
            yield f"part {name} {whole}", lambda made=made, whole=whole: made(whole)
    functions = test_read_torch_operators
    for room in (functions, test_apply_torch_layers):
        table = {**getattr(room, "READ", {}), **getattr(room, "UNREAD", {})}
        for name, (function, shape, *_) in {**table, **getattr(room, "MODELS", {})}.items():
            yield (
                f"operator {name} ({room.__name__})",
                lambda f=function, s=shape: (
                    functions.Fn(f).double().eval(),
                    (_drawn(s).double(),),
                ),
            )
    for room in (test_read_jax_primitives, test_apply_jax_layers):
        table = {**getattr(room, "READ", {}), **getattr(room, "UNREAD", {})}
        for name, (function, shape, *_) in {**table, **getattr(room, "MODELS", {})}.items():
            yield (
                f"primitive {name} ({room.__name__})",
                lambda room=room, f=function, s=shape: (f, (room.P, _drawn(s).numpy())),
            )
    onnx = test_read_onnx_operators
    for name, found in {
        **onnx.READ,
        **{k: v[0] for k, v in {**onnx.UNREAD, **onnx.REFUSED}.items()},
    }.items():
        yield f"onnx {name}", lambda found=found: (onnx.proto_of(found), ())


def generated(total: int = GENERATED) -> Iterator[Model]:
    """Random networks as PyTorch modules and as JAX functions, and spoilt ONNX files."""
    from torch_networks import Untold, written

    def in_torch() -> Iterator[Model]:
        for seed in count():
            try:
                model = written(numbered(seed).network)
            except Untold:
                continue
            given = tuple(map(_drawn, model.shapes()))
            yield f"generated torch {seed}", lambda model=model, given=given: (model, given)

    def in_jax() -> Iterator[Model]:
        for seed in count():
            net = numbered(seed).network
            if numbered(seed).kind in ("dense", "image"):
                try:
                    model = kc.to_jax(net, features=8, rolled=False)
                    x = {n: _drawn(_shape(net.layer(n))).numpy() for n in net.inputs}
                    (given,) = x.values()
                    parameters = model.init(0, given)
                except (kc.KcalcError, ValueError):
                    continue
                yield (
                    f"generated jax {seed}",
                    lambda m=model, p=parameters, x=given: (m.apply, (p, x)),
                )

    yield from islice(in_torch(), total // 2)
    yield from islice(in_jax(), total // 10)
    yield from islice(spoilt(), total - total // 2 - total // 10)


def _shape(layer: Any) -> tuple[int, ...]:
    return (2, *(layer.image_shape or ()), layer.features)


def spoilt() -> Iterator[Model]:
    """ONNX files with random changes, those of ``tests/tools/fuzz``."""
    from fuzz.spoilt import onnx_models, spoilt_onnx, vocabulary

    models = onnx_models()
    words = vocabulary(models)
    for seed in count():
        data = spoilt_onnx(models, random.Random(seed), words)
        yield f"spoilt onnx {seed}", lambda data=data: (data, ())


def libraries() -> Iterator[Model]:
    """The architectures of benchmarks/architectures.py."""
    from benchmarks.architectures import ARCHITECTURES

    for entry in ARCHITECTURES:
        yield f"{entry.library or 'own'} {entry.name}", lambda e=entry: (e.model(), e.example())


GROUPS: dict[str, Callable[[], Iterator[Model]]] = {
    "zoos": zoos,
    "generated": generated,
    "libraries": libraries,
}


# -- the questions ---------------------------------------------------------------------------------


def _read(model: Any, example: tuple[Any, ...]) -> Any:
    if not isinstance(model, bytes):
        return kc.read(model, *example)
    with TemporaryDirectory() as folder, chdir(folder):  # messages hold the path
        path = Path("case.onnx")
        path.write_bytes(model)
        return kc.read(path)


def _told(data: Any) -> str:
    """Plain data as text, its numbers with ten digits; a hash where that is long."""

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.9e}")
        if isinstance(value, dict):
            return {str(key): rounded(item) for key, item in value.items()}
        return [rounded(item) for item in value] if isinstance(value, list | tuple) else value

    text = json.dumps(rounded(data), sort_keys=True)
    return text if len(text) < 400 else hashlib.sha256(text.encode()).hexdigest()


def reading(found: Any) -> Answer:
    """A reading, node by node."""
    plain = found.to_dict()
    out: Answer = {"fidelity": str(found.fidelity), "remarks": list(found.remarks)}
    out["outputs"] = list(map(str, found.network.outputs))
    for node in plain["network"]["nodes"]:
        out[f"node {node['id']}"] = _told(node)
    for note in plain["notes"]:
        out[f"note {note['node']}"] = [
            *out.get(f"note {note['node']}", []),
            f"{note['level']}: {note['text']}",
        ]
    return out


def _shaping(found: Any) -> Any:
    return kc.shape(found.network.without_normalization().normalised(), "tanh")


def applied(made: Made, found: Any, shaping: Any, **options: Any) -> Answer:
    """The new model of a shaping: its edits, and statistics of what it computes."""
    import jax
    import torch

    model, example = made
    torch.manual_seed(0)
    new = apply_to(model, shaping, *example, **options)
    with torch.no_grad():
        if found.framework == "torch":
            names = [f"{name} {tuple(p.shape)}" for name, p in new.named_parameters()]
            computed = new(*example)
        else:
            call, *given = new if isinstance(new, tuple) else (new,)
            names = [str(np.shape(p)) for p in jax.tree.leaves(given)]
            computed = getattr(call, "apply", call)(*given, *example[-1:]) if example else ()
    edits = edits_of(found, shaping) if found.framework == "torch" else ()
    out: Answer = {"names": names, "edits": [f"{e.node}: {e.kind}: {e.what}" for e in edits]}
    for index, leaf in enumerate(jax.tree.leaves(computed)):
        y = np.asarray(leaf, float)
        out[f"output {index}"] = str(y.shape)
        out[f"mean square {index}"] = number(np.mean(y**2), 1e9)
        out[f"first {index}"] = number(y.flat[0], 1e9)
    return out


def exports(shaping: Any) -> Answer:
    """Lines of the shaping in every format, or why there are none."""

    def lines(target: str) -> Any:
        try:
            return len(shaping.export(target).splitlines())
        except kc.KcalcError as error:
            return str(error)

    return {target: lines(target) for target in FORMATS}


def outcome(ask: Callable[[], Answer]) -> Answer:
    """The answer, refusal or fault of one question."""
    try:
        with warnings.catch_warnings(), limited(LIMIT):
            warnings.simplefilter("ignore")
            return {"answer": ask()}
    except kc.KcalcError as error:
        named = NODE.search(str(error))
        return {
            "refusal": type(error).__name__,
            "node": named and named[1],
            "message": str(error),
        }
    except Slow:
        return {"slow": LIMIT}
    except Exception as error:  # an error of another kind is recorded as a fault
        return {"fault": f"{type(error).__name__}: {str(error)[:200]}"}


def answers(make: Callable[[], Made]) -> Iterator[tuple[str, Answer]]:
    """(question, outcome) of one model."""
    _seeded()
    kept: list[Any] = []

    def ask() -> Answer:
        made = make()
        kept.extend((made, _read(*made)))
        return reading(kept[1])

    yield "reading", outcome(ask)
    if len(kept) == 2:
        made, found = kept
        if not isinstance(made[0], bytes) and found.framework != "onnx":
            whole = SimpleNamespace(network=found.network)
            yield "kept", outcome(lambda: applied(made, found, whole, weights="keep"))
            yield "shaped", outcome(lambda: applied(made, found, _shaping(found)))
        yield "exports", outcome(lambda: exports(_shaping(found)))


def write(path: str, groups: list[str]) -> None:
    """The outcomes of all models of some groups as lines of JSON."""
    with open(path, "w") as out:
        for group in groups:
            for name, make in GROUPS[group]():
                for question, found in answers(make):
                    line = {"case": name, "question": question} | found
                    out.write(json.dumps(line, sort_keys=True) + "\n")
                out.flush()
