"""The criterion on several residual streams, and remarks on their gates."""

from __future__ import annotations

from collections.abc import Iterator

from .findings import Finding, criterion
from .gates import gates_of
from .subject import Subject


@criterion(
    "STREAM-ALIKE",
    "error",
    "residual streams start as copies, and a permutation of them leaves the weights of all "
    "mixtures, reads and writes, and those of the readout, unchanged",
)
def streams_alike(subject: Subject) -> Iterator[Finding]:
    """Yield residual streams that train as one."""
    gates = gates_of(subject)
    groups = [] if gates is None else gates.alike()
    if gates is None or not groups:
        return
    names = subject.gates
    which = "; ".join(", ".join(str(i + 1) for i in group) for group in groups)
    yield Finding(
        "STREAM-ALIKE",
        "error",
        names,
        f"the {gates.count} residual streams start equal, and nothing distinguishes streams "
        f"{which}: their values and gradients stay equal, so they train as one",
        "give each branch a home stream that it reads most (biases such as 3 there and -3 "
        "elsewhere), or write to the streams with different weights",
        subject.place(names),
    )
