"""What every operation of a program does to sizes and gradients: one rule per kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...foundation.errors import KcalcError
from .powers import HALF, ONE, Power
from .program import Ref, Step, leaves, total
from .program_sizes import Fold, Found, Kept, Rule, Value, whole
from .sizes import Part

RULES: dict[str, Rule] = {}


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


NUMBERS = ("exponent", "alpha", "other", "num_layers", "value", "min", "max", "threshold", "weight")


def rule_of(step: Step) -> Rule:
    """The rule of a step; operators whose name ends in _ write in place.

    Raises: KcalcError for a function with other numbers than in the base.
    """
    kind = step.kind
    if RULES.get(kind.rstrip("_")) is not multiplied:
        _check_numbers(step)
    return RULES.get(kind) or RULES.get(kind.rstrip("_")) or RULES.get(kind.strip("_")) or _no_rule


def _check_numbers(step: Step) -> None:
    """Raises: KcalcError for a function with other numbers than in the base."""
    for name, own in step.args.items():
        base = step.base.get(name)
        number = isinstance(own, float) or (name in NUMBERS and isinstance(own, int))
        if number and name != "scale" and own != base:
            raise KcalcError(
                f"node {step.name!r} computes {step.kind} with {name} = {own}, in the base with "
                f"{base}: keep functions, norms and multipliers as they are in the base; "
                f"kc.transfer says which multipliers to change"
            ).at(step.name)


def _no_rule(f: Fold, step: Step) -> Found:
    if not any(step.real):  # whole numbers and comparisons pass no gradient
        return chosen(f, step)
    return f.guess(step) if step.refs else made(f, step)


def operand(step: Step) -> Ref:
    """The first array of a step."""
    for name in ("self", "input", "0"):
        if isinstance(step.args.get(name), Ref):
            return step.args[name]
    return step.refs[0]


def several(step: Step, values: list[Value]) -> Found:
    """What a step returns, a list or one."""
    return values if step.several else values[0]


def _largest(f: Fold, step: Step, values: Sequence[Value]) -> Value:
    """A sum of values, or one of them: the largest counts."""
    return Value(
        f.setting.order.larger(*(one.of for one in values)),
        step.axes[0],
        step.real[0],
        fixed=all(one.fixed for one in values),
        unlike=next((one.unlike for one in values if one.unlike is not None), None),
        scores=any(one.scores for one in values),
    )


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
    atleast_1d atleast_2d atleast_3d resolve_conj resolve_neg
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
    """The same numbers elsewhere, copies, means and maxima of a fixed number of positions."""
    given = operand(step)
    x = f.value(given)
    f.edge(step, given, f.shared(step, step.axes[0], given))
    found = [f.like(step, x, k) for k in range(len(step.axes))]
    if step.kind.strip("_") in POOLS:  # new numbers of the same size
        found = [replace(one, parameter=None) for one in found]
    return several(step, found)


@rule("cumsum", "logcumsumexp")
def running(f: Fold, step: Step) -> Found:
    """Running sums over positions, whose number stays."""
    given = operand(step)
    x = f.value(given)
    if f.grows(x.axes[int(step.args.get("dim") or 0)]):
        return f.guess(step, "the axis that it runs along grows")
    f.edge(step, given, ONE)
    return replace(f.like(step, x), parameter=None)


@rule(*PARTS)
def parted(f: Fold, step: Step) -> Found:
    """Some of the entries; rows of one matrix have one rule, so that parts have to grow alike."""
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
                f"the weights of {use.node!r} are used in two roles that conflict: their outputs "
                f"grow as {_text(found.total)}, and the part that {step.name!r} takes as "
                f"{_text(total(axes))}. These are rows of one matrix, and a parameter has one "
                f"rule; give each of them a layer of its own"
            ).at(step.name)
    return several(step, [f.like(step, found, k) for k in range(len(step.axes))])


def _text(power: Power) -> str:
    return str(power).replace("**", "^")


@rule("cat", "concatenate", "concat", "stack", "hstack", "vstack", "dstack", "column_stack")
def joined(f: Fold, step: Step) -> Found:
    """Side by side: parts of other sizes or growths have no one rule for what reads them."""
    refs = step.args["tensors"]
    values = [f.value(ref) for ref in refs]
    for ref in refs:
        f.edge(step, ref, ONE)
        f.role(ref, "vector")
    found = _largest(f, step, values)
    axis = int(step.args.get("dim") or 0)
    if step.kind == "stack" or not f.grows(step.axes[0][axis]):
        return found
    parts = [Part(ref.name, one.of, one.axes[axis]) for ref, one in zip(refs, values, strict=True)]
    alike = f.setting.order.alike
    for part in parts[1:]:
        if not (alike(part.channels, parts[0].channels) and alike(part.of, parts[0].of)):
            return replace(found, unlike=(parts[0], part))
    return found


# -- sources and choices ---------------------------------------------------------------------------


_MADE = """
    rand rand_like randn randn_like normal empty empty_like zeros zeros_like ones ones_like full
    full_like new_zeros new_ones new_full new_empty bernoulli eye randint arange scalar_tensor
    linspace
