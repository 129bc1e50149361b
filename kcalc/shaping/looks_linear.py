"""Mirrored weights that make a network linear at initialisation.

Each activation phi becomes the pair (phi(x), phi(-x)), and the weights that read it become (W, -W).

[Balduzzi, Frean, Leary, Lewis, Ma, McWilliams 2017; DKS sec. 26.5]
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ..activations import Activation, combine
from ..activations import activation as resolve
from ..foundation.errors import KcalcError
from ..foundation.process_state import cached_property
from ..maps.maps import Assumption
from ..network.layers import Affine, Concat, Flatten, Identity, Nonlinear, Pool
from ..network.network import Network, Step
from .base import Shaping, prepared, replace_activations
from .choose_branch import check_shapeable
from .constants import Constants, constants_of
from .hypotheses import check_fresh
from .methods import shaping_method
from .needs import fresh, known_tokens, no_products
from .records import Record

Node = Hashable
ROUNDING = 1e-13
MIRRORED = (
    "weights are mirrored pairs (W, -W) and therefore not independent; the network computes the "
    "same function as a network of odd parts with independent weights"
)


@dataclass(frozen=True)
class MirroredConstants(Constants):
    """Constants with which phi becomes ``output_scale * (phi(x) - phi(-x))``.

    This is the effect of mirrored weights on the pair (phi(x), phi(-x)).
    """

    @cached_property
    def transformed(self) -> Activation:
        """The scaled odd part of phi; exactly the identity if the odd part is linear."""
        seen = difference(self.activation)
        return seen.base if _is_identity(seen) else seen.transformed(output_scale=self.output_scale)

    def describe(self) -> str:
        """Describe the pair and the weights that read it, in one line."""
        name = self.activation.name
        scale = "" if self.output_scale == 1 else f"{self.output_scale:.6g}*"
        seen = f"{scale}({name}(x) - {name}(-x))" + (
            " = x" if _is_identity(self.transformed) else ""
        )
        return (
            f"concatenation [{name}(x), {name}(-x)], read by mirrored weights [{scale}W, "
            f"-{scale}W], which act on {seen}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the constants as plain data."""
        return super().to_dict() | {"mirrored": True}


@dataclass(frozen=True, repr=False)
class LooksLinear(Shaping):
    """A network with mirrored weights.

    Attributes
    ----------
    network
        The network with the (scaled) odd parts of the activations, which computes the same
        function.

    """

    @cached_property
    def _measured(self) -> dict[str, Any]:
        """Compute the targets, and the slope of the whole network.

        The slope is 1 if the odd parts are linear.
        """
        whole = {"C_f'(1)": self._ends[1]} if len(self.network.outputs) == 1 else {}
        return super()._measured | whole

    @property
    def to_train(self) -> tuple[Network, tuple[Node, ...]]:
        """Return the network with pairs (phi(x), phi(-x)), and the Affine nodes that read them.

        The initial weights of these nodes are (gamma W, -gamma W).

        In ``network``, the odd part is a single activation. Here, it is the concatenation of phi(x)
        and phi(-x), under the same name.

        Raises: KcalcError if anything but an Affine (directly, or through global pooling) reads a
        pair.
        """
        pairs: dict[Node, float] = {}  # {node that contains a pair: scale}
        mirrored: list[Node] = []
        steps: list[Step] = []
        pooled: set[Node] = set()
        for node, layer, parents in self.network.steps():
            if node in self.constants.by_node:
                constants = self.constants.by_node[node]
                phi = constants.activation
                pairs[node] = float(constants.output_scale or 1.0)
                halves = (f"{node}: phi(x)", f"{node}: phi(-x)")
                steps.append((halves[0], Nonlinear(phi), parents))
                steps.append((halves[1], Nonlinear(phi.transformed(input_scale=-1)), parents))
                steps.append((node, Concat(), halves))
                continue
            source = next((parent for parent in parents if parent in pairs), None)
            if source is None:
                steps.append((node, layer, parents))
            elif isinstance(layer, Affine) and layer.groups == 1:
                steps.append(
                    (
                        node,
                        replace(layer, sigma_w=math.sqrt(2) * pairs[source] * float(layer.sigma_w)),
                        parents,
                    )
                )
                mirrored.append(node)
            elif isinstance(layer, Identity | Pool) or (
                isinstance(layer, Flatten) and source in pooled
            ):
                pairs[node] = pairs[source]
                if isinstance(layer, Pool) and layer.window is None:
                    pooled.add(node)
                steps.append((node, layer, parents))
            else:
                raise KcalcError(
                    f"node {node!r} ({type(layer).__name__}) reads the pair at {source!r} and "
                    "would mix its halves; put an Affine between them"
                )
        return Network.from_steps(steps, self.network.outputs).with_notes(
            self.network.notes
        ), tuple(mirrored)

    def mirrored(self, node: Node, weights: Any) -> np.ndarray:
        """Mirror the weights of an Affine that reads the pair of an activation.

        The result is (gamma W, -gamma W), of shape (out, 2 in, ...) for W of shape (out, in, ...).
        Along axis 1, all phi(x) come first, then all phi(-x).

        Parameters
        ----------
        node
            The Affine that reads the pair.
        weights
            The weights W, (out, in, ...).

        Returns
        -------
        np.ndarray
            The mirrored weights.

        Raises
        ------
        KcalcError
            If the Affine does not read exactly one activation.

        """
        source = node
        while source == node or isinstance(self.network.layer(source), Identity | Pool):
            if source == node and not isinstance(self.network.layer(node), Affine):
                raise KcalcError(f"node {node!r} is not an Affine and has no weights to mirror")
            source = self.network.parents(source)[0]
        if source not in self.constants.by_node:
            raise KcalcError(
                f"node {node!r} reads a {type(self.network.layer(source)).__name__}instead of an "
                "activation; mirror the blocks of its weights yourself"
            )
        scaled = float(self.constants.by_node[source].output_scale or 1.0) * np.asarray(weights)
        if scaled.ndim < 2:
            raise KcalcError(f"weights must have the shape (out, in, ...), got {scaled.shape}")
        return np.concatenate([scaled, -scaled], axis=1)


