"""Rules for operations with weights: dense layers, convolutions, attention, recurrent layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .powers import HALF, ONE, Power
from .program import Ref, Step, leaves, total
from .program_sizes import Fold, Found, Value
from .program_table import more, ratio_of, rule, several


def _weighed(f: Fold, step: Step, x: Ref, w: Ref, fans: tuple[Power, Power, Power]) -> Value:
    """Apply weights to a feature map."""
    read, weights = f.value(x), f.value(w)
    use = f.weights(step, read, weights, fans)
    f.edge(step, x, f.backward_of(use))
    f.gained(step, weights, use)
    found = Value(use.output, step.axes[0], maker=use.node)
    return _biased(f, step, found, step.args.get("bias"))


def _biased(f: Fold, step: Step, found: Found, given: Any) -> Value:
    """Add the bias of the weights, or another array, to the result of a product."""
    assert isinstance(found, Value)
    if given is None:
        return found
    use, bias = f.uses.get(found.maker), f.value(given)
    if use is not None and bias.parameter is not None:
        f.bias(step, use, given)
        return found
    f.edge(step, given, f.shared(step, step.axes[0], given))
    return replace(found, of=f.setting.order.larger(found.of, bias.of), maker=None)


def _computed(f: Fold, w: Value) -> str:
    """Return why computed weights have no rule, or "" for arrays that are not weights."""
    return (
        "its weights are computed from parameters, and there are rules only for reordering, fixed "
        "factors, gains and weight norm"
        if w.fixed
        else ""
    )


@rule("linear")
def linear(f: Fold, step: Step) -> Found:
    """Apply weights of shape (outputs, inputs)."""
    w = f.value(step.args["weight"])
    if w.parameter is None:
        if w.fixed and not w.numbers:
            return f.guess(step, _computed(f, w))
        found = contraction(f, step, step.args["input"], step.args["weight"], w.axes[-1])
        return _biased(f, step, found, step.args.get("bias"))
    out = w.total / w.axes[-1]  # 1 for a vector, which has one output
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
    """Apply weights (outputs, inputs per group, taps). Transposed convolutions swap two axes."""
    given = step.args["input"] if "input" in step.args else step.args["self"]
    w, x = f.value(step.args["weight"]), f.value(given)
    if w.parameter is None:
        return f.guess(step, _computed(f, w))
    turned = "transpose" in step.kind or bool(step.args.get("transposed"))
    groups = ratio_of(f, step, "groups")
    channels = w.axes[1] * groups if turned else w.axes[0]
    fan_in = w.axes[0] / groups if turned else w.axes[1]
    found = _weighed(f, step, given, step.args["weight"], (fan_in, channels / groups, channels))
    # a depthwise convolution keeps parts apart
    return replace(found, unlike=x.unlike if f.grows(groups) else None)


@rule("embedding", "embedding_bag")
def embedding(f: Fold, step: Step) -> Found:
    """Look up rows of a table."""
    w = f.value(step.args["weight"])
    if w.parameter is None:
        return f.guess(step, _computed(f, w))
    ids = Value(ONE, (), False)
    channels = w.axes[1]
    use = f.weights(step, ids, w, (ONE, channels, channels), hot=True)
    found = Value(use.output, step.axes[0], maker=use.node)
    return several(step, [found, *(Value(ONE, axes, False) for axes in step.axes[1:])])


@rule("matmul", "mm", "bmm", "mv", "dot", "vdot", "inner", "outer", "sparse_mm")
def product_of(f: Fold, step: Step) -> Found:
    """Multiply matrices: weights and a feature map, or two feature maps."""
    names = [name for name in step.args if isinstance(step.args[name], Ref)]
    first, second = step.args[names[0]], step.args[names[1]]
    one, two = f.value(first), f.value(second)
    outer = step.kind == "outer"
    inner = ONE if outer else one.axes[-1]
    if two.parameter is not None and not one.fixed:
        axis = -2 if step.kind == "inner" else -1
        out = two.axes[axis] if outer or len(two.axes) > 1 else ONE
        return _weighed(f, step, first, second, (inner, out, out))
    if one.parameter is not None and not two.fixed:
        out = one.axes[-1] if outer else one.axes[-2] if len(one.axes) > 1 else ONE
        return _weighed(f, step, second, first, (inner, out, out))
    return contraction(f, step, first, second, inner)


@rule("addmm", "baddbmm", "addmv", "addbmm", "sparse_addmm")
def added_matrices(f: Fold, step: Step) -> Found:
    """Add a bias to a product of matrices."""
    one, two = step.refs[-2:]
    found = product_of(f, replace(step, args={"self": one, "other": two}))
    return _biased(f, step, found, step.args["self"])


def contraction(f: Fold, step: Step, one: Ref, two: Ref, inner: Power) -> Value:
    """Sum products of two feature maps, which training aligns."""
    a, b = f.value(one), f.value(two)
    found = Value(a.of * b.of * inner, step.axes[0])
    out = total(step.axes[0])
    f.edge(step, one, b.of * more(f, out * inner, a.total))
    f.edge(step, two, a.of * more(f, out * inner, b.total))
    return replace(found, scores=f.grows(inner))


@rule("grouped_mm", "grouped_mm_fallback")
def grouped(f: Fold, step: Step) -> Found:
    """Apply all experts of a mixture at once, which has no rule."""
    return f.guess(
        step,
        "it applies all experts of a mixture at once; if this is a transformers model, build it "
        "with experts_implementation='eager'",
    )


@rule("einsum")
def einsum(f: Fold, step: Step) -> Found:
    """Compute a contraction given by an ``einsum`` equation."""
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
    """Compute attention.

    Its scores have size 1, because they are divided by the number of channels per head.
    """
    refs = step.args["query"], step.args["key"], step.args["value"]
    q, k, v = map(f.value, refs)
    width = q.axes[-1]
    given = step.args.get("scale")
    scale = width**-HALF if given is None else ratio_of(f, step, "scale")
    size = q.of * k.of * width * scale
    factor = f.settle(step, Value(size, step.axes[0], scores=True))
    sent = factor * scale * v.of * v.axes[-1]
    f.edge(step, refs[0], sent * k.of)
    copies = more(f, total(step.axes[0]), v.total)
    f.edge(step, refs[1], sent * q.of * copies)
    f.edge(step, refs[2], copies)
    mask = step.args.get("attn_mask")
    if isinstance(mask, Ref):
        pairs = total(q.axes[:-1]) * k.axes[-2]
        f.edge(step, mask, v.of * v.axes[-1] * more(f, pairs, f.value(mask).total))
        f.role(mask, "vector")
    found = [Value(v.of, axes, real) for axes, real in zip(step.axes, step.real, strict=True)]
    return several(step, found)


@rule("weight_norm", "weight_norm_interface")
def weight_norm(f: Fold, step: Step) -> Found:
    """Compute g v / |v|, with v initialised like plain weights and g the norm of the rows."""
    v, g = f.value(step.args["v"]), f.value(step.args["g"])
    if v.parameter is None or g.parameter is None:
        return f.guess(step)
    found = replace(v, axes=step.axes[0], length=g.parameter)
    return several(step, [found, *(Value(ONE, axes, False) for axes in step.axes[1:])])


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(f: Fold, step: Step) -> Found:
    """Apply a recurrent layer. Its steps share weights, so all uses of a matrix share a rule."""
    weights = step.args["params"]
    biases = bool(step.args["has_biases"])
    per = 4 if biases else 2
    ends = 2 if step.args["bidirectional"] else 1
    if len(weights) != per * int(step.args["num_layers"]) * ends:
        return f.guess(step, "it projects its hidden state")
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
                f.bias(step, use, group[2 + place])
            if first and place == 0:
                f.edge(step, step.args["input"], f.backward_of(use))
    for ref in leaves(step.args["hx"]):
        f.edge(step, ref, ONE)
    return several(
        step, [Value(ONE, axes, real) for axes, real in zip(step.axes, step.real, strict=True)]
    )
