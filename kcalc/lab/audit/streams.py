"""The criterion for several residual streams, and remarks on their gates."""

from __future__ import annotations

from collections.abc import Iterator

from .findings import Finding, criterion, named
from .gates import SUMS_OFF
from .operations import SOFTMAX
from .roots import contraction_weight
from .separate_streams import Level
from .stream_states import bits, copies
from .subject import Subject

DIVISIONS = ("div", "true_divide", "logsumexp", "_log_softmax")
REPEATED = 4  # minimum number of divisions that count as Sinkhorn iterations
GATES = SOFTMAX | {"sigmoid", "exp", "tanh"}


@criterion(
    "STREAM-ALIKE",
    "error",
    "residual streams start as copies, and permuting some of them does not change the weights that "
    "mix, read or write the streams, or the weights of the readout",
)
def streams_alike(subject: Subject) -> Iterator[Finding]:
    """Report residual streams that train like a single stream."""
    gates = subject.stream_weights
    groups = [] if gates is None else gates.alike()
    if gates is None or not groups:
        return
    names = subject.gates
    which = "; ".join(", ".join(str(i + 1) for i in group) for group in groups)
    yield Finding(
        "STREAM-ALIKE",
        "error",
        names,
        f"the {gates.count} residual streams start with equal values, and nothing distinguishes "
        f"streams {which}. Their values and gradients stay equal, so they train as a single stream",
        "let each branch read mainly from one stream (for example, with bias 3 for this "
        "stream and -3 for the others), or write to the streams with different weights",
        subject.place(names),
    )


def stream_remarks(subject: Subject) -> list[str]:
    """Return remarks on the gates of several streams. These are not faults."""
    gates, texts = subject.stream_weights, list[str]()
    still = subject.idle
    if still:
        texts.append(
            "the gradient is 0 or only rounding error for parameters that act as weights of "
            "residual streams, because the streams are equal at initialisation or the readout adds "
            f"them up with equal weights: {named(still)}"
        )
    if _only_truncation(subject):
        texts.append(
            "the streams are equal at initialisation, so the gradients of their mixing matrices "
            "come only from the truncation error of the Sinkhorn iterations"
        )
    if gates is not None and gates.sums_off > SUMS_OFF:
        texts.append(
            "the matrices that mix the streams have row or column sums that differ from 1 by up to "
            f"{gates.sums_off:.2g}; use more Sinkhorn iterations to make the matrices doubly "
            "stochastic"
        )
    structure = subject.measured.structure
    levels = structure.levels
    if len(structure.several) > 1 and gates is None:
        texts.append(
            f"the weights of the {structure.several[0].count} residual streams could not be "
            "measured, so STREAM-ALIKE does not examine them; it needs a single group of streams, "
            "mixed by weighted sums"
        )
    if levels and gates is None:
        texts.append(
            f"{len(levels[0].sums)} residual streams are in separate tensors, and their "
            "weights could not be measured, so STREAM-ALIKE does not examine them; it needs a "
            "single group of streams that start as copies, mixed by weighted sums"
        )
    for group in structure.groups[1:]:
        texts.append(
            "STREAM-ALIKE examines only one group of residual streams, not the group of "
            f"{len(group[0].sums)} streams that ends with the branch of "
            f"{named(_writers(group[-1]))}; audit this part of the model on its own"
        )
    variance = _logits(subject)
    if variance > 1:
        texts.append(
            f"the logits of the stream gates have a variance of {variance:.3g} over the examples, "
            "so the gates start far from the values that their biases set"
        )
    return texts


def _writers(level: Level) -> tuple[str, ...]:
    """Return the weights that end the branch of a level."""
    weight = contraction_weight(level.end)
    return () if weight is None else weight.weights


def _only_truncation(subject: Subject) -> bool:
    """Return whether all mixtures come from Sinkhorn iterations and the streams start equal."""
    program, seen = subject.measured.structure.program, 0
    for state in subject.measured.structure.several:
        own = (program.values[i] for i in bits(state.skip.ancestors & ~seen))
        if sum(value.op in DIVISIONS for value in own) < REPEATED:
            return False
        if not copies(state.value.content, state.count):
            return False
        seen |= state.value.ancestors
    return bool(seen)


def _logits(subject: Subject) -> float:
    """Return the variance of the gates' arguments over the examples, averaged over all gates."""
    program, found, seen = subject.measured.structure.program, list[float](), 0
    for state in subject.measured.structure.several:
        places = state.writer.value.tensor.numel() // state.writer.value.tensor.shape[-1]
        for value in (program.values[i] for i in bits(state.value.ancestors & ~seen)):
            count, rest = divmod(value.tensor.numel(), max(places, 1))
            if value.op not in GATES or not value.data or rest or count % state.count:
                continue
            if count <= state.count * (state.count + 2) and places > 1:
                logits = value.data[0].content.detach().double().reshape(places, -1)
                found.extend(logits.var(0).tolist())
        seen |= state.value.ancestors
    return sum(found) / max(len(found), 1)
