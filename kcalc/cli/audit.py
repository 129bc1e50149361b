"""``kcalc audit MODULE:BUILDER``: audit the initialisation of a PyTorch model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from ..foundation.errors import KcalcError
from ..lab.audit import DOCUMENTS, RECIPES, SEVERITIES, Audit, audit, known_codes, lock_text
from .command import Option, write
from .models import Inputs, assembled, is_python, python_attribute
from .text import check_files

FOUND = 1
FILES = {
    kind: Option(f"also write the audit as {kind.upper()}; - prints only that", metavar="FILE")
    for kind in ("json", "sarif", "html")
}


def run(
    model: Annotated[
        str,
        Option(
            "a function without arguments that returns a torch.nn.Module (kcalc records its run), "
            "or a module (kcalc measures its weights)",
            "model",
            metavar="MODULE:BUILDER",
        ),
    ],
    input: Inputs = (),
    recipe: Annotated[
        str | None,
        Option(
            f"the recipe that the model follows: {', '.join(r for r in RECIPES if r != 'mup')}, "
            "mup=module:builder (the builder returns the model at the base width), or "
            "module:attribute (a dictionary {pattern: sigma})",
            metavar="NAME",
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        Option(
            "a function that takes the model and returns its optimizer, or a list of optimizers",
            metavar="MODULE:FUNCTION",
        ),
    ] = None,
    fail_on: Annotated[
        str,
        Option("exit with status 1 at this severity or worse; default error", choices=SEVERITIES),
    ] = "error",
    ignore: Annotated[
        tuple[str, ...],
        Option("leave out findings with these codes, separated by commas", metavar="CODES"),
    ] = (),
    also: Annotated[
        tuple[str, ...],
        Option("apply a criterion that is off by default: INIT-TRUNC", metavar="CODE"),
    ] = (),
    predict: Annotated[
        bool,
        Option(
            "leave out the predicted sizes of the stream and the logits (available if kcalc has "
            "rules for every layer)",
            "--no-predict",
            action="store_false",
        ),
    ] = True,
    lock: Annotated[
        str | None,
        Option(
            "write each parameter's distribution and sigma to a file; - prints only these",
            metavar="FILE",
        ),
    ] = None,
    baseline: Annotated[
        str | None, Option("report differences from a file written by --lock", metavar="FILE")
    ] = None,
    **files: Annotated[str, FILES],
) -> int:
    """Audit the initialisation of a PyTorch model.

    The output lists the initial distribution and the role of every parameter, the initial sizes of
    the stream, the gradients and the logits, and all findings with their file and line.

    Examples:
      kcalc audit mymodel:build --input 4,64
      kcalc audit mymodel:build --fail-on warning --ignore INIT-COPY --sarif audit.sarif
      kcalc audit mymodel:build --lock init.lock
      kcalc audit mymodel:build --baseline init.lock

    The module is imported, so its code is run. The exit status is 1 if there are findings at the
    severity of --fail-on or worse, 2 for bad input, and 0 otherwise.

    """
    ignored = known_codes([c.strip() for text in ignore for c in text.split(",")], "--ignore")
    written: dict[str, str | None] = {f"--{kind}": path for kind, path in files.items()}
    check_files({**written, "--lock": lock})
    for kind, path in files.items():
        if path != "-" and not path.endswith(f".{kind}"):
            raise KcalcError(f"--{kind} needs a file name that ends in .{kind}, got {path}")
    found = audit(
        _named(model, "the builder"),
        assembled(input) or None,
        _recipe(recipe),
        None if optimizer is None else _named(optimizer, "--optimizer"),
        tuple(also),
        predict,
    )
    if baseline:
        found = replace(found, findings=(*found.findings, *found.changes(baseline)))
    found = _without(found, ignored)
    for kind, path in files.items():
        write(path, DOCUMENTS[f".{kind}"](found))
    if lock:
        write(lock, lock_text(found.name, found.parameters))
    if "-" not in (lock, *files.values()):
        lines = [f"wrote {path}" for path in files.values()]
        if lock:
            lines.append(f"wrote {lock}; kcalc audit MODEL --baseline {lock} reports later changes")
        write("-", "\n".join([str(found), *([""] if lines else []), *lines]) + "\n")
    return FOUND if found.found(fail_on) else 0


def _without(found: Audit, codes: Sequence[str]) -> Audit:
    """Return the audit without the findings that have the given codes."""
    return replace(found, findings=tuple(f for f in found.findings if f.code not in codes))


def _named(text: str, what: str) -> Any:
    if not is_python(text):
        raise KcalcError(f"{what} must have the form module:attribute, got {text!r}")
    return python_attribute(text)


def _recipe(text: str | None) -> Any:
    if text is not None and text.startswith("mup="):
        return "mup", _named(text.removeprefix("mup="), "the builder of the base width")
    return python_attribute(text) if text is not None and is_python(text) else text
