"""``kcalc report NET``: a self-contained HTML page about a network."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from ..foundation.errors import KcalcError
from ..foundation.files import destination
from ..foundation.plain_arguments import file_path
from ..interchange import json_text
from ..lab.report import report
from ..shaping import METHODS
from .command import GIVEN, Option, write
from .models import PYTHON, input_words, is_model
from .networks import Tokens, Weighted
from .text import Json, check_files


def run(
    named: Weighted,
    over: Tokens,
    given: Annotated[Mapping[str, Any], GIVEN],
    output: Annotated[
        str,
        Option(
            "the file to write, or - to print the page; default report.html",
            "-o",
            "--output",
            metavar="FILE",
        ),
    ] = "report.html",
    method: Annotated[
        str | None,
        Option(
            "shaping method, as in kcalc shape; default edge for transformers, tat for ReLUs, dks "
            "otherwise",
            metavar="METHOD",
            choices=tuple(METHODS),
        ),
    ] = None,
    zeta: Annotated[
        float | None, Option("with dks: largest slope C'(1) of any subnetwork; default 1.5")
    ] = None,
    eta: Annotated[
        float | None, Option("with tat: largest c value of orthogonal inputs; default 0.9")
    ] = None,
    name: Annotated[str | None, Option("headline of the page; default NET")] = None,
    json: Json = None,
) -> None:
    """Write a self-contained HTML page about a network.

    The page has a drawing, Q and C maps with sliders, slopes, the tangent kernel, the shaping with
    constants for each framework, and the assumptions of all results. It works offline, so you can
    attach it to a paper, a pull request or an email.

    Examples:
      kcalc report vanilla-100 --activation tanh
      kcalc report resnet-v2-152 -o resnet152.html
      kcalc report bert --tokens 128 -o bert.html
      kcalc report model.onnx --without-normalization -o model.html
      kcalc report mymodels:transformer --ids 2,16 --tokens 16 -o transformer.html

    """
    check_files({"--output": output, "--json": json}, lambda path: destination(file_path(path)))
    targets = {key: given[key] for key in ("zeta", "eta") if key in given}
    if len(targets) == 2:
        raise KcalcError("pass either --zeta (dks) or --eta (tat), not both")
    chosen = method or ("dks" if "zeta" in targets else "tat" if "eta" in targets else None)
    unchanged = named.reading is not None and named.activation is None
    found = report(
        named.reading if unchanged else named.network,
        None if output == "-" else output,
        name=name or _headline(given["network"]),
        title=None if unchanged else _line(named.title),
        method=chosen,
        command=_command(given, output),
        **over,
        **targets,
    )
    if json:
        write(json, json_text(found.to_dict()))
    if output == "-":
        write(output, found.html)
    elif json != "-":
        write("-", f"wrote {found.path} ({found.size / 1000:.0f} kB)\n")


def _line(title: str) -> str:
    """Return the title of a network on one line, without its name."""
    first, _, rest = title.partition("\n")
    return "; ".join([first.partition(": ")[2] or first, *rest.splitlines()])


def _headline(word: str) -> str:
    return Path(word).name if is_model(word) and not PYTHON.fullmatch(word) else word


def _command(given: Mapping[str, Any], output: str) -> str:
    """Return the command line that produces the page, with paths shortened to file names."""
    words = ["kcalc", "report", _headline(given["network"])]
    for name in given["known"]:
        if name not in given or name in ("network", "output", "name", "input", "json"):
            continue
        value = given[name]
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(f"{value:g}" if isinstance(value, float) else str(value))
    words += input_words(given.get("input", ()))
    return shlex.join([*words, "-o", Path(output).name])