"""


@rule(*_MADE.split())
def made(f: Fold, step: Step) -> Found:
    """Numbers that the operation makes itself: noise, zeros."""
    found = [Value(ONE, axes, real) for axes, real in zip(step.axes, step.real, strict=True)]
    return several(step, found)


_CHOSEN = """
    round floor ceil trunc sign sgn heaviside one_hot histc wrap_with_set_grad_enabled multinomial
    argmax argmin
"""


@rule(*_CHOSEN.split())
def chosen(f: Fold, step: Step) -> Found:
    """A choice, a comparison: a new input, behind which no gradient is passed on."""
    return several(step, [Value(ONE, axes, False) for axes in step.axes])


@rule("detach", "stop_gradient")
def stopped(f: Fold, step: Step) -> Found:
    """The same numbers, behind which no gradient is passed on."""
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
    """phi(a x) = a phi(x)."""
    given = operand(step)
    f.edge(step, given, ONE)
    x = f.like(step, f.value(given))
    return replace(x, parameter=x.parameter if step.kind == "neg" else None)


@rule(*FUNCTIONS.split())
def function(f: Fold, step: Step) -> Found:
    """A function that is another one for other sizes; what it reads has to have size 1."""
    values = []
    for ref in step.refs:
        x = f.value(ref)
        factor = f.settle(step, x)
        f.edge(step, ref, factor * f.shared(step, step.axes[0], ref))
        f.role(ref, "shared")
        values.append(replace(x, of=ONE))
    found = _largest(f, step, values)
    maker = values[0].maker if len(values) == 1 else None
    return replace(found, maker=maker, scores=False)


@rule("prelu")
def prelu(f: Fold, step: Step) -> Found:
    """A slope that is learned."""
    x = f.value(step.args["self"])
    f.edge(step, step.args["self"], ONE)
    f.edge(step, step.args["weight"], x.of * f.shared(step, step.axes[0], step.args["weight"]))
    f.role(step.args["weight"], "gain")
    return f.like(step, x)


@rule("glu")
def halves(f: Fold, step: Step) -> Found:
    """a sigmoid(b), of the two halves."""
    x = f.value(step.args["self"])
    factor = f.settle(step, x)
    f.edge(step, step.args["self"], factor)
    return replace(f.like(step, x), of=ONE, parameter=None)


def raised(f: Fold, step: Step, power: Any) -> Found:
    """x^p."""
    given = operand(step)
    x = f.value(given)
    f.edge(step, given, x.of ** (power - 1))
    return replace(f.like(step, x), of=x.of**power, parameter=None, maker=None)


@rule("sqrt")
def root(f: Fold, step: Step) -> Found:
    """The root."""
    return raised(f, step, HALF)


@rule("rsqrt")
def inverse_root(f: Fold, step: Step) -> Found:
    """1 / root."""
    return raised(f, step, -HALF)


@rule("square")
def square(f: Fold, step: Step) -> Found:
    """x^2."""
    return raised(f, step, 2 * ONE)


@rule("reciprocal")
def reciprocal(f: Fold, step: Step) -> Found:
    """1 / x."""
    return raised(f, step, -ONE)


@rule("pow", "float_power")
def power(f: Fold, step: Step) -> Found:
    """x^p, where p is a number."""
    exponent = step.args.get("exponent")
    if isinstance(exponent, int | float) and isinstance(step.args["self"], Ref):
        from fractions import Fraction

        import sympy as sp

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
    """Sums, and arrays of which some entries come from others: the largest counts."""
    if step.kind in ("max", "min") and len(step.refs) == 1:
        return extreme(f, step)
    refs = [ref for ref in step.refs if f.value(ref).real]
    if not refs:
        return chosen(f, step)
    values = []
    for ref in refs:
        x = f.value(ref)
        # scores are brought to their size before biases are added
        factor = f.settle(step, x, ref.name) if x.scores and len(refs) > 1 else ONE
        f.edge(step, ref, factor * f.shared(step, step.axes[0], ref))
        f.role(ref, "vector")
        values.append(replace(x, of=x.of * factor))
    found = _largest(f, step, values)
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
    """Products and quotients of arrays, or with a number, which may differ from the base's."""
    first, second = step.args["self"], step.args["other"]
    inverse = step.kind.startswith(("div", "true"))
    if not isinstance(second, Ref):
        return scaled(f, step, first, _ratio(f, step, "other"), inverse)
    if not isinstance(first, Ref):
        return scaled(f, step, second, _ratio(f, step, "self"), False)
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
    found = _largest(f, step, [one, two])
    of = one.of / two.of if inverse else one.of * two.of
    # a learned vector times the outputs of weights leaves them those of these weights
    maker = one.maker if two.fixed else two.maker if one.fixed else None
    return replace(found, of=of, maker=maker, scores=one.scores or two.scores)


