"""The command line: ``kcalc maps NET``, ``kcalc shape NET`` and ``kcalc gain ACTIVATION``."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__, architectures
from .activations import activation, names
from .calculi.global_maps import c_map, q_map
from .calculi.slopes import slope_texts
from .errors import KcalcError, unknown
from .gains import gain
from .interchange.json_format import load_json, write_json
from .layers import Nonlinear
from .network import Network
from .shaping import METHODS, shape
from .shaping.base import Shaping, replace_activations
from .subnetworks import maximal_slope, subnetworks

if TYPE_CHECKING:
    from .maps import CMap

BAD_INPUT = 2
EXAMPLES = (
    "vanilla-100",
    "resnet-v2-101",
    "resnet-101",
    "resnet-50",
    "wide-resnet-250",
    "layernorm-resnet-152",
    "rescaled-resnet-16",
    "densenet-12",
)
PLAIN = {"vanilla": architectures.vanilla, "layernorm-resnet": architectures.layernorm_resnet, "densenet": architectures.densenet}
FAMILIES = ("vanilla", "resnet-v2", "wide-resnet", "layernorm-resnet", "rescaled-resnet", "densenet")
ALIASES = {"resnet": "resnet-v2", "resnetv2": "resnet-v2", "mlp": "vanilla", "ln-resnet": "layernorm-resnet"}
ABSENT: Any = object()  # an option that is not given: None means something
TARGETS = {"dks": ("zeta", "subnetworks", "q_slope"), "tat": ("eta", "tau"), "eoc": ("sigma_b", "sigma_w", "q")}
SHAPE_HELP = """\
Compute the constants that make a network trainable, and check them.

Methods:
  dks  Deep Kernel Shaping: input scale and shift, output scale and shift of every activation, so that no part of
       the network stretches differences between inputs by more than zeta. For any activation, any depth.
  tat  Tailored activations: relu becomes a leaky ReLU with a slope made for the network (--eta); smooth
       activations get a small curvature (--tau). All slopes at c = 1 are 1.
  normalisation        output scales alone, so that mean squares stay 1.
  he, lecun, glorot, fan_out
       the usual variances of weights, with what they do to mean squares and slopes.
  eoc  The edge of chaos: scales of weights and biases instead of activations (--sigma-b, --sigma-w or --q-star).
"""
SHAPE_EXAMPLES = """\
examples:
  kcalc shape vanilla-100 --activation tanh
  kcalc shape resnet-v2-101 --activation relu --method tat --eta 0.9 --shortcut-weight 0.8
  kcalc shape vanilla-50 --activation gelu --method tat --tau 0.3 --json constants.json
  kcalc shape vanilla-50 --activation tanh --method eoc --sigma-b 0.05
