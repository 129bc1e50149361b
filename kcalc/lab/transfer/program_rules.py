"""Rules for operations without weights: how each kind changes sizes and gradients."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import sympy as sp

from ...foundation.errors import KcalcError
from .powers import HALF, ONE, Power
from .program import Ref, Step, leaves, total
from .program_sizes import Fold, Found, Value, whole
from .program_table import chosen, largest, operand, ratio_of, rule, several
from .sizes import Part, differing

# -- what moves numbers ----------------------------------------------------------------------------

_POOLS = """
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d
    upsample_bicubic2d upsample_trilinear3d upsample_nearest_exact1d upsample_nearest_exact2d
    upsample_nearest_exact3d upsample_bilinear2d_aa upsample_bicubic2d_aa unfold im2col col2im
    grid_sampler grid_sampler_2d grid_sampler_3d max_pool1d max_pool2d max_pool3d
    max_pool2d_with_indices max_pool3d_with_indices fractional_max_pool2d avg_pool1d avg_pool2d
    avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d
"""
POOLS = frozenset(_POOLS.split())
_MOVES = """
    view reshape unsafe_view flatten unflatten squeeze unsqueeze transpose t permute movedim
    moveaxis swapaxes swapdims expand expand_as clone contiguous to to_copy alias view_as type_as
    lift_fresh numpy_T mT roll flip rot90 tril triu repeat tile repeat_interleave pad
    constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
    replication_pad2d replication_pad3d pixel_shuffle pixel_unshuffle channel_shuffle masked_fill
    dropout feature_dropout alpha_dropout native_dropout diag_embed positive as_strided lift
    resolve_conj resolve_neg
"""
MOVES = frozenset(_MOVES.split())
_PARTS = """
    slice select narrow split split_with_sizes chunk unbind tensor_split index index_select gather
    take_along_dim diagonal topk sort unsafe_chunk unsafe_split unsafe_split_with_sizes hsplit
    vsplit dsplit take masked_select getitem cummax cummin