def _own_factor(f: Fold, step: Step, one: tuple[Ref, Value], two: tuple[Ref, Value]) -> Found:
    """A parameter times another: the one with fewer entries is a gain of the other."""
    (ref, small), (_, large) = (one, two) if one[1].axes != step.axes[0] else (two, one)
    f.roles.setdefault(small.parameter or "", "gain")
    axes, of = step.axes[0], one[1].of * two[1].of
    return replace(large, axes=axes, of=of, gains=(*large.gains, ref.name))


def _ratio(f: Fold, step: Step, name: str) -> Power:
    """A number relative to that of the base, a power.

    Raises: KcalcError where it is none.
    """
    own, base = step.args[name], step.base[name]
    if own == base or not own or not base or not isinstance(own, int | float):
        return ONE
    for symbol, ratio in f.program.ratios.items():
        from .program import POWERS

        for p in POWERS:
            if abs(own / base / ratio ** float(p) - 1) < 1e-4:
                return symbol**p
    raise KcalcError(
        f"node {step.name!r} multiplies by {own:.6g}, in the base it multiplies by {base:.6g}: "
        f"that is no power of the ratio of the widths; keep functions, norms and multipliers as "
        f"they are in the base"
    )


def scaled(f: Fold, step: Step, given: Any, factor: Power, inverse: bool) -> Found:
    """A fixed factor; one that changes with the width belongs to the weights before it."""
    x = f.value(given)
    factor = ONE / factor if inverse else factor
    found = replace(f.like(step, x), of=x.of * factor)
    if factor == 1 or x.parameter is not None:
        f.edge(step, given, factor * f.shared(step, step.axes[0], given))
        return found
    use = f.uses.get(x.maker or "")
    if use is not None and x.of == use.output and _absorbs(f, step, given, use):
        f.behind[use.node] = f.behind.get(use.node, ONE) * factor
        f.edge(step, given, ONE)
        return replace(found, of=x.of)
    f.edge(step, given, factor)
    return found


def _absorbs(f: Fold, step: Step, given: Any, use: Any) -> bool:
    """Whether a factor is that of weights: of all of their outputs, which are not scores."""
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
    """The operations that read an array, beyond those that only move it."""
    found: list[Step] = []
    for one in f.program.steps:
        if Ref(key) in one.refs:
            moves = one.kind in MOVES or one.kind in PARTS
            found += _beyond_moves(f, one.name) if moves else [one]
    return found