"""
NET_HELP = (
    "vanilla-DEPTH, resnet-v2-50|101|152 (or resnet-...), wide-resnet-DEPTH, layernorm-resnet-50|101|152, "
    "rescaled-resnet-BLOCKS, densenet-LAYERS, or a network JSON file"
)


@dataclass(frozen=True)
class Named:
    """A network from the command line and what to call it."""

    network: Network
    title: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns: 0, or 2 with one line on standard error for bad input."""
    options = parser().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except KcalcError as error:
        print(f"kcalc: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    return 0


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports a mistake in one line."""

    def error(self, message: str) -> Any:
        self.exit(BAD_INPUT, f"{self.prog}: {' '.join(message.split())} (try {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """The argument parser, every option with its meaning."""
    top = _Parser(prog="kcalc", description="Kernel calculus on neural networks.")
    top.add_argument("--version", action="version", version=f"kcalc {__version__}")
    verbs = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    maps = verbs.add_parser("maps", help="print Q and C maps of a network", description="Print the global Q and C map of a network.")
    _network_options(maps)
    maps.add_argument("--q", type=_number, help="q value (mean square) of the network's input; default 1")
    maps.add_argument("--assume-independent", action="store_true", help="go on where a hypothesis fails, saying so")
    maps.add_argument(
        "--slopes", action="store_true",
        help="print the slope polynomial and the maximal slope function instead (with --q at true q values); --plot draws the subnetworks",
    )  # fmt: skip
    maps.set_defaults(run=_maps)
    shaping = verbs.add_parser(
        "shape", help="compute the constants that make a network trainable", description=SHAPE_HELP, epilog=SHAPE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    _network_options(shaping)
    _shaping_options(shaping)
    shaping.add_argument("--json", metavar="FILE", help="also write the result as JSON, '-' for standard output alone")
    shaping.set_defaults(run=_shape)
    gains = verbs.add_parser("gain", help="print the weight scale that keeps q", description="Print the gains of activations.")
    gains.add_argument("activations", nargs="+", metavar="NAME", help="activations by name")
    gains.add_argument("--q", type=_number, default=1.0, help="the q value to keep; default 1")
    gains.set_defaults(run=_gain)
    return top


def _shaping_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--method", default="dks", metavar="METHOD", help=f"{', '.join(METHODS)} (see above); default dks")
    dks = command.add_argument_group("targets of dks")
    dks.add_argument("--zeta", type=_number, default=ABSENT, help="bound on the slopes of all C maps at c = 1, > 1; default 1.5")
    dks.add_argument(
        "--subnetworks", metavar="READING", default=ABSENT,
        help="which slopes zeta bounds: strict (those of the papers' subnetworks; default) or forward (from the inputs to every node)",
    )  # fmt: skip
    dks.add_argument(
        "--q-slope", type=_q_slope, default=ABSENT, metavar="Q", help="Q'(1) asked for: a number (default 1), 'minimize' or 'none'"
    )
    tat = command.add_argument_group("targets of tat (one of them)")
    tat.add_argument(
        "--eta", type=_number, default=ABSENT, help="relu and leaky_relu: the c value orthogonal inputs may reach, in (0, 1); default 0.9"
    )
    tat.add_argument("--tau", type=_number, default=ABSENT, help="smooth activations: the largest curvature C''(1), > 0; default 0.3")
    eoc = command.add_argument_group("targets of eoc (one of them)")
    eoc.add_argument("--sigma-b", type=_number, default=ABSENT, metavar="S", help="standard deviation of the biases, >= 0")
    eoc.add_argument("--sigma-w", type=_number, default=ABSENT, metavar="S", help="standard deviation of weights times sqrt(fan-in), > 0")
    eoc.add_argument("--q-star", type=_number, default=ABSENT, metavar="Q", dest="q", help="mean square of the pre-activations; default 1")


def _q_slope(text: str) -> float | str | None:
    return None if text.lower() == "none" else text if text == "minimize" else _number(text)


def _network_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("network", metavar="NET", help=NET_HELP)
    command.add_argument("--activation", metavar="NAME", help=f"activation of every nonlinear layer: {', '.join(names())}")
    command.add_argument("--shortcut-weight", type=_number, metavar="W", help="amplitude of the shortcut in ResNet sums, in [0, 1)")
    command.add_argument("--plot", metavar="FILE", help="write a figure (.png, .pdf or .svg)")


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


# -- networks ----------------------------------------------------------------------------------------------------------


def named_network(name: str, activation_name: str | None = None, shortcut_weight: float | None = None) -> Named:
    """The network a command line names: a family and a number, or a JSON file.

    Raises: KcalcError for an unknown family (with the nearest), a bad depth, or a file that is no network.
    """
    if name.endswith(".json") or Path(name).is_file():
        if shortcut_weight is not None:
            raise KcalcError("--shortcut-weight applies to the built-in ResNets, not to a file")
        return _from_file(name, activation_name)
    match = re.fullmatch(r"([a-z0-9-]*?[a-z][a-z0-9]*)-(\d+)", name.lower())
    family = ALIASES.get(match[1], match[1]) if match else name
    if match is None or family not in FAMILIES:
        raise unknown("network", name, EXAMPLES)
    number = int(match[2]) if len(match[2]) < 8 else 10**8
    return _built(family, number, activation_name or "relu", shortcut_weight)


def _from_file(path: str, activation_name: str | None) -> Named:
    network = load_json(path)
    if activation_name is not None:
        phi = activation(activation_name)
        network = replace_activations(network, dict.fromkeys(network.nodes_of(Nonlinear), phi))
    return Named(network, f"{path}: {_counted(network)}")


def _built(family: str, number: int, phi: str, weight: float | None) -> Named:
    if number > 100_000:
        raise KcalcError(f"{family}-{number} is deeper than 100000; build it in Python if you mean it")
    if family in PLAIN:
        if weight is not None:
            raise KcalcError(f"--shortcut-weight does not apply to {family}, which has no weighted shortcuts")
        network = PLAIN[family](number, activation=phi)
        note = ", LayerNorm, plain sums, sigma_w sqrt 2" if family == "layernorm-resnet" else ""
        return Named(network, f"{family}-{number}{note}: {_counted(network)}")
    chosen: Any = architectures.HALF if weight is None else weight
    builders: dict[str, Any] = {
        "resnet-v2": architectures.resnet_v2, "wide-resnet": architectures.wide_resnet, "rescaled-resnet": architectures.rescaled_resnet,
    }  # fmt: skip
    network = builders[family](number, shortcut_weight=chosen, activation=phi)
    counted = {"resnet-v2": number - 1, "wide-resnet": number - 3}.get(family)
    layers = f"{counted} nonlinear layers" if counted else _counted(network)
    kind = {"resnet-v2": "V2, BatchNorm-free", "wide-resnet": "V2, BatchNorm-free, wide"}.get(family, "BatchNorm-free")
    return Named(network, f"{family}-{number}: {kind}, shortcut weight {float(chosen):.6g}, {layers}")


def _counted(network: Network) -> str:
    count = len(network.nodes_of(Nonlinear))
    return f"{count} nonlinear layer{'' if count == 1 else 's'}"


# -- verbs -------------------------------------------------------------------------------------------------------------


def _maps(options: argparse.Namespace) -> None:
    named = named_network(options.network, options.activation, options.shortcut_weight)
    if options.q is not None and options.q <= 0:
        raise KcalcError(f"--q is a mean square and must be > 0, got {options.q}")
    if options.slopes:
        text = slopes_text(named, options.q)
        if options.plot:
            _save(subnetworks(named.network).draw(), options.plot)
        print(text)
        return
    options.q = 1.0 if options.q is None else options.q
    q, c = q_map(named.network, options.assume_independent), c_map(named.network, options.assume_independent)
    text = maps_text(named, q, c, options.q)
    if options.plot:
        _save(c.plot(q1=options.q, labels=[_short(named.title)]), options.plot)
    print(text)


def maps_text(named: Named, q_of: Any, c_of: CMap, q: float) -> str:
    """The global maps as aligned text."""
    network = named.network
    lines = [named.title, f"activations: {', '.join(_activation_names(network))}", ""]
    cosines = [-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0]
    values, slopes, q_out = c_of(cosines, q), c_of.derivative(1)(cosines, q), q_of(q)
    for node in network.outputs:
        value, slope, out = (v[node] if isinstance(v, dict) else v for v in (values, slopes, q_out))
        if len(network.outputs) > 1:
            lines.append(f"output {node}")
        lines.append(f"Q({q:g}) = {out:.10g}")
        lines.append("")
        rows = [(f"{c:g}", f"{v + 0.0:.10f}", f"{s:.6g}") for c, v, s in zip(cosines, value, slope, strict=True)]
        lines.extend(table([("c", "C(c)", "C'(c)"), *rows], indent=2))
        lines.append("")
    if len(network.outputs) == 1:
        points = c_of.fixed_points(q)
        words = {True: "attracting", False: "repelling", None: "undecided by the slope"}
        shown = "; ".join(f"{p.value:.8g} (slope {p.slope:.6g}, {words[p.stable]})" for p in points) or "every c"
        lines.append(f"fixed points of C: {shown}")
    return "\n".join([*lines, *_assumption_lines(c_of)])


def slopes_text(named: Named, q: float | None) -> str:
    """The slope polynomial of every output and the maximal slope function, in factored form, with the figures that belong to them."""
    network = named.network
    mu = maximal_slope(network, q)
    lines = [named.title, f"activations: {', '.join(_activation_names(network))}", ""]
    polynomials = slope_texts(network, q)
    lines.append("slope polynomial p(psi), psi = C'(1) of every nonlinear layer")
    lines.extend(f"  {node}: {text}" if len(polynomials) > 1 else f"  {text}" for node, text in polynomials.items())
    lines += ["", "maximal slope function mu(psi), the maximum over subnetworks", f"  {mu}", ""]
    if not network.free_symbols:
        lines += [*str(mu.bounds()).splitlines(), ""]
    return "\n".join([*lines, *_assumption_lines(mu)])


def _assumption_lines(result: Any) -> list[str]:
    grouped: dict[tuple[str, str], list[str]] = {}
    for a in result.assumptions:
        grouped.setdefault((a.kind, a.text), []).append(str(a.node))
    lines = ["assumptions:"]
    for (kind, text), nodes in grouped.items():
        where = nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"
        lines.append(f"  {kind + ':':<12}{text} ({where})")
    return lines


def _gain(options: argparse.Namespace) -> None:
    rows = [("activation", "gain", "centred gain")]
    for name in options.activations:
        phi = activation(name)
        variance = float(phi.second_moment(options.q)) - float(phi.mean(options.q)) ** 2
        centred = f"{gain(phi, options.q, centred=True):.13g}" if variance > 0 else "-"
        rows.append((phi.name, f"{gain(phi, options.q):.13g}", centred))
    print("\n".join(table(rows)))


def _shape(options: argparse.Namespace) -> None:
    named = named_network(options.network, options.activation, options.shortcut_weight)
    result = shape(named.network, method=options.method, **_targets(options))
    text = shape_text(named, result)
    if options.json and options.json != "-" and not Path(options.json).parent.is_dir():
        raise KcalcError(f"cannot write {options.json}: its folder does not exist")
    if options.plot:
        _save(result.plot(), options.plot)
    if options.json:
        write_json(result.to_dict(), options.json)
    if options.json != "-":
        print(text)


def _targets(options: argparse.Namespace) -> dict[str, Any]:
    """The targets given, each checked to belong to the method."""
    given = {name: getattr(options, name) for names_ in TARGETS.values() for name in names_ if getattr(options, name) is not ABSENT}
    for name in given:
        owner = next(method for method, names_ in TARGETS.items() if name in names_)
        if options.method in TARGETS and owner != options.method:
            flag = "--" + ("q-star" if name == "q" else name.replace("_", "-"))
            raise KcalcError(f"{flag} is a target of the method {owner}, not of {options.method}; add --method {owner}")
    return given


def shape_text(named: Named, result: Shaping) -> str:
    """A shaping as aligned text: constants, conditions, residuals."""
    settings = ", ".join(f"{k} = {v:g}" if isinstance(v, float) else f"{k} = {v}" for k, v in result.options.items())
    lines = [named.title, f"method {result.method}{', ' * bool(settings)}{settings}", ""]
    columns = result.constants.columns()
    weights = "sigma_w" in columns
    if columns:
        lines.append("of every layer that reads the activation" if weights else "phi_hat(x) = gamma * (phi(alpha*x + beta) + delta)")
    rows: list[tuple[str, ...]] = [("activation", *("negative slope" if column == "negative_slope" else column for column in columns))]
    for name in result.constants:
        k = result.constants[name]
        rows.append((name, *("-" if (v := getattr(k, column)) is None else f"{v:.10g}" for column in columns)))
    lines.extend(table(rows, indent=2))
    lines.append("")
    targets = result.targets | result.global_targets
    conditions = [("condition", "target", "value", "residual")]
    for c, v in result.values.items():
        aim = (f"{targets[c]:.10g}", f"{result.residuals[c]:.1e}") if c in targets else ("-", "-")
        conditions.append((c, aim[0], f"{v:.10g}", aim[1]))
    lines.extend(table(conditions, indent=2))
    return "\n".join([*lines, "", *_assumption_lines(result)])


def table(rows: Sequence[Sequence[str]], indent: int = 0) -> list[str]:
    """Rows as aligned lines: the first column to the left, numbers to the right, a rule under the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return " " * indent + "  ".join(cells)

    return [line(rows[0]), " " * indent + "-" * (sum(widths) + 2 * len(widths) - 2), *map(line, rows[1:])]


def _activation_names(network: Network) -> list[str]:
    layers = (network.layer(node) for node in network.nodes_of(Nonlinear))
    return list(dict.fromkeys(layer.activation.name for layer in layers if isinstance(layer, Nonlinear))) or ["none"]


def _short(title: str) -> str:
    return title.split(":")[0]


def _save(axes: Any, path: str) -> None:
    from . import plotting

    plotting.save(axes, path)
