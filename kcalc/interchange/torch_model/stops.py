"""Read gradient stops, frozen parameters and custom backward passes in a captured graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..trace import Pointwise, Stopped
from .calls import Call, rule
from .graph_values import Const, PaddedTensor, TensorRef
from .own_gradients import OwnCall, slope, spoken

if TYPE_CHECKING:
    from .walker import Walker

SUMS = {"add", "sub", "rsub", "cat", "concat", "concatenate", "stack", "neg", "sum", "mean"}
MOVES = {
    *("clone", "_to_copy", "contiguous", "positive", "lift_fresh", "index", "index_select", "flip"),
    *(
        "roll",
        "repeat",
        "repeat_interleave",
        "embedding",
        "gather",
        "constant_pad_nd",
        "pad",
        "take",
    ),
    *("tile", "select_copy", "slice_copy", "hstack", "vstack", "dstack", "rot90", "tril", "triu"),
    *("_unsafe_view", "masked_fill", "diag", "diag_embed", "fold", "unfold", "cumsum", "float"),
}
PRODUCTS = {"mul", "multiply", "matmul", "mm", "bmm", "linear", "einsum", "mv", "kron", "outer"}
QUOTIENTS = {"div", "divide", "true_divide"}
NO_GRAD = "no_grad"
# operators that run a graph inside the graph: no_grad, autocast, checkpointing
REGIONS = (
    "wrap_with_set_grad_enabled",
    "wrap_with_autocast",
    "tag_activation_checkpoint",
    "wrap",
    "invoke_subgraph",
)
STOPS = ("detach", "detach_", "detach_copy")


def trained(kind: str, constants: Iterable[Const], views: set[str]) -> bool | str:
    """Whether the results of an operator on constants are trained.

    Returns "indirectly" if they are a nonlinear function of trained parameters, so that derivatives
    with respect to the parameters and to the results differ. ``views``: operators that only
    rearrange entries.
    """
    given = list(constants)
    moved = [constant for constant in given if constant.trained is not False]
    if not moved or kind in STOPS:
        return False
    if any(constant.trained == "indirectly" for constant in moved):
        return "indirectly"
    plain = kind.removesuffix("_")
    if plain in SUMS | MOVES | views:
        return True
    one = len(moved) == 1
    if (one and plain in PRODUCTS) or (one and plain in QUOTIENTS and moved[0] is given[0]):
        return True
    return "indirectly"


def stopped(walker: Walker, value: Any, name: str, unknown: str = "", source: str = "") -> Any:
    """Stop the gradient of a value; ``name``: the preferred name of the operation."""
    if isinstance(value, list | tuple):
        return type(value)(stopped(walker, part, name, unknown, source) for part in value)
    if isinstance(value, Const):
        return replace(value, trained="indirectly" if unknown and value.trained else False)
    if isinstance(value, PaddedTensor):
        return replace(value, source=stopped(walker, value.source, name, unknown, source))
    if not isinstance(value, TensorRef) or not _has_gradient(value.dtype):
        return value
    made = walker.names(name)
    walker.ops[made] = Stopped(
        name=made, shape=value.shape, reads=(value.name,), source=source, unknown=unknown
    )
    return TensorRef(made, value.shape, value.dtype)


def _has_gradient(dtype: Any) -> bool:
    return dtype is None or dtype.is_floating_point or dtype.is_complex


@rule(*STOPS)
def detached(call: Call) -> Any:
    """Read detach."""
    wish = f"{call.path}.detach" if call.path else "detach"
    return stopped(call.walker, call.operand, wish, source=call.source)


def own_gradient(call: Call, made: OwnCall) -> Any:
    """Read an autograd function whose backward pass is not its true derivative.

    If a known function of the argument has this gradient, gradients pass through that function.
    """
    source, name = call.operand, f"{call.path}.{made.kind.__name__}".lstrip(".")
    pair = next((u for u in call.node.users if str(u.target) == "aten.expand_as.default"), None)
    other = None if pair is None else call.walker.values.get(pair.args[1])
    found = slope(made) if isinstance(source, TensorRef) and isinstance(other, TensorRef) else None
    if found is None or not isinstance(other, TensorRef):
        return stopped(call.walker, source, name, spoken(made), call.source)
    passed = call.emit(
        Pointwise, [other.name], wish=f"{name}.passed", function=found.passed, label="passed"
    )
    rest = call.emit(
        Pointwise,
        [source.name, passed.name],
        wish=f"{name}.rest",
        function=lambda x, y: x - y,
        label="sub",
    )
    still = stopped(call.walker, rest, f"{name}.stopped", source=call.source)
    return call.emit(
        Pointwise,
        [still.name, passed.name],
        wish=name,
        function=lambda x, y: x + y,
        label="add",
    )