@rule("addcmul")
def added_product(f: Fold, step: Step) -> Found:
    """a + b c."""
    one, two = f.value(step.args["tensor1"]), f.value(step.args["tensor2"])
    axes = step.axes[0]
    f.edge(step, step.args["self"], f.shared(step, axes, step.args["self"]))
    f.edge(step, step.args["tensor1"], two.of * f.shared(step, axes, step.args["tensor1"]))
    f.edge(step, step.args["tensor2"], one.of * f.shared(step, axes, step.args["tensor2"]))
    x = f.value(step.args["self"])
    found = _largest(f, step, [x, one, two])
    return replace(found, of=f.setting.order.larger(x.of, one.of * two.of))


# -- sums over axes --------------------------------------------------------------------------------


def _reduced(step: Step, x: Value) -> Power:
    """How the number of entries grows that become one."""
    return x.total / total(step.axes[0])


@rule("mean", "nanmean")
def mean(f: Fold, step: Step) -> Found:
    """A mean; entries share its gradient."""
    given = operand(step)
    x = f.value(given)
    f.edge(step, given, ONE / _reduced(step, x))
    maker = x.maker if _reduced(step, x) == 1 else None
    return replace(f.like(step, x), parameter=None, maker=maker)


@rule("sum", "nansum")
def summed(f: Fold, step: Step) -> Found:
    """A sum: what training makes adds up."""
    given = operand(step)
    x = f.value(given)
    count = _reduced(step, x)
    f.edge(step, given, ONE)
    found = replace(f.like(step, x), of=x.of * count, parameter=None, scores=x.scores or count != 1)
    return replace(found, maker=x.maker if count == 1 else None)


@rule("amax", "amin", "logsumexp", "median", "nanmedian", "aminmax", "mode", "kthvalue", "prod")
def extreme(f: Fold, step: Step) -> Found:
    """The largest of some entries, whose number must stay."""
    given = operand(step)
    x = f.value(given)
    if f.grows(_reduced(step, x)):
        return f.guess(step, "the number of entries of which it takes one grows")
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
    """The root of a sum of squares."""
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
    """A variance or its root, about the mean of a coordinate."""
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
    """Division by the size."""
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
    """Weights of a mean; what it reads has to have size 1."""
    given = operand(step)
    x = f.value(given)
    factor = f.settle(step, x)
    share = ONE / x.axes[int(step.args.get("dim", -1))] if x.axes else ONE
    of = ONE if step.kind.startswith("log") else share
    f.edge(step, given, factor * of)
    return replace(f.like(step, x), of=of, parameter=None, maker=None, scores=False)


@rule("cdist")
def distances(f: Fold, step: Step) -> Found:
    """Lengths of differences of rows."""
    refs = step.args["x1"], step.args["x2"]
    values = [f.value(ref) for ref in refs]
    count = values[0].axes[-1] ** HALF
    for ref in refs:
        f.edge(step, ref, ONE / count)
    found = _largest(f, step, values)
    return replace(found, of=found.of * count)


@rule("cosine_similarity")
def cosine(f: Fold, step: Step) -> Found:
    """A cosine, whose gradient the coordinates share."""
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
    """A loss at the end of the model."""
    for ref in step.refs:
        x = f.value(ref)
        if x.real and any(map(f.grows, x.axes)):
            raise KcalcError(
                f"the loss {step.name!r} reads {ref.name!r}, which grows with "
                f"the width: the loss of a network of another width is another one; give it a "
                f"readout with a fixed number of channels"
            ).at(step.name)
        f.edge(step, ref, f.settle(step, x))
    return several(step, [Value(ONE, axes) for axes in step.axes])


# -- weights ---------------------------------------------------------------------------------------


def _weighed(f: Fold, step: Step, x: Ref, w: Ref, fans: tuple[Power, Power, Power]) -> Value:
    """A product with weights."""
    read, weights = f.value(x), f.value(w)
    use = f.weights(step, read, weights, fans)
    f.edge(step, x, f.backward_of(use))
    f.gained(step, weights, use)
    f.bias(step, use, step.args.get("bias"))
    return Value(use.output, step.axes[0], maker=use.node)


def _computed(f: Fold, w: Value) -> str:
    """Why weights have no rule."""
    return (
        "its weights are computed from parameters, and only their order, fixed factors, gains and "
        "weight norm have rules"
        if w.fixed
        else ""
    )


