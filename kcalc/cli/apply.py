"""``kcalc apply MODEL EDITS``: apply the edits from shaping to a model and write its weights."""

from __future__ import annotations

from typing import Annotated, Any

from ..foundation.errors import KcalcError, glimpse
from ..foundation.extras import imported
from ..foundation.files import replacing
from ..interchange import Edits, apply_edits, load_edits
from .command import Option, write
from .models import is_python, python_object
from .text import check_files

LAWS = ("orthogonal_delta", "gaussian_delta", "keep")


def run(
    model: Annotated[
        str,
        Option(
            "module:attribute, the PyTorch model that was shaped, or a function that returns it",
            "model",
            metavar="MODEL",
        ),
    ],
    edits: Annotated[
        str,
        Option("the file that kcalc shape --edits or s.edits.save wrote", "edits", metavar="EDITS"),
    ],
    output: Annotated[
        str,
        Option(
            "the output file for the weights, as written by torch.save(model.state_dict(), FILE)",
            "-o",
            "--output",
            metavar="FILE",
            required=True,
        ),
    ],
    weights: Annotated[
        str,
        Option("how weights are drawn; default orthogonal_delta", choices=LAWS),
    ] = LAWS[0],
    seed: Annotated[int, Option("seed of the new weights; default 0", metavar="N")] = 0,
) -> None:
    """Apply the edits from kcalc shape to a PyTorch model, and write its initial weights.

    The weights file does not contain the edits. Load it with kc.load_edited; the last line of the
    output shows the call.

    Examples:
      kcalc shape mymodels:resnet --input 1,3,32,32 --edits edits.json
      kcalc apply mymodels:resnet edits.json --output weights.pt

    The Python module is imported, so its code is run.

    """
    if output == "-":
        raise KcalcError("weights cannot be printed; pass a file name to --output")
    check_files({"--output": output})
    if not is_python(model):
        raise KcalcError(
            f"{glimpse(model)} does not have the form module:attribute; edits are for PyTorch "
            f"models, such as mymodels:resnet for the result of resnet() in mymodels.py"
        )
    found = load_edits(edits)
    made, state = _performed(model, found, weights, seed)
    with replacing(output) as stream:
        _save(state, stream)
    write("-", _text(model, found, made, output, edits))


def _performed(model: str, edits: Edits, weights: str, seed: int) -> tuple[Any, Any]:
    built = python_object(model)
    torch = imported("torch")
    if not -(2**63) <= seed < 2**63:
        raise KcalcError(f"--seed must be a 64-bit integer, got {glimpse(seed)}")
    generator = torch.Generator().manual_seed(seed)
    made = apply_edits(built, edits, weights=weights, generator=generator)
    return made, made.state_dict()


def _save(state: Any, stream: Any) -> None:
    import torch

    torch.save(state, stream)


def _text(model: str, edits: Edits, made: Any, output: str, file: str) -> str:
    name = model.partition(":")[2]
    lines = [
        f"{model}: {edits!r}",
        *(line for line in str(edits).splitlines() if line.startswith("left alone")),
        f"{output}: {len(made.state_dict())} arrays of {type(made).__name__}, edited",
        "",
        "load it after importing the module:",
        f"  model = kc.load_edited({name}, {output!r}, {file!r})",
    ]
    return "\n".join(lines) + "\n"
