"""kcalc shape: every method from the command line."""

from __future__ import annotations

import argparse
import json
import math
import re
from inspect import signature

import pytest
from command_words import words

from kcalc.cli import main, parser
from kcalc.shaping import METHODS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--method tat --eta .9", ("negative slope", "0.4305229485", "max C_f(0)")),
        ("--activation tanh --method tat --tau .3", ("alpha", "C''(1)", "0.006")),
        ("--activation tanh --method eoc --sigma-b .05", ("sigma_w", "1.122539005", "chi_1")),
        ("--activation tanh --q-slope none", ("dropped for tanh", "C'(1)")),
        ("--activation tanh --q-slope minimize", ("the smallest compatible",)),
        ("--method he", ("C_f(0)", "2/fan_in")),
        ("--activation tanh --method normalisation", ("gamma", "Q_f(1)")),
        (
            "--activation elu --method self_normalising --parameters halves",
            ("1.67326*elu(x) for x < 0", "E phi"),
        ),
        ("--method looks_linear", ("relu(x) - relu(-x)", "C'(1)")),
        ("--activation leaky_relu --free-slope no", ("alpha", "Q'(1) = 1 is dropped")),
    ],
)
def test_methods_print_their_constants(
    arguments: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shape", "vanilla-50", *arguments.split()]) == 0
    printed = capsys.readouterr().out
    for word in words:
        assert word in printed


def test_nearly_plain_relus_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shape", "vanilla-13", "--method", "tat"]) == 0
    assert "below 0.05), so shaping changes little" in capsys.readouterr().out
    assert main(["shape", "vanilla-13", "--method", "tat", "--json", "-"]) == 0
    noted = json.loads(capsys.readouterr().out)["notes"]
    assert any("eta=0.5 gives" in note for note in noted)
    assert main(["shape", "vanilla-13", "--method", "tat", "--eta", "0.5"]) == 0
    assert "changes little" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--eta .9", "--method tat"),
        ("--method tat --zeta 2", "target of the method dks"),
        ("--method tat --tau .3", "relu has a kink at 0"),
        ("--method eoc --q-star 2 --sigma-b 1", "exactly one"),
        ("--method he --sigma-b 1", "takes no targets"),
        ("--method unheard", "nearest known"),
        ("--method nf --slope 2", "target of the method residual_weights"),
        ("--free-slope perhaps", "expected yes or no"),
    ],
)
def test_mistakes_are_one_line(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        assert main(["shape", "vanilla-50", *arguments.split()]) == 2
    except SystemExit as stop:
        assert stop.code == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_help_names_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["shape", "--help"])
    printed = capsys.readouterr().out
    assert all(method in printed for method in METHODS) and "examples:" in printed


def offered() -> dict[str, set[str]]:
    """{method: the targets whose options stand under a heading that names it}."""
    (verbs,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    found: dict[str, set[str]] = {method: set() for method in METHODS}
    for group in verbs.choices["shape"]._action_groups:
        heading = (group.title or "").partition("targets of ")[2]
        named = set(re.findall(r"\w+", heading)) & set(METHODS)
        for method in set(METHODS) - named if heading.startswith("all ") else named:
            found[method] |= {action.dest for action in group._group_actions}
        for action in group._group_actions:  # a common option names its methods
            named = re.match(r"with ([\w ]+): ", action.help or "")
            for method in named[1].split(" and ") if named else ():
                found[method].add(action.dest)
    return found


def test_every_target_of_every_method_has_an_option() -> None:
    for method, function in METHODS.items():
        wanted = set(signature(function).parameters) - {"network", "activation", "rule"}
        # the network's own option; --residual-weight says the same
        wanted -= {"shortcut_weight"} if method == "residual_weights" else set()
        assert offered()[method] == wanted, method


def test_residual_methods_print_the_weights_of_sums(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("shape rescaled-resnet-3 --method residual_weights")) == 0
    printed = capsys.readouterr().out
    for k in (1, 2, 3):
        assert (
            f"sum_{k}  {math.sqrt(k / (k + 1)):>12.10g}  {1 / math.sqrt(k + 1):>13.10g}" in printed
        )
    assert (
        main(
            [
                *words("shape rescaled-resnet-9 --method residual_weights --scheme common"),
                "--residual-weight",
                "0.6",
            ]
        )
        == 0
    )
    assert "sum_1 ... sum_9" in capsys.readouterr().out
    assert main(words("shape resnet-50 --activation gelu --method nf")) == 0
    assert "Var phi" in capsys.readouterr().out


def test_json_of_a_tailored_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("shape vanilla-50 --method tat --json -")) == 0
    assert json.loads(capsys.readouterr().out)["constants"]["relu"][
        "negative_slope"
    ] == pytest.approx(0.43052, abs=6e-6)
