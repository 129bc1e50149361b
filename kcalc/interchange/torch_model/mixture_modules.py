"""Find mixtures of experts in PyTorch modules, and replace each with one expert and a marked call.

The graph of a model shows the assignment of tokens to experts only for one example. So before a
model is captured, every module that is a mixture gets a new ``forward``, which runs the router, one
expert on all tokens, the shared experts, and the operator ``kcalc::route``. A module is recognised
by its outputs in evaluation mode, which must be weighted sums of the k experts with the largest
logits, for some k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy.stats import ttest_1samp
from torch import nn
from torch.nn import functional as F

from ..reading_notes import biased
from .mixture_rules import OTHER

TOKENS = 48  # number of tokens with which a module is tested
FEW = 1000  # up to this number of biases, a t-test decides whether their mean is 0
UNLIKELY = 1e-7
GATE = "_apply_gate"  # a method of experts in stacked parameters
CLOSE = 2e-3  # relative tolerance; errors in single precision are about 1e-5
SCORES = (("softmax", True), ("softmax", False), ("sigmoid", True), ("sigmoid", False))
CORRECTED = (
    "its correction biases, which balance the load, are not 0; they change which experts are "
    "selected, and kernel maps need logits with mean 0"
)
ABSENT = "its correction biases are 0, as at the start of training; they are left out"
GROUPED = "it selects groups of experts first; kcalc has no rule for this, so use a single group"
TIES = (
    "its router weights are 0, so all logits are equal and the experts are tied; initialise the "
    "router"
)
UNLIKE = (
    "its experts have different widths or layers, or draw random numbers; kernel maps need "
    "identical experts"
)
BIASED = "the biases of its {} do not have mean 0, as kernel maps require"
ONE = "the first expert is read as an example of all {}, which have independent weights"


@dataclass(frozen=True, eq=False)
class Mixture:
    """A module that is a mixture of experts.

    ``expert(i, x)`` returns the output of an expert. The sum of the modules ``shared`` is added,
    multiplied by the sigmoid of ``gate(x)`` (one number per token) if there is a gate. ``texts``:
    notes. ``experts``: the module that contains all experts. ``ran``: the modules and methods of an
    expert that run with the mixture. The other fields are as in :class:`kcalc.layers.Route`.
    """

    experts: Any
    router: Any
    expert: Callable[[int, Any], Any]
    count: int
    shared: tuple[nn.Module, ...] = ()
    gate: nn.Module | None = None
    k: int = 1
    score: str = "softmax"
    normalise: bool = True
    scale: float = 1.0
    texts: tuple[str, ...] = ()
    ran: frozenset[str] = frozenset()

    @property
    def stacked(self) -> bool:
        """Whether the weights of experts are blocks of single parameters."""
        return not isinstance(self.experts, nn.ModuleList)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of the router."""
        bias = getattr(self.router, "bias", None)
        return F.linear(x, self.router.weight, bias if isinstance(bias, torch.Tensor) else None)


def with_readable_experts(model: nn.Module) -> None:
    """Replace the ``forward`` of every mixture in a private copy of a model."""
    for module in list(model.modules()):
        parts = _parts(module)
        if parts is None:
            continue
        with torch.no_grad(), _evaluating(module):
            found = _found(module, *parts)
        if isinstance(found, Mixture):
            module.forward = _forward(found, _returns_pair(module, parts))
        elif found:
            module.forward = _unread(found, _returns_pair(module, parts))


