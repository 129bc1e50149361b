"""``kcalc shape NET``: compute the constants of a shaping method."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from textwrap import wrap
from typing import Annotated, Any

from .. import Network, Reading, Shaping
from .. import layers as L
from ..calculi.scaling import MOST, rows
from ..finite_width import GeometricShaping
from ..foundation.errors import KcalcError
from ..foundation.printing import cut
from ..interchange import json_text
from ..interchange.writers import WRITERS, writer
from ..network import sum_weights
from ..shaping import METHODS, OPTION, Constants, RegionalShaping, record, works
from .command import Option, Plot, save_figure, write
from .networks import Named, Net, check_widths
from .targets import TARGETS, flag, owners, shape_by_name
from .text import Json, assumption_lines, check_files, heuristic_lines, several, show, table

COMMON = ("method", "activation", "zeta", "eta", "input", "plot", "json", "export", "output")
REWEIGHTED = ("residual_weights", "nf")
TAKING = {method for target in TARGETS if target != OPTION for method in owners(target)}


def run(
    named: Net,
    plot: Plot = None,
    method: Annotated[str, Option(f"{', '.join(METHODS)} (see below); default dks")] = "dks",
    json: Json = None,
    export: Annotated[
        str | None,
        Option(
            f"instead, print the result as code or data for a framework: {', '.join(WRITERS)}",
            metavar="TARGET",
        ),
    ] = None,
    output: Annotated[
        str | None,
        Option(
            "write the text of --export to a file, and also print the constants",
            "-o",
            "--output",
            metavar="FILE",
        ),
    ] = None,
    edits: Annotated[
        str | None,
        Option(
            "for a PyTorch model, write the edits to a file for kcalc apply and kc.apply_edits",
            metavar="FILE",
        ),
    ] = None,
    patch: Annotated[
        str | None,
        Option(
            "for a PyTorch model, write the edits as a patch to its source code; the patched code "
            "does not need kcalc",
            metavar="FILE",
        ),
    ] = None,
    **targets: Annotated[Any, TARGETS],
) -> None:
    _check_targets(method, targets)
    if output and not export:
        raise KcalcError(
            "-o names the file of an export; add --export, as in --export torch -o acts.py"
        )
    files = {"--json": json, "--edits": edits, "--patch": patch}
    check_files(files | {"--export": output or "-"} if export else files)
    if export:
        writer(export)
    if method == "geometric":
        check_widths(named.network, targets.get("features"))
    whole = getattr(METHODS.get(method), "attention", False)
    if edits or patch:
        _check_editable(named)
    apart = named.reading is not None and _partly(named.reading) and not whole
    network: Any
    if named.reading is not None and (apart or edits or patch):
        if apart and (plot or export):
            raise KcalcError(
                "--plot and --export need a single network, but shaping leaves some operations "
                "of this model unchanged; use --json to write the constants of all regions"
            )
        network, activation = named.reading, named.activation
    else:
        network, activation = named.network, None
    try:
        result = shape_by_name(network, activation, method, **targets)
    except KcalcError as error:
        raise _tried(error, network, activation) from None
    text = (
        regional_text(named, result)
        if isinstance(result, RegionalShaping)
        else shape_text(named, result)
    )
    if isinstance(result, Shaping):
        if plot:
            save_figure(result.plot(), plot)
        if export:
            to_file = output and output != "-"
            source = result.export(export, output if to_file else None)
            text = f"{text}\n\nwrote {output}" if to_file else source.rstrip("\n")
    if edits or patch:
        text = "\n".join([text, "", *_edited_lines(result, edits, patch)])
    show(text, result.to_dict, json)


def _tried(error: KcalcError, network: Network | Reading, activation: Any) -> KcalcError:
    """Try the shaping methods that an error suggests, and add the outcomes to its message."""
    for remedy in error.remedies:
        if not any(value is ... for value in remedy.options.values()):
            found = "works" if works(remedy, network, activation) else "does not work"
            name = str(replace(remedy, words="")).removeprefix("try ")
            error.args = (f"{error}; tried: {name} {found}",)
    return error


def _check_editable(named: Named) -> None:
    """Raise a KcalcError for networks that were not read from an unchanged PyTorch model."""
    reading = named.reading
    if reading is None or reading.framework != "torch":
        raise KcalcError(
            "--edits and --patch need a PyTorch model, passed as module:attribute, without options "
            "that change its network; kcalc shape removes norms and normalises sums itself"
        )


def _edited_lines(result: Any, edits: str | None, patch: str | None) -> list[str]:
    """Write the edits and the patch, and return instructions for using them."""
    found, lines = result.edits, []
    if edits:
        write(edits, json_text(found.to_dict()))
        lines.append(f"{edits}: {found!r}; kcalc apply MODEL {edits} --output FILE performs them")
    if patch:
        write(patch, result.patch())
        lines.append(f"{patch}: apply it with patch -p1, as its first lines say")
    return lines


def _check_targets(method: str, given: Iterable[str]) -> None:
    """Raise a KcalcError for targets of another method. The message names the method to add."""
    for target in given:
        if method in TAKING and method not in (methods := owners(target)):
            raise KcalcError(
                f"{flag(target)} is a target of the method {' or '.join(methods)}, not of "
                f"{method}; use --method {methods[0]}"
            )


def _method_lines() -> str:
    return "\n".join(
        line
        for name, method in METHODS.items()
        for line in wrap(
            f"{name}: {record(method).about}", 86, initial_indent="  ", subsequent_indent="      "
        )
    )


run.__doc__ = f"""Compute the constants that make a network trainable, and check them.