"""
PARTS = frozenset(_PARTS.split())


@rule(*MOVES, *POOLS)
def moved(f: Fold, step: Step) -> Found:
    """Move or copy values, or take means or maxima over a fixed number of positions."""
    given = operand(step)
    x = f.value(given)
    f.edge(step, given, f.shared(step, step.axes[0], given))
    found = [f.like(step, x, k) for k in range(len(step.axes))]
    if step.kind.strip("_") in POOLS:  # new numbers with the same size
        found = [replace(one, parameter=None) for one in found]
    return several(step, found)


@rule("cumsum", "logcumsumexp")
def running(f: Fold, step: Step) -> Found:
    """Compute running sums over positions. The number of positions must stay the same."""
    given = operand(step)
    x = f.value(given)
    if f.grows(x.axes[int(step.args.get("dim") or 0)]):
        return f.guess(step, "the axis that it runs over grows")
    f.edge(step, given, ONE)
    return replace(f.like(step, x), parameter=None)


@rule(*PARTS)
def parted(f: Fold, step: Step) -> Found:
    """Select some of the entries.

    All parts of a matrix share one rule, so they must grow in the same way.
    """
    given = operand(step)
    found = f.values[given.name]
    if isinstance(found, list):
        place = int(step.args["1"])
        if found[place].real:
            f.edge(step, given, ONE)
        return replace(found[place], axes=step.axes[0])
    f.edge(step, given, ONE)
    use = f.uses.get(found.maker or "")
    for axes, real in zip(step.axes, step.real, strict=True):
        alike = f.setting.order.alike(total(axes), found.total) or not real
        if use is not None and not alike and f.grows(use.fan_in):
            raise KcalcError(
                f"the weights of {use.node!r} are used in two conflicting roles: their outputs "
                f"grow as {_text(found.total)}, but the part that {step.name!r} selects grows as "
                f"{_text(total(axes))}. Both come from rows of one matrix, and a parameter can "
                "have only one rule; use a separate layer for each role"
            ).at(step.name)
    return several(step, [f.like(step, found, k) for k in range(len(step.axes))])


def _text(power: Power) -> str:
    return str(power).replace("**", "^")


@rule("cat", "concatenate", "concat", "stack", "hstack", "vstack", "dstack", "column_stack")
def joined(f: Fold, step: Step) -> Found:
    """Concatenate arrays.

    Parts with different sizes or growth need different rules in the layers that read them.
    """
    refs = step.args["tensors"]
    values = [f.value(ref) for ref in refs]
    for ref in refs:
        f.edge(step, ref, ONE)
        f.role(ref, "vector")
    found = largest(f, step, values)
    axis = int(step.args.get("dim") or 0)
    if step.kind == "stack" or not f.grows(step.axes[0][axis]):
        return found
    parts = tuple(
        Part(ref.name, one.of, one.axes[axis]) for ref, one in zip(refs, values, strict=True)
    )
    return replace(found, unlike=parts) if differing(f.setting.order, parts) else found


@rule("broadcast_tensors", "meshgrid", "atleast_1d", "atleast_2d", "atleast_3d")
def each(f: Fold, step: Step) -> Found:
    """Return several arrays, each with its own shape."""
    values = [f.like(step, f.value(ref), k) for k, ref in enumerate(step.refs)]
    for ref, axes in zip(step.refs, step.axes, strict=True):
        f.edge(step, ref, f.shared(step, axes, ref))
    return several(step, values)


@rule("detach", "stop_gradient")
def stopped(f: Fold, step: Step) -> Found:
    """Pass the values on without a gradient."""
    x = f.value(operand(step))
    return replace(f.like(step, x), parameter=None, maker=None)


# -- functions of single entries -------------------------------------------------------------------

FUNCTIONS = (
    "tanh sigmoid silu gelu elu selu celu mish softplus softsign hardtanh hardsigmoid hardswish "
    "relu6 log_sigmoid logsigmoid exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh asin "
    "acos atan asinh acosh atanh erf erfc erfinv logit hardshrink softshrink tanhshrink threshold "
    "clamp clip clamp_max rrelu digamma lgamma i0 sinc nan_to_num glu_gate bessel_j0 fmod "
    "remainder frac xlogy special_expit special_erf prelu_kernel logaddexp atan2 hypot"
)


@rule("relu", "leaky_relu", "abs", "neg", "clamp_min", "negative", "rsub_zero")
def homogeneous(f: Fold, step: Step) -> Found:
    """Apply a homogeneous function, phi(a x) = a phi(x)."""
    given = operand(step)
    f.edge(step, given, ONE)
    x = f.like(step, f.value(given))
    return replace(x, parameter=x.parameter if step.kind == "neg" else None)


@rule(*FUNCTIONS.split())
def function(f: Fold, step: Step) -> Found:
    """Apply a function that is not homogeneous, so that its input must have size 1."""
    values = []
    for ref in step.refs:
        x = f.value(ref)
        factor = f.settle(step, x)
        f.edge(step, ref, factor * f.shared(step, step.axes[0], ref))
        f.role(ref, "shared")
        values.append(replace(x, of=ONE))
    found = largest(f, step, values)
    maker = values[0].maker if len(values) == 1 else None
    return replace(found, maker=maker, scores=False)


@rule("prelu")
def prelu(f: Fold, step: Step) -> Found:
    """Apply a leaky ReLU with a learned slope."""
    x = f.value(step.args["self"])
    f.edge(step, step.args["self"], ONE)
    f.edge(step, step.args["weight"], x.of * f.shared(step, step.axes[0], step.args["weight"]))
    f.role(step.args["weight"], "gain")
    return f.like(step, x)


@rule("glu")
def halves(f: Fold, step: Step) -> Found:
    """Compute a sigmoid(b) for the two halves a and b of the input."""
    x = f.value(step.args["self"])
    factor = f.settle(step, x)
    f.edge(step, step.args["self"], factor)
    return replace(f.like(step, x), of=ONE, parameter=None)


def raised(f: Fold, step: Step, power: Any) -> Found:
    """Compute x^p."""
    given = operand(step)
    x = f.value(given)
    f.edge(step, given, x.of ** (power - 1))
    return replace(f.like(step, x), of=x.of**power, parameter=None, maker=None)


@rule("sqrt")
def root(f: Fold, step: Step) -> Found:
    """Compute the square root."""
    return raised(f, step, HALF)


@rule("rsqrt")
def inverse_root(f: Fold, step: Step) -> Found:
    """Compute 1 / sqrt(x)."""
    return raised(f, step, -HALF)


@rule("square")
def square(f: Fold, step: Step) -> Found:
    """Compute x^2."""
    return raised(f, step, 2 * ONE)


@rule("reciprocal")
def reciprocal(f: Fold, step: Step) -> Found:
    """Compute 1 / x."""
    return raised(f, step, -ONE)


@rule("pow", "float_power")
def power(f: Fold, step: Step) -> Found:
    """Compute x^p for a number p."""
    exponent = step.args.get("exponent")
    if isinstance(exponent, int | float) and isinstance(step.args["self"], Ref):
        return raised(f, step, sp.Rational(Fraction(exponent).limit_denominator(100)))
    return function(f, step)


# -- sums and products of entries ------------------------------------------------------------------


@rule(
    "add",
    "sub",
    "rsub",
    "where",
    "maximum",
    "minimum",
    "lerp",
    "scatter",
    "scatter_add",
    "index_add",
    "index_put",
    "index_copy",
    "masked_scatter",
    "slice_scatter",
    "select_scatter",
    "scatter_reduce",
    "fmax",
    "fmin",
    "copy",
    "index_fill",
    "max",
    "min",
    "add_relu",
)
def added(f: Fold, step: Step) -> Found:
    """Add arrays, or replace some entries of an array with entries of another.

    The size of the result is the largest size of the inputs.
    """
    if step.kind in ("max", "min") and len(step.refs) == 1:
        return extreme(f, step)
    refs = [ref for ref in step.refs if f.value(ref).real]
    if not refs:
        return chosen(f, step)
    values = []
    for ref in refs:
        x = f.value(ref)
        # scores are scaled before biases are added
        factor = f.settle(step, x, ref.name) if x.scores and len(refs) > 1 else ONE
        f.edge(step, ref, factor * f.shared(step, step.axes[0], ref))
        f.role(ref, "vector")
        values.append(replace(x, of=x.of * factor))
    found = largest(f, step, values)
    if len(refs) == 1:
        return replace(
            found,
            parameter=f.value(refs[0]).parameter if not _numbers(step) else None,
            maker=f.value(refs[0]).maker,
        )
    return found


def _numbers(step: Step) -> bool:
    return any(isinstance(leaf, int | float) and leaf for leaf in leaves(step.args))


@rule("mul", "div", "multiply", "divide", "true_divide", "truediv")
def multiplied(f: Fold, step: Step) -> Found:
    """Multiply or divide arrays, or an array by a number that may differ in the base model."""
    first, second = step.args["self"], step.args["other"]
    inverse = step.kind.startswith(("div", "true"))
    if not isinstance(second, Ref):
        return scaled(f, step, first, ratio_of(f, step, "other"), inverse)
    if first == second and not inverse:
        return raised(f, replace(step, args={"self": first}), 2 * ONE)
    one, two = f.value(first), f.value(second)
    if two.numbers and one.real:
        return scaled(f, step, first, two.of, inverse)
    if one.numbers and two.real and not inverse:
        return scaled(f, step, second, one.of, False)
    if one.fixed and two.fixed and one.parameter and two.parameter and not inverse:
        return _own_factor(f, step, (first, one), (second, two))
    axes = step.axes[0]
    f.edge(step, first, (ONE / two.of if inverse else two.of) * f.shared(step, axes, first))
    f.edge(step, second, (one.of / two.of**2 if inverse else one.of) * f.shared(step, axes, second))
    for ref in (first, second):
        f.role(ref, "gain" if f.grows(f.value(ref).total) else "shared")
    found = largest(f, step, [one, two])
    of = one.of / two.of if inverse else one.of * two.of
    # the output of weights times a learned vector still counts as output of these weights
    maker = one.maker if two.fixed else two.maker if one.fixed else None
    return replace(found, of=of, maker=maker, scores=one.scores or two.scores)


def _own_factor(f: Fold, step: Step, one: tuple[Ref, Value], two: tuple[Ref, Value]) -> Found:
    """Multiply two parameters. The parameter with fewer entries is a gain for the other."""
    (ref, small), (rest, large) = (one, two) if one[1].axes != step.axes[0] else (two, one)
    f.roles.setdefault(small.parameter or "", "gain")
    axes, of = step.axes[0], one[1].of * two[1].of
    f.edge(step, ref, large.of * f.shared(step, axes, ref))  # unless the product is a weight
    f.edge(step, rest, small.of)
    return replace(large, axes=axes, of=of, gains=(*large.gains, ref.name))


def scaled(f: Fold, step: Step, given: Any, factor: Power, inverse: bool) -> Found:
    """Multiply by a fixed factor. The preceding weights absorb factors that change with width."""
    x = f.value(given)
    factor = ONE / factor if inverse else factor
    found = replace(f.like(step, x), of=x.of * factor)
    if factor == 1 or x.parameter is not None:
        f.edge(step, given, factor * f.shared(step, step.axes[0], given))
        return found
    use = f.uses.get(x.maker or "")
    if use is not None and x.of == use.output and _absorbs(f, step, given, use):
        f.after[use.node] = f.after.get(use.node, ONE) * factor
        f.edge(step, given, ONE)
        return replace(found, of=x.of)
    f.edge(step, given, factor)
    return found


def _absorbs(f: Fold, step: Step, given: Any, use: Any) -> bool:
    """Return whether weights can absorb a factor, which must multiply all their outputs."""
    readers = {
        key: [one for one in f.program.steps if Ref(key) in one.refs]
        for key in (given.name, step.name)
    }
    key = given.name
    while key != whole(use.node):
        before = next((one for one in f.program.steps if one.name == key), None)
        if before is None or before.kind not in MOVES:
            return False
        key = before.refs[0].name
    products = ("matmul", "bmm", "baddbmm", "einsum", "scaled_dot_product_attention")
    behind = _beyond_moves(f, step.name)
    return len(readers[given.name]) == 1 and not any(one.kind in products for one in behind)


def _beyond_moves(f: Fold, key: str) -> list[Step]:
    """Return the operations that read an array, looking through those that only move data."""
    found: list[Step] = []
    for one in f.program.steps:
        if Ref(key) in one.refs:
            moves = one.kind in MOVES or one.kind in PARTS
            found += _beyond_moves(f, one.name) if moves else [one]
    return found


@rule("addcmul")
def added_product(f: Fold, step: Step) -> Found:
    """Compute a + b c."""
    one, two = f.value(step.args["tensor1"]), f.value(step.args["tensor2"])
    axes = step.axes[0]
    f.edge(step, step.args["self"], f.shared(step, axes, step.args["self"]))
    f.edge(step, step.args["tensor1"], two.of * f.shared(step, axes, step.args["tensor1"]))
    f.edge(step, step.args["tensor2"], one.of * f.shared(step, axes, step.args["tensor2"]))
    x = f.value(step.args["self"])
    found = largest(f, step, [x, one, two])
    return replace(found, of=f.setting.order.larger(x.of, one.of * two.of))


# -- sums over axes --------------------------------------------------------------------------------


def _reduced(step: Step, x: Value) -> Power:
    """Return the growth of the number of entries that a step reduces to one."""
    return x.total / total(step.axes[0])


@rule("mean", "nanmean")
def mean(f: Fold, step: Step) -> Found:
    """Take a mean, which divides the gradient among the entries."""
    given = operand(step)
    x = f.value(given)
    f.edge(step, given, ONE / _reduced(step, x))
    maker = x.maker if _reduced(step, x) == 1 else None
    return replace(f.like(step, x), parameter=None, maker=maker)


@rule("sum", "nansum")
def summed(f: Fold, step: Step) -> Found:
    """Take a sum; the changes of its terms in training add up."""
    given = operand(step)
    x = f.value(given)
    count = _reduced(step, x)
    f.edge(step, given, ONE)
    found = replace(f.like(step, x), of=x.of * count, parameter=None, scores=x.scores or count != 1)
    return replace(found, maker=x.maker if count == 1 else None)


@rule("amax", "amin", "logsumexp", "median", "nanmedian", "aminmax", "mode", "kthvalue", "prod")
def extreme(f: Fold, step: Step) -> Found:
    """Take the largest of some entries. Their number must stay the same."""
    given = operand(step)
    x = f.value(given)
    if f.grows(_reduced(step, x)):
        return f.guess(step, "the number of entries that it selects from grows")
    factor = ONE
    if step.kind in ("logsumexp", "prod"):
        factor = f.settle(step, x)
    f.edge(step, given, factor)
    values = [
        replace(x, of=x.of * factor, axes=axes, real=real and x.real, parameter=None)
        for axes, real in zip(step.axes, step.real, strict=True)
    ]
    return several(step, values)


@rule("linalg_vector_norm", "norm", "frobenius_norm")
def length(f: Fold, step: Step) -> Found:
    """Compute a norm, the square root of a sum of squares."""
    given = operand(step)
    order = step.args.get("ord", step.args.get("p", 2))
    if order not in (None, 2, 2.0):
        return f.guess(step, f"a norm of order {order}")
    x = f.value(given)
    count = _reduced(step, x)
    f.edge(step, given, count**-HALF)
    return replace(f.like(step, x), of=x.of * count**HALF, parameter=None, maker=None)


@rule("var", "std", "var_mean", "std_mean")
def deviation(f: Fold, step: Step) -> Found:
    """Compute a variance or its square root, about the mean of each coordinate."""
    given = operand(step)
    x = f.value(given)
    square = step.kind.startswith("var")
    f.edge(step, given, (x.of if square else ONE) / _reduced(step, x))
    first = replace(f.like(step, x), of=x.of**2 if square else x.of, parameter=None, maker=None)
    rest = [replace(f.like(step, x, k), parameter=None) for k in range(1, len(step.axes))]
    return several(step, [first, *rest])


# -- norms and softmax -----------------------------------------------------------------------------


@rule(
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "fused_rms_norm",
    "group_norm",
    "native_group_norm",
    "batch_norm",
    "native_batch_norm",
    "instance_norm",
    "native_batch_norm_legit",
    "native_batch_norm_legit_functional",
    "native_batch_norm_legit_no_training",
    "batch_norm_with_update",
    "cudnn_batch_norm",
)
def normed(f: Fold, step: Step) -> Found:
    """Divide an array by its size."""
    given = operand(step)
    x = f.value(given)
    f.edge(step, given, ONE / x.of)
    for name in ("weight", "bias"):
        gain = step.args.get(name)
        if isinstance(gain, Ref):
            f.edge(step, gain, f.shared(step, step.axes[0], gain))
            f.role(gain, "gain")
    found = [
        replace(f.like(step, x, k), of=ONE, parameter=None, maker=None)
        for k in range(len(step.axes))
    ]
    return several(step, found)


@rule("softmax", "log_softmax", "safe_softmax", "softmin")
def softmax(f: Fold, step: Step) -> Found:
    """Compute a softmax, the weights of a mean. The input must have size 1."""
    given = operand(step)
    x = f.value(given)
    factor = f.settle(step, x)
    share = ONE / x.axes[int(step.args.get("dim", -1))] if x.axes else ONE
    of = ONE if step.kind.startswith("log") else share
    f.edge(step, given, factor * of)
    return replace(f.like(step, x), of=of, parameter=None, maker=None, scores=False)


@rule("cdist")
def distances(f: Fold, step: Step) -> Found:
    """Compute norms of differences between rows."""
    refs = step.args["x1"], step.args["x2"]
    values = [f.value(ref) for ref in refs]
    count = values[0].axes[-1] ** HALF
    for ref in refs:
        f.edge(step, ref, ONE / count)
    found = largest(f, step, values)
    return replace(found, of=found.of * count)


@rule("cosine_similarity")
def cosine(f: Fold, step: Step) -> Found:
    """Compute a cosine. Its gradient is shared by the coordinates."""
    one, two = f.value(step.args["x1"]), f.value(step.args["x2"])
    for x, given in ((one, step.args["x1"]), (two, step.args["x2"])):
        f.edge(step, given, total(step.axes[0]) / x.total / x.of)
    return Value(ONE, step.axes[0])


@rule(
    "cross_entropy_loss",
    "nll_loss",
    "nll_loss_forward",
    "nll_loss2d",
    "nll_loss_nd",
    "binary_cross_entropy_with_logits",
    "binary_cross_entropy",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "soft_margin_loss",
    "ctc_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "multi_margin_loss",
    "poisson_nll_loss",
    "gaussian_nll_loss",
    "cosine_embedding_loss",
    "triplet_margin_loss",
)
def loss(f: Fold, step: Step) -> Found:
    """Compute a loss at the end of the model."""
    for ref in step.refs:
        x = f.value(ref)
        if x.real and any(map(f.grows, x.axes)):
            raise KcalcError(
                f"the loss {step.name!r} reads {ref.name!r}, which grows with the width, so losses "
                f"at different widths are not comparable; use a readout with a fixed number of "
                f"channels"
            ).at(step.name)
        f.edge(step, ref, f.settle(step, x))
    return several(step, [Value(ONE, axes) for axes in step.axes])