def mixtures(model: nn.Module) -> dict[str, Mixture]:
    """Return {path of a module: mixture of experts}."""
    found: dict[str, Mixture] = {}
    for path, module in model.named_modules():
        parts = _parts(module)
        if parts is None:
            continue
        with torch.no_grad(), _evaluating(module):
            mixture = _found(module, *parts)
        if isinstance(mixture, Mixture):
            found[path] = mixture
    return found


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Return a context with a module in evaluation mode, without dropout or noise of training."""
    modes = [(part, part.training) for part in module.modules()]
    for part, _ in modes:
        part.training = False
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _parts(module: nn.Module) -> tuple[Any, Any, int, int] | None:
    """Return (experts, router, number of experts, channels) if a module may be a mixture."""
    for experts in module.children():
        fused = getattr(experts, "down_proj", None)
        if isinstance(fused, nn.Parameter) and fused.ndim == 3:
            count = len(fused)
        elif isinstance(experts, nn.ModuleList) and len(experts) > 1:
            count = len(experts)
        else:
            continue
        for router in module.children():
            weight = getattr(router, "weight", None)
            if router is experts or not isinstance(weight, torch.Tensor) or weight.ndim != 2:
                continue
            if len(weight) == count:
                return experts, router, count, weight.shape[1]
    return None


def _found(module: nn.Module, experts: Any, router: Any, count: int, width: int) -> Any:
    """Return the mixture, a reason why it is not read, or "" if the module is not a mixture."""
    fused = not isinstance(experts, nn.ModuleList)
    x = _example(width, router.weight)
    if not fused and not _of_one_law(experts, x):
        return UNLIKE if _selects(module, width, router.weight) else ""
    with _watched(experts) as ran:
        out = _output(module, x)
    if out is None or out.shape != x.shape:
        return ""
    certain = fused or _selects(module, width, router.weight)
    texts = [ONE.format(count)]
    if not router.weight.any():
        return TIES if certain else ""
    for name, values in [*router.named_buffers(), *router.named_parameters()]:
        if name != "bias" and "bias" in name and values.shape == (count,):
            if values.any():
                return CORRECTED
            texts.append(ABSENT)
    if _groups(router) or _groups(module):
        return GROUPED
    one = _fused(experts) if fused else (lambda i, x: _first(experts[i](x)))
    mixture = Mixture(experts, router, one, count)
    outputs = [_output(partial(one, i), x) for i in range(count)]
    if any(each is None or each.shape != x.shape for each in outputs):
        return OTHER if certain else ""
    every = torch.stack(outputs)
    logits = mixture.logits(x)
    for shared, gate in _shared(module, experts, router, x):
        added = sum((child(x) for child in shared), torch.zeros_like(x))
        added = added if gate is None else torch.sigmoid(gate(x)) * added
        match = _matched(out - added, logits, every, _hint(module, router))
        if match is not None:
            if reason := _with_mean(experts, router):
                return reason
            told = (*match, tuple(texts), frozenset(ran))
            return Mixture(experts, router, one, count, shared, gate, *told)
    return OTHER if certain else ""


def _matched(
    out: Any, logits: Any, every: Any, hint: int | None
) -> tuple[int, str, bool, float] | None:
    """Return (k, score, normalise, scale) of the mixture with the output ``out``, or None."""
    count = logits.shape[-1]
    order = [k for k in (hint,) if k is not None and 0 < k <= count]
    ks = dict.fromkeys([*order, *range(1, count + 1)])
    for k, (score, normalise) in product(ks, SCORES):
        values, chosen = torch.topk(logits, k, dim=-1)
        if score == "sigmoid":
            weights = torch.sigmoid(values)
        elif normalise:
            weights = torch.softmax(values, -1)
        else:
            weights = torch.softmax(logits, -1).gather(-1, chosen)
        if normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        table = torch.zeros_like(logits).scatter(-1, chosen, weights)
        made = torch.einsum("te,etc->tc", table, every)
        size = (made * made).sum()
        scale = float((made * out).sum() / size) if size > 0 else 0.0
        if scale > 0 and (out - scale * made).norm() < CLOSE * scale * made.norm():
            return k, score, normalise, float(f"{scale:.5g}")
    return None


def _shared(
    module: nn.Module, experts: Any, router: Any, x: Any
) -> Iterator[tuple[tuple[nn.Module, ...], nn.Module | None]]:
    """Yield (modules that may be added to the mixture, gate or None), starting with no modules."""
    yield (), None
    others = [child for child in module.children() if child not in (experts, router)]
    outputs = [(child, _output(child, x)) for child in others]
    full = tuple(child for child, out in outputs if out is not None and out.shape == x.shape)
    gates = [child for child, out in outputs if out is not None and out.shape == (len(x), 1)]
    for gate in (None, *gates) if full else ():
        yield full, gate


def _fused(experts: Any) -> Callable[[int, Any], Any]:
    """Return the function expert(i, x) if all experts share weight arrays, as in transformers."""
    gated = hasattr(experts, "gate_up_proj")
    names = ("gate_up_proj" if gated else "up_proj", "down_proj")
    turned = bool(getattr(experts, "is_transposed", False))

    def times(name: str, i: int, x: Any) -> Any:
        weight, bias = getattr(experts, name)[i], getattr(experts, f"{name}_bias", None)
        return F.linear(x, weight.T if turned else weight, None if bias is None else bias[i])

    def expert(i: int, x: Any) -> Any:
        inner = times(names[0], i, x)
        inner = getattr(experts, GATE)(inner) if gated else experts.act_fn(inner)
        return times(names[1], i, inner)

    return expert


@contextmanager
def _watched(experts: Any) -> Iterator[set[str]]:
    """Return a context that collects the names of modules and methods of experts that run.

    Experts in a list share one name.
    """
    ran: set[str] = set()
    listed = isinstance(experts, nn.ModuleList)
    handles: list[Any] = []
    for name, part in experts.named_modules():
        inner = name.partition(".")[2] if listed else name
        if name or not listed:
            handles.append(part.register_forward_hook(lambda *_, n=inner: ran.add(n)))
    method = getattr(experts, GATE, None)
    own = {name: value for name, value in vars(experts).items() if name == GATE}
    if method is not None:

        def gate(*args: Any, **kwargs: Any) -> Any:
            ran.add(GATE)
            return method(*args, **kwargs)

        object.__setattr__(experts, GATE, gate)
    try:
        yield ran
    finally:
        vars(experts).pop(GATE, None)
        vars(experts).update(own)
        for handle in handles:
            handle.remove()


def _of_one_law(experts: nn.ModuleList, x: Any) -> bool:
    """Whether all experts compute the same function, up to the values of their parameters."""
    first, *others = experts
    if len({_law(one) for one in experts}) > 1:
        return False
    numbers = {**dict(first.named_parameters()), **dict(first.named_buffers())}
    try:
        expected = first(x)
        found = (torch.func.functional_call(one, numbers, (x,)) for one in others)
        return all(torch.allclose(expected, out, rtol=CLOSE, atol=0) for out in found)
    except Exception:  # the user's own code, which is checked by comparing outputs
        return True


def _law(expert: nn.Module) -> tuple[Any, ...]:
    """Return the classes of an expert's modules and the shapes of its parameters."""
    shapes = tuple((name, tuple(p.shape)) for name, p in expert.named_parameters())
    return tuple(type(module) for module in expert.modules()), shapes