Examples:
  kcalc shape vanilla-100 --activation tanh
  kcalc shape resnet-v2-101 --activation relu --method tat --eta 0.9 --shortcut-weight 0.8
  kcalc shape vanilla-50 --activation gelu --method tat --tau 0.3 --json constants.json
  kcalc shape vanilla-50 --activation tanh --method eoc --sigma-b 0.05
  kcalc shape resnet-v2-50 --activation gelu --method nf --alpha 0.2
  kcalc shape resnet-v2-50 --method residual_weights --scheme slope --slope 2 --local-slope 1.1
  kcalc shape resnet-v2-101 --activation tanh --export torch -o acts.py
  kcalc shape vanilla-10 --method geometric --features 256 --output-std 0.05
  kcalc shape mymodels:resnet --input 1,3,32,32 --edits edits.json --patch shaped.patch

methods:
{_method_lines()}
"""


def _partly(reading: Reading) -> bool:
    """Return whether shaping leaves some operations of a model unchanged."""
    return bool(reading.network.nodes_of(L.Opaque, L.Attend))


def _title_lines(named: Named, result: Shaping | RegionalShaping) -> list[str]:
    """Format the approximations, the network, the method and the settings of a result."""
    settings = (
        f"{k} = {v:g}" if isinstance(v, float) else f"{k} = {v}" for k, v in result.options.items()
    )
    method = ", ".join([f"method {result.method}", *settings])
    return [*heuristic_lines(result), named.title, method, ""]


def regional_text(named: Named, result: RegionalShaping) -> str:
    """Format the shaping of each region of a model, and the unchanged nodes, as aligned text."""
    lines = [
        *_title_lines(named, result),
        *table(result._rows(), indent=2),
        "",
        *(f"left alone: {', '.join(nodes)}: {why}" for why, nodes in result.by_reason().items()),
    ]
    return "\n".join([*lines, "", *assumption_lines(result.assumptions)])


def shape_text(named: Named, result: Shaping) -> str:
    """Format a shaping result as aligned text: constants, conditions, residuals."""
    lines = _title_lines(named, result)
    if not isinstance(result, GeometricShaping):
        lines += [*_constant_lines(result), ""]
    if result.scales:
        lines += [*table([("constant", "value"), *result.scales], indent=2), ""]
    if result.method in REWEIGHTED:
        lines += [*_weight_lines(result.network), ""]
    if isinstance(result, GeometricShaping):
        lines += [*table(cut(rows(result.scaling), MOST), indent=2), ""]
    wanted = result.targets | result.global_targets
    conditions = [("condition", "target", "value", "residual")]
    for c, v in result.values.items():
        aim = (f"{wanted[c]:.10g}", f"{result.residuals[c]:.1e}") if c in wanted else ("-", "-")
        conditions.append((c, aim[0], f"{v:.10g}", aim[1]))
    lines.extend(table(conditions, indent=2))
    return "\n".join([*lines, "", *assumption_lines(result.assumptions)])


def _constant_lines(result: Shaping) -> list[str]:
    """Format a table of the activations' constants, or describe them if they have another form."""
    found = {name: result.constants[name] for name in result.constants}
    if any(type(k) is not Constants for k in found.values()):
        return [f"  {name} -> {k.describe()}" for name, k in found.items()]
    head, *rows = result.constants.rows
    lines = table([tuple(name.replace("_slope", " slope") for name in head), *rows], indent=2)
    if "sigma_w" in head:
        others = _other_affine_lines(result)
        return ["of every layer that reads the activation", *lines, *others]
    return ["phi_hat(x) = gamma * (phi(alpha*x + beta) + delta)"] * (len(head) > 1) + lines


def _other_affine_lines(result: Shaping) -> list[str]:
    """Format a table of sigma_w and sigma_b for Affine layers that do not follow an activation.

    Layers with equal sigmas share a row.
    """
    network, found, activated = result.network, {}, set(result.network.nodes_of(L.Nonlinear))
    for node in network.nodes_of(L.Affine):
        if activated.isdisjoint(network.parents(node)):
            layer: Any = network.layer(node)
            found.setdefault((float(layer.sigma_w), float(layer.sigma_b)), []).append(str(node))
    rows = [
        (several(nodes), *(f"{sigma:.10g}" for sigma in sigmas)) for sigmas, nodes in found.items()
    ]
    lines = table([("layer", "sigma_w", "sigma_b"), *rows], indent=2)
    return ["of the other Affine layers", *lines] if rows else []


def _weight_lines(network: Network) -> list[str]:
    """Format a table of the weights in sums with two addends, in network order.

    Each row lists the weights of the shortcut and the branch. Consecutive sums with equal weights
    share a row.
    """
    rows: list[list[str]] = []
    for node in network.nodes_of(L.Sum):
        layer: Any = network.layer(node)
        weights = [f"{float(w):.10g}" for w in sum_weights(layer, len(network.parents(node)))]
        if rows and rows[-1][1:] == weights:
            rows[-1][0] = f"{rows[-1][0].split(' ... ')[0]} ... {node}"
        elif len(weights) == 2:
            rows.append([str(node), *weights])
    return table([("sum", "first weight", "second weight"), *rows], indent=2) if rows else []
