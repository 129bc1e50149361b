"""Verdicts of ``kc.transfer`` for families of models: ``python -m benchmarks.transfer_families``.

Prints a table with the family, the expected verdict, the verdict found, and the reason. The verdict
"exact" means rules for every parameter; "unknown=" an error that names the option
``unknown="heuristic"``, which gives rules; and "error" an error that says what to change. Takes two
minutes on one core; ``--only NAME ...`` selects families.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import kcalc as kc

from . import transfer_models as M

IDS, FLAT, IMAGE = torch.zeros(2, 8, dtype=torch.long), (2, 16), (2, 3, 16, 16)
VERDICTS = ("exact", "unknown=", "error")


@dataclass(frozen=True)
class Family:
    """A family of models: ``build`` makes a model of a given width, and ``inputs`` are its example
    inputs.
    """

    name: str
    build: Callable[[int], Any]
    inputs: tuple[Any, ...]
    expected: str
    why: str


FAMILIES = (
    Family("MLP", M.Perceptron, (FLAT,), "exact", "Tensor Programs V"),
    Family(
        "swish",
        lambda w: M.Perceptron(w, M.Swish()),
        (FLAT,),
        "exact",
        "beta is shared by all channels",
    ),
    Family(
        "maxout", M.Maxout, (FLAT,), "exact", "a maximum of a fixed number of channels keeps sizes"
    ),
    Family(
        "weight norm",
        M.WeightNorm,
        (FLAT,),
        "exact",
        "lengths of rows act as gains, and directions have the size of their length",
    ),
    Family(
        "LSTM",
        M.Recurrent,
        (IDS,),
        "exact",
        "all steps share the weights, and their uses have the same rule",
    ),
    Family("GPT", M.GPT, (IDS,), "exact", "heads of a fixed size need no edit"),
    Family(
        "GPT with its loss",
        lambda w: M.GPT(w, loss=True),
        (IDS, IDS),
        "exact",
        "a loss is a function of logits and targets",
    ),
    Family(
        "GPT of DyT",
        lambda w: M.GPT(w, M.DynamicTanh),
        (IDS,),
        "exact",
        "alpha is shared by all channels",
    ),
    Family("nanochat", M.Nanochat, (IDS,), "exact", "a number per block is shared by its channels"),
    Family("BERT", M.Encoder, (IDS,), "exact", "norms behind sums"),
    Family("Llama", M.Llama, (IDS,), "exact", "gates, rotary positions and shared keys have rules"),
    Family(
        "Phi-3",
        lambda w: M.Llama(w, fused=True),
        (IDS,),
        "exact",
        "all rows of the fused projections have one rule",
    ),
    Family(
        "Gemma",
        lambda w: M.Llama(w, root=True),
        (IDS,),
        "exact",
        "the root of the width is a multiplier of the table; tied logits need an edit",
    ),
    Family("T5", M.T5, (IDS,), "exact", "the table of biases has an entry per head"),
    Family(
        "temperatures",
        M.Temperatures,
        ((2, 6, 16),),
        "exact",
        "a temperature per head is a gain of its scores",
    ),
    Family("ViT", M.ViT, (IMAGE,), "exact", "class tokens and positions are vectors"),
    Family(
        "soft mixture",
        M.Mixture,
        (FLAT,),
        "exact",
        "the router is a readout, and its gates multiply features",
    ),
    Family(
        "top-2 mixture",
        lambda w: M.Mixture(w, 2),
        (FLAT,),
        "exact",
        "the selection passes no gradient, but the selected gates do",
    ),
    Family("U-Net", M.UNet, (IMAGE,), "exact", "resizing moves positions"),
    Family(
        "U-Net, bilinear, time",
        lambda w: M.UNet(w, "bilinear", True),
        (IMAGE, (2, 8)),
        "exact",
        "as above, with an additional vector over channels",
    ),
    Family(
        "U-Net, transposed",
        lambda w: M.UNet(w, "turned"),
        (IMAGE,),
        "exact",
        "each tap of a transposed convolution reads all channels",
    ),
    Family(
        "generator",
        M.Generator,
        (FLAT,),
        "exact",
        "a reshape from channels to maps with growing channels",
    ),
    Family(
        "super-resolution",
        M.SuperResolution,
        (IMAGE,),
        "exact",
        "channels that become positions grow at the same rate",
    ),
    Family(
        "VAE",
        M.Variational,
        (FLAT,),
        "exact",
        "noise is an input of size 1, and a code of fixed size is a readout",
    ),
    Family(
        "VQ-VAE",
        M.Quantised,
        (FLAT,),
        "exact",
        "the selection passes no gradient, and codes of a fixed size are readouts",
    ),
    Family("two halves", M.TwoHalves, (IDS,), "exact", "the selected words are a new input"),
    Family(
        "Siamese", M.Siamese, (FLAT, FLAT), "exact", "both uses of every matrix have the same rule"
    ),
    Family(
        "CLIP",
        M.TwoTowers,
        (FLAT, (2, 12)),
        "exact",
        "codes of fixed size are followed by norms, and tau is a single number",
    ),
    Family("ConvNeXt V2", M.ConvNeXt, (IMAGE,), "exact", "a global response norm has size 1"),
    Family(
        "squeeze-excitation",
        lambda w: M.Gated(w, True),
        (IMAGE,),
        "exact",
        "gates of every channel",
    ),
    Family(
        "scalar gate",
        M.Gated,
        (IMAGE,),
        "exact",
        "the gate is a readout and its gradient sums over channels",
    ),
    Family("FNet", M.Fourier, (IDS,), "unknown=", "complex numbers have no rule"),
    Family(
        "tied autoencoder",
        M.TiedAutoencoder,
        (FLAT,),
        "exact",
        "the first matrix is also a readout, so its outputs need an edit",
    ),
    Family(
        "NeRF",
        M.Field,
        (FLAT,),
        "exact",
        "columns with two roles need an edit: two layers, or a factor for the data",
    ),
)


def verdict(family: Family) -> tuple[str, str]:
    """The verdict of kc.transfer, and the error message."""
    try:
        kc.transfer(family.build, *family.inputs, base=32, to=64)
        return "exact", ""
    except kc.KcalcError as error:
        told = str(error)
    if "unknown=" not in told:
        return "error", told
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kc.transfer(family.build, *family.inputs, base=32, to=64, unknown="heuristic")
        except kc.KcalcError as error:
            return "error", str(error)
    return "unknown=", told


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, prog="python -m benchmarks.transfer_families"
    )
    parser.add_argument("--only", nargs="+", default=[family.name for family in FAMILIES])
    chosen = parser.parse_args().only
    print(f"{'family':24}{'expected':10}{'found':10}why")
    for family in FAMILIES:
        if family.name in chosen:
            found, told = verdict(family)
            why = family.why if found == family.expected else told[:180]
            print(f"{family.name:24}{family.expected:10}{found:10}{why}", flush=True)


if __name__ == "__main__":
    main()