def _with_mean(experts: nn.Module, router: nn.Module) -> str:
    """Return a reason if biases of the router or the experts do not have mean 0, else ""."""
    for what, part in (("router", router), ("experts", experts)):
        for name, values in part.named_parameters():
            if name.endswith("bias") and _has_mean(values.detach().double().cpu().numpy()):
                return BIASED.format(what)
    return ""


def _has_mean(values: np.ndarray) -> bool:
    """Whether the mean of biases is too large for independent biases of mean 0."""
    if values.size < 2 or not values.any() or values.size > FEW:
        return biased(values)
    with np.errstate(all="ignore"):
        test: Any = ttest_1samp(values.ravel(), 0)
    return not test[1] > UNLIKELY


def _groups(part: Any) -> bool:
    """Whether a router first selects groups of experts."""
    groups = getattr(part, "num_group", getattr(part, "n_group", None)) or 1
    return groups > 1 and groups > (getattr(part, "topk_group", None) or groups)


def _hint(module: Any, router: Any) -> int | None:
    """Return the number of selected experts according to an attribute, or None."""
    found = (getattr(part, "top_k", None) for part in (router, module))
    return next((k for k in found if isinstance(k, int)), None)


def _example(width: int, weight: Any) -> Any:
    drawn = torch.randn(TOKENS, width, generator=torch.Generator().manual_seed(0))
    return drawn.to(weight)


