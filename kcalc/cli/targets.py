"""The options of ``kcalc shape`` that belong to methods.

One table, from which the parser, the help and the checks are made.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError
from ..shaping import METHODS as ALL
from ..shaping import SCHEMES
from ..shaping.advice import OPTION
from .command import number

ABSENT: Any = object()  # an option that is not given: None means something
METHODS: dict[str, str] = {
    "dks": "Deep Kernel Shaping: input scale and shift, output scale and shift of every "
    "activation, so that no "
    "subnetwork's C map is steeper than zeta at c = 1. For nearly all activations that are "
    "continuous and not affine, at any depth.",
    "tat": "Tailored activations: relu becomes a leaky ReLU with a slope made for the network "
    "(--eta); smooth activations get a small "
    "curvature (--tau). All slopes at c = 1 are 1.",
    "eoc": "The edge of chaos: scales of weights and biases instead of activations (--sigma-b, "
    "--sigma-w or --q-star).",
    "nf": "Normaliser-free: exact gains of activations, standardised weights, and a bound on the "
    "variance that each residual block adds.",
    "residual_weights": "How much each residual block adds to its shortcut, by a rule (--scheme), "
    "or for a wanted slope.",
    "self_normalising": "The fixed point of SELU for any activation: mean 0 and variance 1 stay as "
    "they are.",
    "looks_linear": "Weights mirrored in pairs, so that relu-like activations make a linear "
    "network when training starts.",
    "normalisation": "Output scales alone, so that mean squares stay 1.",
    "geometric": "Variances of weights by the geometric mean of fan-in and fan-out, so that all "
    "weights learn at the same relative rate; "
    "multipliers keep the sizes of feature maps. Needs widths (--features).",
    "he, lecun, glorot, fan_out": "The usual variances of weights, with their consequences for "
    "mean squares and slopes.",
}
WIDTH = 86


def _described() -> str:
    lines = ["Compute the constants that make a network trainable, and check them.", "", "Methods:"]
    for name, text in METHODS.items():
        lines += wrap(f"{name}: {text}", WIDTH, initial_indent="  ", subsequent_indent="      ")
    return "\n".join(lines)


EXAMPLES = """\
examples:
  kcalc shape vanilla-100 --activation tanh
  kcalc shape resnet-v2-101 --activation relu --method tat --eta 0.9 --shortcut-weight 0.8
  kcalc shape vanilla-50 --activation gelu --method tat --tau 0.3 --json constants.json
  kcalc shape vanilla-50 --activation tanh --method eoc --sigma-b 0.05
  kcalc shape resnet-v2-50 --activation gelu --method nf --alpha 0.2
  kcalc shape resnet-v2-50 --method residual_weights --scheme slope --slope 2 --local-slope 1.1
  kcalc shape resnet-v2-101 --activation tanh --export torch -o acts.py
  kcalc shape vanilla-10 --method geometric --features 256 --output-std 0.05
