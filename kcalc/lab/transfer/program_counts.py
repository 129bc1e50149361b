"""Check counts that must not change (experts, streams), and find normalised readouts (codes)."""

from __future__ import annotations

from ...foundation.errors import KcalcError
from .program import Step
from .program_sizes import Fold, Value

COPIES = ("expand", "repeat", "tile", "expand_as", "broadcast_to")
NORMS = ("layer_norm", "rms_norm", "linalg_vector_norm", "norm", "frobenius_norm")
SOFTMAX = ("softmax", "safe_softmax", "log_softmax", "softmin")


def check_counts(f: Fold, step: Step) -> None:
    """Check the counts at a step, and record operations that normalise the result of a readout.

    Raises: KcalcError if the number of experts, of selected experts, or of streams changes.
    """
    refs = step.refs
    if not refs:
        return
    x = f.value(refs[0])
    made = f.uses.get(x.maker)
    if step.kind in NORMS and made is not None and made.role == "readout":
        f.codes.append(step.name)
    if step.kind == "topk":
        own, base = step.args.get("k"), step.base.get("k")
        if own != base:
            raise KcalcError(
                f"node {step.name!r} selects {own} entries, but {base} in the base model. "
                "The sum of squared gates depends on this number, but not as a power of the "
                "width. Use the same k at every width"
            ).at(step.name)
        _check_gates(f, step, x)
    elif step.kind in SOFTMAX and x.maker is not None and not x.scores:
        _check_gates(f, step, x)
    elif step.kind in COPIES:
        _check_copies(f, step, x)


def _check_gates(f: Fold, step: Step, x: Value) -> None:
    """Reject routers that compute weights for more entries than in the base network."""
    dim = step.args.get("dim", -1)
    if x.axes and f.grows(x.axes[-1 if dim is None else int(dim)]):
        raise KcalcError(
            f"node {step.name!r} computes weights for more entries than in the base model. "
            "If these are experts, their gates and gradients shrink by a factor that is not "
            "a power of the width, so no rule transfers. Use the same number of experts at "
            "every width"
        ).at(step.name)


def _check_copies(f: Fold, step: Step, x: Value) -> None:
    """Reject a feature map that grows along an axis of copies as well as along its channels."""
    if not x.real or x.fixed:
        return
    axes = step.axes[0]
    old = (*([None] * (len(axes) - len(x.axes))), *x.axes)
    new = [a for a, b in zip(axes, old, strict=True) if f.grows(a) and (b is None or a != b)]
    kept = [a for a, b in zip(axes, old, strict=True) if f.grows(a) and a == b]
    if new and kept:
        raise KcalcError(
            f"node {step.name!r} makes more copies of a feature map than in the base model. "
            "If these are residual streams, their number changes how much each of them "
            "learns, so no rule transfers. Use the same number of streams at every width"
        ).at(step.name)