@rule("linear")
def linear(f: Fold, step: Step) -> Found:
    """Weights (outputs, inputs)."""
    w = f.value(step.args["weight"])
    if w.parameter is None:
        if w.fixed and not w.numbers:
            return f.guess(step, _computed(f, w))
        if isinstance(step.args.get("bias"), Ref):
            f.edge(step, step.args["bias"], f.shared(step, step.axes[0], step.args["bias"]))
        return contraction(f, step, step.args["input"], step.args["weight"], w.axes[-1])
    out = w.axes[0] if len(w.axes) > 1 else ONE
    return _weighed(f, step, step.args["input"], step.args["weight"], (w.axes[-1], out, out))


@rule(
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
)
def convolution(f: Fold, step: Step) -> Found:
    """Weights (outputs, inputs of a group, taps), a transposed convolution's the other way."""
    given = step.args["input"] if "input" in step.args else step.args["self"]
    w, x = f.value(step.args["weight"]), f.value(given)
    if w.parameter is None:
        return f.guess(step, _computed(f, w))
    turned = "transpose" in step.kind or bool(step.args.get("transposed"))
    groups = _ratio(f, step, "groups")
    channels = w.axes[1] * groups if turned else w.axes[0]
    fan_in = w.axes[0] / groups if turned else w.axes[1]
    found = _weighed(f, step, given, step.args["weight"], (fan_in, channels / groups, channels))
    # a convolution of every channel by itself keeps parts apart
    return replace(found, unlike=x.unlike if f.grows(groups) else None)


@rule("embedding")
def embedding(f: Fold, step: Step) -> Found:
    """Rows of a table."""
    w = f.value(step.args["weight"])
    if w.parameter is None:
        return f.guess(step, _computed(f, w))
    ids = Value(ONE, (), False)
    channels = w.axes[1]
    use = f.weights(step, ids, w, (ONE, channels, channels), hot=True)
    return Value(use.output, step.axes[0], maker=use.node)


@rule("matmul", "mm", "bmm", "mv", "dot", "vdot", "inner", "outer")
def product_of(f: Fold, step: Step) -> Found:
    """Matrices: weights times a feature map, or two feature maps."""
    names = [name for name in step.args if isinstance(step.args[name], Ref)]
    first, second = step.args[names[0]], step.args[names[1]]
    one, two = f.value(first), f.value(second)
    inner = one.axes[-1]
    if step.kind == "outer":
        inner = ONE
    if two.parameter is not None and not one.fixed:
        out = two.axes[-1] if len(two.axes) > 1 else ONE
        return _weighed(f, step, first, second, (inner, out, out))
    if one.parameter is not None and not two.fixed:
        out = one.axes[-2] if len(one.axes) > 1 else ONE
        return _weighed(f, step, second, first, (inner, out, out))
    return contraction(f, step, first, second, inner)


@rule("addmm", "baddbmm", "addmv", "addbmm")
def added_matrices(f: Fold, step: Step) -> Found:
    """A bias, and a product of matrices."""
    one, two = step.refs[-2:]
    found = product_of(f, replace(step, args={"self": one, "other": two}))
    use = f.uses.get(step.name)
    if use is not None:
        f.bias(step, use, step.args["self"])
    else:
        f.edge(step, step.args["self"], f.shared(step, step.axes[0], step.args["self"]))
    return found


def contraction(f: Fold, step: Step, one: Ref, two: Ref, inner: Power) -> Found:
    """Sums of products of two feature maps, which training aligns."""
    a, b = f.value(one), f.value(two)
    found = Value(a.of * b.of * inner, step.axes[0])
    out = total(step.axes[0])
    f.edge(step, one, b.of * _more(f, out * inner, a.total))
    f.edge(step, two, a.of * _more(f, out * inner, b.total))
    return replace(found, scores=f.grows(inner))


def _more(f: Fold, every: Power, own: Power) -> Power:
    ratio = every / own
    return ratio if f.setting.order.grows(ratio) else ONE