def _output(module: Callable[[Any], Any], x: Any) -> Any:
    """Return the first output of a module or function for tokens ``x``, or None if it fails."""
    for given in (x[None], x):
        try:
            out = module(given)
        except Exception:  # the user's code may raise anything
            continue
        first = _first(out)
        if isinstance(first, torch.Tensor) and first.numel() % len(x) == 0:
            return first.reshape(len(x), -1)
    return None


def _first(out: Any) -> Any:
    return out[0] if isinstance(out, tuple) and out else out


def _returns_pair(module: nn.Module, parts: tuple[Any, Any, int, int]) -> bool:
    with torch.no_grad():
        try:
            return isinstance(module(_example(parts[3], parts[1].weight)[None]), tuple)
        except Exception:  # the user's code may raise anything
            return False


def _selects(module: nn.Module, width: int, weight: Any) -> bool:
    """Whether a module calls topk or sort when it runs."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        seen = False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            self.seen |= func.overloadpacket in (torch.ops.aten.topk, torch.ops.aten.sort)
            return func(*args, **(kwargs or {}))

    with Watch() as watch:
        _output(module, _example(width, weight))
    return watch.seen


# -- replacements ----------------------------------------------------------------------------------


def _forward(mixture: Mixture, pair: bool) -> Callable[..., Any]:
    first: Any = mixture.experts if mixture.stacked else lambda x: mixture.expert(0, x)
    if mixture.stacked:  # run the experts' code inside their own module
        mixture.experts.forward = _marked(lambda x: mixture.expert(0, x), None)

    def forward(x: Any, *_: Any, **__: Any) -> Any:
        logits = mixture.logits(x)
        options = (mixture.k, mixture.score, mixture.normalise, mixture.scale)
        texts = "\n".join(mixture.texts)
        route = _operators()[0]
        out = route(logits, first(x), *options, texts)
        if mixture.shared:
            added = mixture.shared[0](x)
            for child in mixture.shared[1:]:
                added = added + child(x)
            if mixture.gate is not None:  # multiply by the gate, as in a mixture of one expert
                added = route(mixture.gate(x), added, 1, "sigmoid", False, 1.0, "")
            out = out + added
        return (out, logits) if pair else out

    return _marked(forward, mixture)


def _marked(forward: Any, mixture: Mixture | None) -> Any:
    forward.read_for = mixture
    return forward


def read_as_one(model: nn.Module) -> dict[str, Mixture]:
    """Return {path of a module: its mixture} for a model that was made readable."""
    found = {
        path: getattr(vars(module).get("forward"), "read_for", None)
        for path, module in model.named_modules()
    }
    return {path: mixture for path, mixture in found.items() if mixture is not None}


def replaced_to_read(module: nn.Module) -> bool:
    """Whether kcalc replaced a module's ``forward`` in its private copy in order to read it."""
    return hasattr(vars(module).get("forward"), "read_for")


def _unread(reason: str, pair: bool) -> Callable[..., Any]:
    def forward(x: Any, *_: Any, **__: Any) -> Any:
        out = _operators()[1](x, reason)
        return (out, out) if pair else out

    return _marked(forward, None)


@lru_cache(maxsize=1)
def _operators() -> tuple[Any, Any]:
    """Return the operators ``kcalc::route`` and ``kcalc::unread_mixture``."""

    @torch.library.custom_op("kcalc::route", mutates_args=())
    def route(
        logits: torch.Tensor,
        expert: torch.Tensor,
        k: int,
        score: str,
        normalise: bool,
        scale: float,
        texts: str,
    ) -> torch.Tensor:
        return scale * expert

    @torch.library.custom_op("kcalc::unread_mixture", mutates_args=())
    def unread_mixture(x: torch.Tensor, reason: str) -> torch.Tensor:
        return x.clone()

    route.register_fake(lambda logits, expert, *_: torch.empty_like(expert))
    unread_mixture.register_fake(lambda x, reason: torch.empty_like(x))
    return route, unread_mixture
