"""Every public result has its habits.

a short repr, one rich form, plain data, assumptions, and plots that say what they show.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
from functools import cache
from html.parser import HTMLParser
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pytest
from result_examples import RESULTS

import kcalc as kc
from kcalc.network.layers import KINDS

pytestmark = pytest.mark.usefixtures("untouched_pyplot")

# what makes a network, an array, a number, a file or a SymPy expression, which have their own
# habits
OTHER_MAKERS = {
    "abc_exponents",
    "apply_edits",
    "load_edited",
    "load_edits",
    "averaging_shortcuts",
    "sinkhorn",
    "chain",
    "empirical_ntk",
    "expectation",
    "gain",
    "kept_kernel",
    "large_batch",
    "load_json",
    "normalise_locations",
    "pair_expectation",
    "q_values",
    "repeat",
    "report",
    "residual",
    "save_json",
    "skip_network",
    "sklearn_kernel",
    "slope_polynomial",
    "token_gain",
    "with_residual_weights",
}
# what rests on no hypothesis: inputs of the calculus, statements about graphs, enclosures,
# measurements and what was trained
NO_HYPOTHESES = {
    "Edits",
    "Network",
    "Activation",
    "Transformed",
    "Table",
    "Enclosure",
    "FixedPoint",
    "ActivationBounds",
    "Composition",
    "SlopeBounds",
    "Limit",
    "CoordinateCheck",
    "DataDependent",
    "OutputScale",
    "Spectrum",
    "Reading",
    "ResidualBlock",
    "ConstantsTable",
    "Constants",
    "Solutions",
    "Subnetworks",
    "Subnetwork",
    "Report",
    "Claim",
    "Finding",
    "Comparison",
    "Run",
    "Jacobians",
    "QTable",
    "TrainingSpectra",
    "VarianceSpectra",
    "Sampling",
    "Audit",
    "TokenTable",
    "ParameterRule",
    "TrainedCoordinates",
    "TransferCheck",
}
# kc.save_json writes networks; an expression is SymPy's
INPUTS = {
    "Sampling",
    "Network",
    "Activation",
    "Transformed",
    "Composition",
}
# measurements, which compile or load a framework
LONG = {
    "audit",
    "read",
    "coordinate_check",
    "hessian_blocks",
    "verify_kernels",
    "claims.verify",
    "claims.verify.findings",
    "lsuv",
    "wli",
    "scale_output",
    "to_jax",
    "verification.layer_jacobians",
    "ntk.spatial",
    "c_map.spatial",
}
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in RESULTS]
CLASSES = {
    "Activation": "activation",
    "Audit": "audit",
    "Constants": "shape.constants[]",
    "Edits": "shape.edits",
    "DepthLaws": "depth_laws",
    "DepthProfile": "depth_profile",
    "Fluctuations": "fluctuations",
    "TiedReadout": "tied_readout",
    "Equilibrium": "equilibrium",
    "Gradients": "gradients",
    "JacobianSpectrum": "jacobian_spectrum",
    "MapComparison": "compare",
    "Model": "to_jax",
    "MoEStatistics": "moe_statistics",
    "Moments": "moments",
    "Network": "Network",
    "ParameterRule": "transfer.parameters",
    "Reading": "read",
    "RegionalShaping": "shape.regions",
    "ResidualSpectrum": "residual_spectrum",
    "Sampling": "Sampling",
    "Scaling": "scaling",
    "Shaping": "shape",
    "Smoothness": "smoothness",
    "TrainedCoordinates": "trained_coordinates",
    "Transfer": "transfer",
    "TransferCheck": "transfer_check",
}
VOID = {"br", "hr", "img", "input"}


@cache
def made(name: str) -> Any:
    return RESULTS[name]()


class _Balanced(HTMLParser):
    """Complains of tags that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        """Nothing is left open."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", NAMES)
def test_a_result_shows_itself_is_plain_data_and_states_its_assumptions(name: str) -> None:
    one = made(name)
    kinds = [getattr(kc, kind) for kind, example in CLASSES.items() if example == name]
    assert all(isinstance(one, kind) for kind in kinds)
    line = repr(one)
    assert "\n" not in line and len(line) < 200, line
    assert " object at 0x" not in line
    rich = [habit for habit in ("_repr_latex_", "_repr_html_") if hasattr(one, habit)]
    assert len(rich) == 1, rich
    text = getattr(one, rich[0])()
    if rich == ["_repr_latex_"]:
        assert text is None or (text[0] == text[-1] == "$" and text.count("{") == text.count("}"))
    else:
        assert len(text) < 300_000
        _Balanced(text)
        long = [line for line in str(one).splitlines() if "\n" not in line]
        assert len(long) < 130, "a long table is cut"
    assert not hasattr(one, "_repr_svg_")
    kind = type(one).__name__
    if kind not in INPUTS:
        json.dumps(one.to_dict(), allow_nan=False)
    if kind not in NO_HYPOTHESES:
        notes = one.assumptions
        assert isinstance(notes, tuple) and all(note.text and note.kind for note in notes)


@pytest.mark.parametrize("name", NAMES)
def test_a_plot_says_what_it_shows(name: str) -> None:
    one = made(name)
    if not hasattr(one, "plot"):
        return
    before = dict(matplotlib.rcParams)
    drawn = one.plot()
    assert dict(matplotlib.rcParams) == before
    panels = drawn.axes if hasattr(drawn, "savefig") else [drawn]
    for ax in panels:
        if name == "subnetworks" or ax.get_label() == "<colorbar>":  # a drawing, without axes
            continue
        curves = [line for line in ax.lines if line.get_gid() not in ("zero", "branches")]
        assert ax.get_legend() is not None or not curves
        assert ax.get_xlabel() and ax.get_ylabel() and ax.get_title()
        assert max(map(len, ax.get_title().splitlines())) < 80
        if ax.get_ylabel().startswith(r"$\mathcal{C}"):
            assert ax.get_aspect() == 1.0 or ax.get_box_aspect() == 1
            assert any(line.get_gid() == "identity" for line in ax.lines)
    plt.close("all")


def test_nothing_public_is_left_out() -> None:
    covered = {name.split(".")[0].rstrip("[]") for name in RESULTS} | OTHER_MAKERS
    public = {name for name in kc.__all__ if inspect.isfunction(getattr(kc, name))}
    assert public <= covered, (
        f"give {sorted(public - covered)} an example in tests/result_examples.py"
    )
    for name in kc.__all__:
        given = getattr(kc, name)
        if inspect.isclass(given) and not issubclass(given, BaseException):
            assert CLASSES.get(name) in RESULTS, (
                f"give {name} an example in tests/result_examples.py"
            )


ROOMS = (
    "activations",
    "architectures",
    "claims",
    "gains",
    "layers",
    "shaping",
    "spectrum",
    "symbols",
    "token_mixing",
    "training",
    "verification",
)


@pytest.mark.parametrize("room", ROOMS)
def test_modules_that_users_name_show_their_public_names_and_nothing_else(room: str) -> None:
    module = getattr(kc, room, None) or importlib.import_module(f"kcalc.{room}")
    assert module.__all__ and sorted(dir(module)) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
    assert room != "layers" or set(dir(module)) == {*KINDS, "KINDS", "Layer"}