@rule("einsum")
def einsum(f: Fold, step: Step) -> Found:
    """A contraction by letters."""
    text = str(step.args["equation"]).replace(" ", "")
    refs = list(step.args["tensors"])
    if "." in text or len(refs) > 2:
        return f.guess(step, "an einsum with ... or more than two arrays")
    terms, _, out = text.partition("->")
    letters = terms.split(",")
    growth: dict[str, Power] = {}
    for names, ref in zip(letters, refs, strict=True):
        growth |= dict(zip(names, f.value(ref).axes, strict=True))
    inner = total(growth[c] for c in growth if c not in out)
    if len(refs) == 1:
        x = f.value(refs[0])
        f.edge(step, refs[0], ONE)
        return replace(f.like(step, x), of=x.of * inner, parameter=None)
    values = [f.value(ref) for ref in refs]
    for k in (1, 0):
        w, x = values[k], values[1 - k]
        if w.parameter is not None and not x.fixed:
            alone = total(growth[c] for c in letters[k] if c in out and c not in letters[1 - k])
            fans = (inner, alone, total(growth[c] for c in letters[k] if c in out))
            return _weighed(f, step, refs[1 - k], refs[k], fans)
    return contraction(f, step, refs[0], refs[1], inner)


@rule(
    "scaled_dot_product_attention",
    "scaled_dot_product_flash_attention",
    "scaled_dot_product_flash_attention_for_cpu",
    "scaled_dot_product_efficient_attention",
)
def attention(f: Fold, step: Step) -> Found:
    """Scores of size 1: divided by the channels of a head."""
    refs = step.args["query"], step.args["key"], step.args["value"]
    q, k, v = map(f.value, refs)
    width = q.axes[-1]
    given = step.args.get("scale")
    scale = width**-HALF if given is None else _ratio(f, step, "scale")
    size = q.of * k.of * width * scale
    factor = f.settle(step, Value(size, step.axes[0], scores=True))
    sent = factor * scale * v.of * v.axes[-1]
    f.edge(step, refs[0], sent * k.of)
    more = _more(f, total(step.axes[0]), v.total)
    f.edge(step, refs[1], sent * q.of * more)
    f.edge(step, refs[2], more)
    mask = step.args.get("attn_mask")
    if isinstance(mask, Ref):
        f.edge(step, mask, v.of * v.axes[-1])
        f.role(mask, "vector")
    found = [Value(v.of, axes, real) for axes, real in zip(step.axes, step.real, strict=True)]
    return several(step, found)


@rule("weight_norm", "weight_norm_interface")
def weight_norm(f: Fold, step: Step) -> Found:
    """g v / |v|: v is set like plain weights, g is the length of their rows."""
    v, g = f.value(step.args["v"]), f.value(step.args["g"])
    if v.parameter is None or g.parameter is None:
        return f.guess(step)
    found = replace(v, axes=step.axes[0], length=g.parameter)
    return several(step, [found, *(Value(ONE, axes, False) for axes in step.axes[1:])])


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(f: Fold, step: Step) -> Found:
    """Steps share weights, and their number stays: every use of a matrix has the same rule."""
    weights = step.args["params"]
    biases = bool(step.args["has_biases"])
    per = 4 if biases else 2
    ends = 2 if step.args["bidirectional"] else 1
    if len(weights) != per * int(step.args["num_layers"]) * ends:
        return f.guess(step, "it projects its state")
    x = f.value(step.args["input"])
    for start in range(0, len(weights), per):
        group = weights[start : start + per]
        first = start // per < ends
        values = [f.value(ref) for ref in group]
        if any(one.parameter is None for one in values):
            return f.guess(step, "its weights are computed")
        for place, w in enumerate(values[:2]):
            read = x if first and place == 0 else Value(ONE, x.axes)
            use = f.weights(step, read, w, (w.axes[1], w.axes[0], w.axes[0]))
            if biases:
                f.kept.append(Kept(values[2 + place].parameter or "", use.node, "bias"))
            if first and place == 0:
                f.edge(step, step.args["input"], f.backward_of(use))
    hidden = step.args.get("hx")
    for ref in leaves(hidden):
        if isinstance(ref, Ref):
            f.edge(step, ref, ONE)
    return several(
        step, [Value(ONE, axes, real) for axes, real in zip(step.axes, step.real, strict=True)]
    )
