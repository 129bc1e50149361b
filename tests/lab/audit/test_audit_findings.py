"""Every defect of a broken model is found, and nothing in the mended one."""

from __future__ import annotations

import pytest
from audit_models import PAIRS, Pair

from kcalc.lab.audit import audit


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
def test_the_defect_is_found_with_its_parameter_and_the_mended_model_is_silent(pair: Pair) -> None:
    broken, mended = (
        audit(build, pair.inputs, **pair.options, optimizer=optimizer)
        for build, optimizer in zip((pair.broken, pair.mended), pair.optimizers, strict=True)
    )
    found = [f for f in broken.findings if f.code == pair.code]
    assert found, broken.findings
    assert {f.severity for f in found} == {pair.severity}
    names = [name for f in found for name in f.parameters]
    assert pair.parameter in names if pair.parameter else True
    assert pair.code not in {f.code for f in mended.findings}, mended.findings
    assert not mended.found("error"), mended.findings