"""


def _q_slope(text: str) -> float | str | None:
    return None if text.lower() == "none" else text if text == "minimize" else number(text)


def _yes_no(text: str) -> bool:
    if text.lower() not in ("yes", "no"):
        raise argparse.ArgumentTypeError(f"say yes or no, not {text!r}")
    return text.lower() == "yes"


def image_shape(text: str) -> tuple[int, ...]:
    """``32x32`` as (32, 32). Raises: argparse.ArgumentTypeError for other text."""
    parts = text.lower().split("x")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no image shape; write 32x32")
    return tuple(int(part) for part in parts)


def token_cosines(text: str) -> np.ndarray:
    """The array in a file: .npy, or lines of numbers.

    Raises: argparse.ArgumentTypeError for files that hold none.
    """
    try:
        if text.endswith(".npy"):
            return np.load(text, allow_pickle=False)
        return np.loadtxt(text, delimiter="," if text.endswith(".csv") else None, ndmin=2)
    except (OSError, ValueError, EOFError) as error:
        reason = (
            error.strerror
            if isinstance(error, OSError) and error.strerror
            else "it holds no array of numbers"
        )
        raise argparse.ArgumentTypeError(
            f"cannot read token cosines from {text!r}: {reason}"
        ) from None


@dataclass(frozen=True)
class Target:
    """An option of some methods: ``--flag`` sets the target ``name`` of ``kc.shape``."""

    name: str
    type: Callable[[str], Any] | None  # None: an option without a value
    help: str
    methods: tuple[str, ...]
    flag: str = ""
    metavar: str | None = None

    @property
    def option(self) -> str:
        """The flag as it is typed."""
        return "--" + (self.flag or self.name.replace("_", "-"))


OPTIONS: tuple[Target, ...] = (
    Target(
        "zeta", number, "bound on the slopes of all C maps at c = 1, > 1; default 1.5", ("dks",)
    ),
    Target(
        "subnetworks",
        str,
        "which slopes zeta bounds: strict (those of the papers' subnetworks; default) or forward "
        "(from the inputs to every node)",
        ("dks",),
        metavar="READING",
    ),
    Target(
        "q_slope",
        _q_slope,
        "Q'(1) asked for: a number (default 1), 'minimize' or 'none'",
        ("dks",),
        metavar="Q",
    ),
    Target(
        "free_slope",
        _yes_no,
        "whether leaky_relu's negative slope is chosen too: yes (default) or no",
        ("dks",),
        metavar="YES|NO",
    ),
    Target(
        "eta",
        number,
        "relu and leaky_relu: the c value orthogonal inputs may reach, in (0, 1); default 0.9",
        ("tat",),
    ),
    Target(
        "tau",
        number,
        "smooth activations: the largest curvature C''(1), > 0; default 0.3",
        ("tat",),
    ),
    Target(
        "tokens",
        token_cosines,
        "networks with TokenMix: a file (.npy, .csv, text) with the T x T cosines between the "
        "tokens of an input",
        ("dks", "tat"),
        metavar="FILE",
    ),
    Target(
        "token_rows",
        str,
        "treatment of the rows of TokenMix: keep (default; they must keep q), or rescale",
        ("dks", "tat"),
        metavar="keep|rescale",
    ),
    Target(
        "gates",
        str,
        "activations that gate a product: shape (default), or normalise (kept, scaled to Q(1) = 1)",
        ("dks",),
        metavar="shape|normalise",
    ),
    Target("sigma_b", number, "standard deviation of the biases, >= 0", ("eoc",), metavar="S"),
    Target(
        "sigma_w",
        number,
        "standard deviation of weights times sqrt(fan-in), > 0",
        ("eoc",),
        metavar="S",
    ),
    Target(
        "q",
        number,
        "mean square of the pre-activations; default 1",
        ("eoc",),
        flag="q-star",
        metavar="Q",
    ),
    Target("alpha", number, "strength of the residual branches, > 0; default 0.2", ("nf",)),
    Target(
        "standardise",
        _yes_no,
        "whether weights have mean 0 over their inputs: yes (default) or no",
        ("nf",),
        metavar="YES|NO",
    ),
    Target(
        "scheme",
        str,
        f"the rule: {', '.join(SCHEMES)}; default {next(iter(SCHEMES))}",
        ("residual_weights",),
        metavar="RULE",
    ),
    Target(
        "residual_weight",
        number,
        "scheme common: amplitude of every branch, in (0, 1)",
        ("residual_weights",),
        metavar="W",
    ),
    Target(
        "power", number, "scheme power: branches count L^-power in L blocks", ("residual_weights",)
    ),
    Target(
        "slope",
        number,
        "scheme slope: the greatest slope of a subnetwork's C map at 1 that is wanted",
        ("residual_weights",),
    ),
    Target(
        "local_slope",
        number,
        "scheme slope: C'(1) of the activations; default their own",
        ("residual_weights",),
    ),
    Target(
        "parameters",
        str,
        "shift (output scale and shift; default) or halves (output scale and that of the negative "
        "half; elu gives SELU)",
        ("self_normalising",),
        metavar="WHICH",
    ),
    Target(
        "input_scale",
        number,
        "factor of the activation's inputs, > 0; default 1",
        ("self_normalising",),
    ),
    Target(
        "features",
        int,
        "width of layers and inputs that do not say theirs",
        ("geometric",),
        metavar="N",
    ),
    Target(
        "image_shape",
        image_shape,
        "locations of inputs that do not say theirs",
        ("geometric",),
        metavar="HxW",
    ),
    Target(
        "typical",
        number,
        "side of the kernels that need no multiplier; default the most frequent",
        ("geometric",),
        metavar="K",
    ),
    Target(
        "input_moment", number, "mean square of the inputs; default 1", ("geometric",), metavar="Q"
    ),
    Target(
        "input_scaling",
        _yes_no,
        "whether inputs are multiplied: yes (default) or no",
        ("geometric",),
        metavar="YES|NO",
    ),
    Target(
        "output_std",
        number,
        "root mean square that a multiplier gives the output",
        ("geometric",),
        metavar="S",
    ),
    Target(
        "balance",
        str,
        "quantity made equal for all weights: gamma (default), or nu (mean pooling)",
        ("geometric",),
        metavar="WHICH",
    ),
    Target(
        OPTION,
        None,
        "go on where activations, products or sums read correlated feature maps (depthwise "
        "convolutions, squeeze and excitation), as if they were independent; the result says so",
        tuple(name for name in ALL if name != "geometric"),
    ),
)
DESCRIPTION = _described()
ONE_OF = {"tat", "eoc"}  # methods of whose targets one is given


def add_targets(command: argparse.ArgumentParser) -> None:
    """One group of options per set of methods, in the order of the table."""
    groups: dict[tuple[str, ...], Any] = {}
    for target in OPTIONS:
        if target.methods not in groups:
            one = " (one of them)" if ONE_OF.issuperset(target.methods) else ""
            owners = (
                "all methods but geometric" if target.type is None else " and ".join(target.methods)
            )
            groups[target.methods] = command.add_argument_group(f"targets of {owners}{one}")
        kind: dict[str, Any] = (
            {"action": "store_const", "const": True}
            if target.type is None
            else {"type": target.type, "metavar": target.metavar}
        )
        groups[target.methods].add_argument(
            target.option, default=ABSENT, dest=target.name, help=target.help, **kind
        )


def targets(options: argparse.Namespace) -> dict[str, Any]:
    """The targets given, each checked to belong to the method.

    Raises: KcalcError naming the method it belongs to.
    """
    given = [target for target in OPTIONS if getattr(options, target.name) is not ABSENT]
    known = {method for target in OPTIONS if target.name != OPTION for method in target.methods}
    for target in given:
        if options.method in known and options.method not in target.methods:
            owners = " or ".join(target.methods)
            raise KcalcError(
                f"{target.option} is a target of the method {owners}, not of {options.method}; "
                f"add --method {target.methods[0]}"
            )
    return {target.name: getattr(options, target.name) for target in given}