@shaping_method(
    "looks_linear",
    Record(
        "Mirrored pairs of weights, which make a network of relu-like activations linear at "
        "initialisation.",
        compared=True,
        needs=(known_tokens, no_products, fresh),
    ),
)
def looks_linear(
    network: Network,
    activation: Any = None,
    *,
    assume_independent: bool = False,
) -> LooksLinear:
    """Mirror the weights, which makes the network linear for suitable activations.

    Activations with phi(x) - phi(-x) = k x are suitable (relu, softplus, swish, gelu).

    Every activation becomes the concatenation (phi(x), phi(-x)), which is twice as wide. The Affine
    layers that read it get weights (gamma W, -gamma W) with Var W = 1/(unmirrored fan_in). W
    (phi(x) - phi(-x)) is exactly W times twice the odd part of phi, with independent weights W. The
    returned ``network`` therefore uses the odd part, scaled to Q(1) = 1, and all kernel maps are
    exact. If the odd part is linear, the C map is the identity. This holds only at initialisation:
    the first training step breaks the mirror symmetry.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    assume_independent
        Whether to continue if a hypothesis fails; the result is then marked as heuristic.

    Returns
    -------
    LooksLinear
        The mirrored network, with the scale gamma of every activation.

    Raises
    ------
    KcalcError
        If an activation is even, linear or discontinuous, or anything but an Affine (possibly
        through concatenation, flattening or mean pooling) reads an activation.

    """
    plain, changes = prepared(network, activation)
    _check_readers(plain)
    table = constants_of(plain, mirrored_constants)
    shaped = replace_activations(plain, table.activations)
    check_fresh(shaped)
    linear = all(_is_identity(k.transformed) for k in table.distinct)
    targets = {"Q(1)": 1.0, "C(0)": 0.0} | ({"C'(1)": 1.0} if linear else {})
    whole = {"Q_f(1)": 1.0} | ({"C_f'(1)": 1.0} if linear and len(plain.outputs) == 1 else {})
    return LooksLinear(
        "looks_linear",
        {},
        network,
        shaped,
        table,
        targets,
        whole,
        (*changes, *table.edits),
        warnings=tuple(_notes(table.distinct)),
    )


def mirrored_constants(phi: Activation) -> MirroredConstants:
    """Return the scale that gives phi(x) - phi(-x) a mean square of 1 at q = 1.

    Raises: KcalcError for activations that cannot be mirrored.
    """
    odd = difference(phi)
    slope = _slope(odd, phi)
    # a linear odd part has a closed-form scale, so the C map is the identity without rounding
    scale = 1 / slope if slope is not None else float(odd.second_moment(1.0)) ** -0.5
    return MirroredConstants(phi, output_scale=float(scale))


