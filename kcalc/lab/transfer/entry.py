"""``kc.transfer``: rules for networks, for models and for functions that build them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ... import Network
from ...fields.arguments import one_number
from ...foundation.errors import KcalcError, glimpse
from ...foundation.plain_arguments import choice, items, whole
from .growth import growth_between, open_growth
from .result import Transfer
from .rules import derive, options, placements

AXES = ("width", "depth", "rank")


def transfer(
    model: Any,
    *example_inputs: Any,
    optimizer: str = "adamw",
    base: Any = None,
    to: Any = None,
    axes: Any = None,
    gauge: str = "none",
    decay: Any = 1,
    branch_exponent: Any = 1,
    alignment: str = "full",
    unknown: str | None = None,
    rank: str | None = None,
) -> Transfer:
    """Return how each parameter's settings, tuned on a small network, change for a larger one.

    Powers of width and depth follow from three requirements: feature maps have size 1, gradients
    have known sizes, and a step changes the network by the same amount at every size. The powers
    give the standard deviation of initial weights, the learning rate, Adam's epsilon and weight
    decay [Yang et al. 2022 (muP); Everett et al. 2024; Dey et al. 2025 (depth, epsilon); the page
    on the theory of transfer].

    Parameters
    ----------
    model
        One of three things: a network with open widths (``features=None``); the larger network or
        ``torch.nn.Module``, with the smaller one as ``base``; or a function of the width (or of
        keywords) that builds a network or module.
    *example_inputs
        Inputs for a ``torch.nn.Module``, as in :func:`kcalc.read`. They may be passed by argument
        name, as in ``{"idx": ids}``.
    optimizer
        "sgd", "adamw", "adafactor", "lion" or "soap". "muon" multiplies steps by ``sqrt(max(1, rows
        / columns))`` and "muon-match-rms" by ``0.2 sqrt(max(rows, columns))``, as in
        ``torch.optim``. "adamh" and "muonh" keep the norm of hidden weights constant. "shampoo" has
        no grafting; "shampoo-adamw" and "shampoo-sgd" use the norm of AdamW's or SGD's step.
    base
        The smaller network or model. For a function, the argument that builds the smaller model,
        such as 64 or ``{"width": 64, "depth": 4}``. For a network with open widths, its width, or
        None for symbolic results.
    to
        For a function, the argument that builds the larger model, such as 1024. For a network with
        open widths, the larger width.
    axes
        Which of "width", "depth" and "rank" change. None detects them. "rank" is the inner size of
        low-rank changes ``W x + s B A x`` in which B starts at 0 (LoRA).
    gauge
        "none" uses multipliers only if necessary. "mup" multiplies readouts by 1 / width. "abc" is
        the parametrisation of [Yang, Hu 2021]. With "unit", all weights start with a standard
        deviation of order 1.
    decay
        Weight decay is multiplied by ``(factor of the learning rate)^-decay``. With 1, the product
        of learning rate and weight decay stays the same; 1/2 and 0 are also allowed.
    branch_exponent
        The exponent a in ``x + L^-a f(x)``, from 1/2 to 1.
    alignment
        "full" if weight changes align with the layer's input, "none" otherwise.
    unknown
        What to do with operations of a ``torch.nn.Module`` that have no rule. None raises an error.
        "heuristic" assumes that they keep coordinates of order 1 in both directions, and marks the
        rules that depend on this.
    rank
        For "muonh", "soap" and grafted Shampoo: "full" if the rank of updates grows with the width,
        "fixed" if it does not. None means "full" for MuonH and "fixed" for grafted Shampoo. SOAP
        has no default.

    Returns
    -------
    Transfer
        The factors for every parameter, multipliers for operations, and edits to the model.

    Raises
    ------
    KcalcError
        If an optimiser or a layer has no rules, if a model differs from the base in more than width
        and depth, if nothing changes along an axis, or if the uses of a parameter conflict.
    KcalcError
        If a residual stream forgets the contributions of blocks, or if the number of experts or
        streams differs from that in the base.

    Examples
    --------
    >>> import kcalc as kc
    >>> t = kc.transfer(kc.architectures.vanilla(3, "relu"))
    >>> t.optimizer
    'adamw'

    """
    chosen = options(optimizer, gauge, decay, branch_exponent, alignment, unknown, rank)
    along = _axes(axes)
    if isinstance(model, Network) and along is not None and "rank" in along:
        raise KcalcError(
            "axes='rank' applies only to PyTorch models, because it depends on weights B that "
            "start at 0, and a kc.Network has no weights. Use axes='width'"
        )
    if isinstance(model, Network) and example_inputs:
        raise KcalcError("a network needs no example inputs; leave them out")
    if isinstance(model, Network) and not isinstance(base, Network):
        growth = open_growth(model, along, _ratio(base, to))
        return derive(model, growth, chosen, placements(model))
    small, large = (base, model) if to is None else _built(model, base, to)
    if small is None:
        raise KcalcError(
            "the smaller network is unknown; pass it as base=, or pass a function that builds "
            "both, with base= and to="
        )
    if isinstance(small, Network) and isinstance(large, Network):
        growth = growth_between(small, large, along)
        return derive(large, growth, chosen, placements(large))
    from .torch_model import torch_transfer

    return torch_transfer(small, large, example_inputs, along, chosen)


def _axes(axes: Any) -> tuple[str, ...] | None:
    if axes is None:
        return None
    given = (axes,) if isinstance(axes, str) else items(axes, "axes")
    for axis in given:
        choice(axis, "axis", AXES)
    if not given:
        raise KcalcError("axes must not be empty; use axes=None to detect the axes that change")
    return tuple(given)


def _ratio(base: Any, to: Any) -> float | None:
    """Return the ratio of two widths, or None if they are not both known."""
    if base is None and to is None:
        return None
    if base is None or to is None:
        raise KcalcError("for a network with open widths, pass both base= and to=, or neither")
    small, large = (one_number(w, name) for w, name in ((base, "base"), (to, "to")))
    if not small > 0 or not large > 0:
        raise KcalcError(f"widths must be positive, got base={base} and to={to}")
    return float(large) / float(small)


def _built(build: Any, base: Any, to: Any) -> tuple[Any, Any]:
    """Return the small and the large model that a function builds.

    Raises: KcalcError for anything but a function, and if the function fails.
    """
    made = hasattr(build, "named_parameters") and not isinstance(build, type)
    if made or not callable(build):
        raise KcalcError(
            f"to= needs a function that builds a model, got {type(build).__name__}; if you have a "
            "larger model instead, pass the smaller model as base= and omit to="
        )
    return call_builder(build, base, "base"), call_builder(build, to, "to")


def call_builder(build: Any, given: Any, what: str) -> Any:
    """Build a model of the given size, a width or {keyword: number}.

    Raises: KcalcError for other sizes, and if the function fails.
    """
    if isinstance(given, Mapping):
        keywords = {str(name): whole(v, f"{what}[{name!r}]", 1) for name, v in given.items()}
    else:
        keywords = None
        whole(given, what, 1)
    try:
        built = build(given) if keywords is None else build(**keywords)
    except KcalcError:
        raise
    except Exception as error:
        raise KcalcError(
            f"{glimpse(build)} failed with {what}={glimpse(given)}: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}"
        ) from error
    if built is None:
        raise KcalcError(
            f"{glimpse(build)} must return a model, but it returned None for "
            f"{what}={glimpse(given)}"
        )
    return built
