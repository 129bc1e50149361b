"""Gate weights whose gradient vanishes only because the streams that they mix are equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .descent import SMALL
from .held import returned
from .measuring import evaluating
from .program import Value, run_recorded
from .reaching import leaf_of
from .separate_streams import sources
from .stream_states import start_of

if TYPE_CHECKING:
    from .subject import Subject


Place = tuple[tuple[Value, ...], tuple[Value, ...], Value]


def idle_gates(subject: Subject, suspects: Sequence[str]) -> tuple[str, ...]:
    """Return the suspects that would get a gradient if the streams differed.

    The streams of the first sub-layer are copies of one value, so a norm in the branch cancels the
    gradient of the gates there. If the readout adds up the streams with equal weights, a mixture
    whose columns sum to 1 has no effect in the last sub-layer. Only the parameters of these two
    sub-layers are examined, because training makes the streams differ in all others.

    Another run adds noise to the streams, separately wherever an operation reads them. In this
    run, the result must have a gradient for the suspects of the first sub-layer, and a random
    combination of the last streams must have a gradient for the suspects of the last mixture.
    """
    structure = subject.measured.structure
    if not suspects or not (structure.several or structure.levels):
        return ()
    start, ends = _places(subject)
    program = subject.measured.structure.program
    leaves = {n: leaf for n in suspects if (leaf := leaf_of(program, n)) is not None}
    first = [n for n, leaf in leaves.items() if any(e.depends_on(leaf) for e in ends[0][0])]
    last = [
        n
        for n, leaf in leaves.items()
        if any(v.depends_on(leaf) for v in ends[-1][1]) and not ends[-1][2].depends_on(leaf)
    ]
    if not first and not last:
        return ()
    calls = {v.call for v in start} | {v.call for values, _, _ in ends for v in values}
    result, read = _with_noise(subject, calls)
    final = [t for v in ends[-1][0] for t in read.get(v.call, ())]
    alive = _moved(subject, first, returned(result)) | _moved(subject, last, final)
    return tuple(n for n in suspects if n in alive)


def _places(subject: Subject) -> tuple[list[Value], list[Place]]:
    """Return the values in which the streams begin, and one tuple per sub-layer.

    A tuple contains the streams after the sub-layer, the addends of a mixture of the streams before
    it, and the output of its branch.
    """
    structure = subject.measured.structure
    if not structure.several:
        begin = list(sources(structure.program, structure.levels[0]))
        return begin, [(level.sums, level.mixtures[0], level.end) for level in structure.levels]
    origin = start_of(structure.program, structure.several[0])
    states = [((s.value,), (s.skip,), s.writer.value) for s in structure.several]
    return [] if origin is None else [origin], states


def _with_noise(subject: Subject, calls: set[int]) -> tuple[Any, dict[int, list[Any]]]:
    """Run the model, with new noise whenever an operation reads a result of the given calls.

    Returns: the result of the model, and {call: tensors that it made}.
    """
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils import _pytree as pytree

    made: dict[int, list[Any]] = {}
    known: set[int] = set()
    generator = torch.Generator().manual_seed(0)
    own = 0  # operations that add noise
    adding = False

    def changed(call: int, _: str, out: Any) -> Any:
        nonlocal own
        own += adding
        if not adding and call - own in calls:
            tensors = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
            made[call - own] = tensors
            known.update(map(id, tensors))
        return out

    def noisy(leaf: Any) -> Any:
        if id(leaf) not in known or not leaf.is_floating_point():
            return leaf
        noise = torch.randn(leaf.shape, generator=generator).to(leaf)
        return leaf + noise * leaf.detach().square().mean().sqrt()

    class Noise(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal adding
            name = getattr(func, "__name__", "")
            in_place = name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
            if known and not in_place and name not in ("__get__", "__set__", "__setitem__"):
                adding = True
                args, kwargs = pytree.tree_map(noisy, (args, kwargs))
                adding = False
            return func(*args, **(kwargs or {}))

    model, (args, kwargs) = subject.model, subject.measured.call
    with evaluating(model), torch.enable_grad(), Noise():
        program = run_recorded(model, lambda: model(*args, **kwargs), (args, kwargs), changed)
    return program.result, made


def _moved(subject: Subject, names: Sequence[str], ends: Sequence[Any]) -> set[str]:
    """Return the parameters on which a random combination of the tensors ``ends`` depends."""
    import torch

    ends = [t for t in ends if t.is_floating_point() and t.requires_grad]
    if not names or not ends:
        return set()
    generator = torch.Generator().manual_seed(1)
    noise = [torch.randn(t.shape, generator=generator).to(t) for t in ends]
    parameters = {n: p for n, p in subject.model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(
        ends, list(parameters.values()), noise, allow_unused=True, retain_graph=True
    )
    sizes = {
        n: float(g.to_dense().double().square().mean().sqrt())
        for n, g in zip(parameters, found, strict=True)
        if g is not None and g.numel()
    }
    most = max(sizes.values(), default=0.0)
    return {n for n in names if sizes.get(n, 0.0) > SMALL * most}