@lru_cache(maxsize=256)
def difference(phi: Activation) -> Activation:
    """Return phi(x) - phi(-x), twice the odd part.

    Return an exact multiple of the identity if the difference is linear up to rounding, and 2 phi
    if phi is odd.

    Raises: KcalcError for activations that are even, linear or discontinuous.
    """
    check_shapeable(phi)
    odd = combine([(1, phi, 1), (-1, phi, -1)], name=f"{phi.name}(x) - {phi.name}(-x)")
    x = _probes(odd)
    values, mirror, size = phi(x), phi(-x), _size(phi, x)
    finite = np.isfinite(size)
    if np.all(np.abs(values - mirror)[finite] <= ROUNDING * size[finite]):
        raise KcalcError(
            f"{phi.name} is even, so mirrored weights cancel: phi(x) - phi(-x) = 0; choose another "
            "activation"
        )
    if np.all(np.abs(values + mirror)[finite] <= ROUNDING * size[finite]):
        return phi.transformed(output_scale=2)
    slope = _slope(odd, phi)
    return odd if slope is None else resolve("identity").transformed(output_scale=slope)


def _probes(phi: Activation) -> np.ndarray:
    """Return positive points of ordinary size, some of them between kinks."""
    kinks = [abs(k) for k in phi.kink_points if 0 < abs(k) < 60]
    return np.concatenate(
        [
            np.geomspace(1e-4, 1.0, 120),
            np.linspace(1.0, 60.0, 400)[1:],
            np.array(kinks) * 0.999,
            np.array(kinks) * 1.001,
        ]
    )


def _size(phi: Activation, x: np.ndarray) -> np.ndarray:
    """Return the scale of the rounding error of phi(x) - phi(-x).

    Terms that cancel inside phi are as large as phi(1) even near 0.
    """
    with np.errstate(all="ignore"):
        return np.maximum(
            np.maximum(np.abs(phi(x)), np.abs(phi(-x))),
            max(abs(float(phi(1.0))), abs(float(phi(-1.0)))),
        )


def _slope(odd: Activation, phi: Activation) -> float | None:
    """Return the slope of the odd part if it is linear up to rounding, otherwise None.

    Slopes close to multiples of 1/64 are rounded to them.
    """
    x = _probes(odd)
    with np.errstate(all="ignore"):
        values, size = odd(x), _size(phi, x)
    slope = float(odd(1.0))
    slope = round(64 * slope) / 64 if abs(slope - round(64 * slope) / 64) < 1e-14 else slope
    finite = np.isfinite(values)
    return (
        slope
        if slope and np.all(np.abs(values - slope * x)[finite] <= ROUNDING * size[finite])
        else None
    )


def _is_identity(phi: Activation) -> bool:
    return phi.base == resolve("identity")


def _notes(solved: Sequence[Constants]) -> Iterator[Assumption]:
    yield Assumption("network", MIRRORED, "exact")
    curved = [k.activation.name for k in solved if not _is_identity(k.transformed)]
    if curved:
        yield Assumption(
            "network",
            f"the odd part of {', '.join(curved)} is not linear, so the network starts nonlinear, "
            f"with C'(1) > 1",
        )
    odd = [phi.name for phi in (k.activation for k in solved) if difference(phi).base == phi.base]
    if odd:
        yield Assumption(
            "network",
            f"{', '.join(odd)} is odd, so mirroring only doubles the width; method='normalisation' "
            "has the same effect",
        )


def _check_readers(network: Network) -> None:
    """Reject networks in which something other than weights reads an activation.

    Only weights can compute the difference of a pair.
    """
    paired: set[Node] = set()
    for node, layer, parents in network.steps():
        from_pair = [parent for parent in parents if parent in paired]
        if isinstance(layer, Nonlinear):
            paired.add(node)
        if not from_pair or isinstance(layer, Affine):
            continue
        if isinstance(layer, Identity | Flatten | Concat) or (
            isinstance(layer, Pool) and layer.kind != "max"
        ):
            paired.add(node)
            continue
        kind = "max pooling" if isinstance(layer, Pool) else type(layer).__name__
        raise KcalcError(
            f"node {node!r} ({kind}) reads the activation {from_pair[0]!r}, but only mirrored "
            "weights can compute phi(x) - phi(-x); put an Affine between them"
        )
    for node in network.outputs:
        if node in paired:
            raise KcalcError(
                f"the output {node!r} is an activation with no weights after it to mirror; end "
                "the network with an Affine"
            )
