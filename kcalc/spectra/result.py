"""``kc.jacobian_spectrum``: the limiting distribution of a Jacobian's squared singular values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from ..fields.arguments import Number, Numbers, finished, real_array
from ..foundation.errors import KcalcError
from ..foundation.guests import DRAWINGS
from ..foundation.plain_arguments import whole
from ..foundation.printing import Rows, Shown, marked, plain, shown
from ..foundation.process_state import cached_property
from ..maps.maps import Approximable, Assumption
from ..network.network import Network
from .chain import EqualLayers, atoms, chain_of, equal_layers, zero_mass
from .measured import Measured, measure
from .reading import Reading, reading_of
from .slopes import RESOLVED_TAIL, tail_share
from .spectrum import Law, finite_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray
MOST = 40  # largest order of a moment
DEEP = 0.005  # value of depth / width above which slopes fluctuate too much


class Extreme(NamedTuple):
    """A singular value at finite width.

    Attributes
    ----------
    mean
        The mean over draws of the network.
    std
        The standard deviation over draws of the network.
    heuristic
        Whether depth / width exceeds 0.005. The slopes then fluctuate more than the edge of the
        spectrum.

    """

    mean: float
    std: float
    heuristic: bool


class Atom(NamedTuple):
    """A value shared by a positive fraction of the squared singular values.

    Attributes
    ----------
    position
        The squared singular value s^2.
    mass
        The fraction of input channels at this value.

    """

    position: float
    mass: float


@dataclass(frozen=True, repr=False, eq=False)
class JacobianSpectrum(Shown, Approximable):
    """The distribution of a Jacobian's squared singular values s^2; see :func:`jacobian_spectrum`.

    There are n_in values, one per input channel. If there are fewer outputs, the other values are
    zero.
    """

    _reading: Reading

    @property
    def network(self) -> Network:
        """The network, with the given widths."""
        return self._reading.network

    @property
    def q(self) -> float:
        """The mean square of the input."""
        return self._reading.q

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The hypotheses behind the distribution, per node."""
        return self._reading.assumptions

    @cached_property
    def _links(self) -> Any:
        """The chain and the slopes of its input, or None if the network is not a chain."""
        return chain_of(self._reading.grouped, [law.slopes for law in self._reading.laws])

    @property
    def _bounded(self) -> bool:
        return all(law.bounded for law in self._reading.laws)

    @cached_property
    def _law(self) -> EqualLayers | Law:
        """The distribution of s^2, from the S-transform for equal layers, else Dyson's equation."""
        laws = self._reading.laws
        vanishing = self._links is not None and any(law.vanishing for law in laws)
        if self._links is not None and self._bounded:
            found = equal_layers(self._links[0], self._links[1], vanishing)
            if found is not None:
                return found
        slopes = [law.slopes for law in laws]
        lost = None if self._links is None else zero_mass(*self._links)
        return Law(self._reading.grouped, slopes, self._bounded, vanishing, lost)

    # -- properties --------------------------------------------------------------------------------

    def moment(self, n: int = 1) -> float:
        """E s^(2n) over input channels; n = 1 gives the mean squared Jacobian, |J|^2 / n_in.

        Parameters
        ----------
        n
            The order, from 0 to 40.

        Returns
        -------
        float

        Raises
        ------
        KcalcError
            If n is out of range, or the moment is beyond double precision.

        """
        order = whole(n, "n", 0, MOST)
        if order == 0:
            return 1.0
        for law in self._reading.laws:
            if not law.bounded and tail_share(law.slopes, order) > RESOLVED_TAIL:
                raise KcalcError(
                    f"the slopes are unbounded, and E s^{2 * order} depends on slopes that are "
                    "too rare to integrate; use a lower moment, or reduce q or sigma_w"
                )
        value = float(self._moments(order)[order - 1])
        if not math.isfinite(value):
            raise KcalcError(f"E s^{2 * order} exceeds the range of double precision")
        return value

    def _second(self) -> float:
        """Return E s^4, or nan if it cannot be computed."""
        try:
            return self.moment(2)
        except KcalcError:
            return math.nan

    def _moments(self, order: int) -> Array:
        known = self.__dict__.get("_known", np.zeros(0))
        if len(known) < order:
            with np.errstate(all="ignore"):
                known = self._law.moments(order if order > 2 else 2)
            object.__setattr__(self, "_known", known)
        return known

    @property
    def isometry(self) -> float:
        """Var s^2 / (E s^2)^2, which is 0 if all singular values are equal.

        It equals ``E s^4 / (E s^2)^2 - 1`` over input channels. For chains of square layers, it is
        the sum of ``mu_2 / mu_1^2 - 1`` of the slopes, plus 1 for each layer with Gaussian weights.
        Raises a KcalcError if E s^4 cannot be computed.
        """
        return self.moment(2) / self.moment(1) / self.moment(1) - 1

    @overload
    def density(self, x: Number) -> float: ...
    @overload
    def density(self, x: Numbers) -> Array: ...
    def density(self, x: Any) -> float | Array:
        """Density of s^2 at x, excluding atoms.

        It integrates to 1 minus the masses of the :attr:`atoms`. The density of s is ``2 s
        density(s^2)``.

        Parameters
        ----------
        x
            Values of s^2 > 0: a scalar or an array.

        Returns
        -------
        float | Array
            The density; 0 outside the support.

        Raises
        ------
        KcalcError
            If an x is not a number > 0.

        """
        points = real_array(x, "x")
        if np.any(points <= 0):
            raise KcalcError(
                f"x is a squared singular value and must be > 0, got {points[points <= 0][0]}"
            )
        flat = np.atleast_1d(points).ravel()
        found = self._law.density(flat)
        return finished(found.reshape(points.shape), points.shape, False)

    @cached_property
    def atoms(self) -> tuple[Atom, ...]:
        """Values of s^2 shared by a positive fraction of singular values, in ascending order.

        For chains, these are all atoms; they follow from dimension counts. For other networks,
        these are the atoms at 0, at the ends of the support, and elsewhere with a mass of at least
        0.002.
        """
        law = self._law
        zero = law.zero_mass
        found = [Atom(0.0, zero)] if zero > 0 else []
        if self._links is not None:
            return (*found, *(Atom(x, mass) for x, mass in atoms(*self._links).items()))
        ends = [law.bottom] if zero == 0 else []
        ends += [law.top] if self._bounded else []
        others = [(end.z, end.mass) for end in ends if end.mass > 1e-5]
        if isinstance(law, Law) and self._may_have_atoms:
            others += law.poles()
        for position, mass in sorted(others):
            if all(abs(position / a.position - 1) > 1e-6 for a in found if a.position):
                found.append(Atom(float(position), float(mass)))
        return tuple(found)

    @property
    def _may_have_atoms(self) -> bool:
        """Whether some slopes are piecewise constant, or some weights are orthogonal."""
        pieces = any(
            law.slopes.shares[law.slopes.flat].sum() > 0 and len(law.slopes.shares) > 1
            for law in self._reading.laws
        )
        return pieces or "orthogonal" in self._reading.weights.values()

    @overload
    def largest(self, width: None = None) -> float: ...
    @overload
    def largest(self, width: int) -> Extreme: ...
    def largest(self, width: int | None = None) -> float | Extreme:
        """Largest singular value s (not its square).

        At a finite width, it follows the edge statistics of a random matrix. If s^2 has the density
        ``c sqrt(x_max - x)``, the largest s^2 has the mean ``x_max - 1.2065 (pi c n)^(-2/3)`` and
        the standard deviation ``1.268 (pi c n)^(-2/3)`` [Tracy and Widom 1996]. This holds for
        given slopes. In networks of depth L, the slopes fluctuate too, which matters if L / width >
        0.005.

        Parameters
        ----------
        width
            The number n of input channels, with the other widths in proportion; None for infinite
            width.

        Returns
        -------
        float | Extreme
            For None, the upper end of the support, or inf if slopes are unbounded. For a width, an
            ``Extreme`` with the mean, the standard deviation, and whether they are heuristic.

        Raises
        ------
        KcalcError
            If the width is not a positive integer, or slopes are unbounded and a width is given.

        """
        if not self._bounded:
            if width is None:
                return math.inf
            raise KcalcError(
                "the slopes are unbounded, so the largest singular value grows with the width "
                "and does not follow edge statistics; use largest() and moment(n)"
            )
        edge = self._law.top
        value = math.sqrt(edge.z)
        if width is None:
            return value
        n = whole(width, "width", 1)
        heuristic = self._reading.grouped.depth / n > DEEP
        return Extreme(*finite_width(edge, n), heuristic)

    def smallest(self) -> float:
        """Smallest singular value s in the support, atoms included.

        Returns
        -------
        float
            The smallest s; 0 if s^2 has an atom at 0 or a density down to 0, as in square Gaussian
            layers. In sums with orthogonal weights, values below about 1e-5 may also be returned
            as 0.

        Raises
        ------
        KcalcError
            If the value is too small to be resolved, in deep networks whose support does not reach
            0.

        """
        end = self._law.bottom.z
        if math.isnan(end):
            raise KcalcError(
                "the smallest singular value is too small to be resolved in double precision; use "
                "density(x) for the lower end of the spectrum"
            )
        return math.sqrt(end)

    # -- measurements ------------------------------------------------------------------------------

    def measure(self, width: int | None = None, draws: int = 3, seed: int = 0) -> Measured:
        """Sample networks and compare their singular values with the limiting distribution.

        The inputs are Gaussian with mean square q. Because slopes fluctuate at finite width, each
        draw is also compared with the limiting distribution for the slopes in that draw.

        Parameters
        ----------
        width
            The number of input channels; other widths keep their ratios. None uses the network's
            number of input channels, or 400 if the network does not specify one.
        draws
            The number of networks to sample.
        seed
            The seed of the random numbers.

        Returns
        -------
        Measured

        Raises
        ------
        KcalcError
            If an argument is invalid, or a width is not an integer for this number of input
            channels.

        """
        own = self.network.features[self.network.inputs[0]]
        chosen = (own or 400) if width is None else width
        n, count = whole(chosen, "width", 2), whole(draws, "draws", 1)
        return measure(self, n, count, whole(seed, "seed"))

    def plot(self, ax: Axes | None = None, measured: Any = None, **line: Any) -> Axes:
        """Plot the density of singular values s, with bars for atoms.

        Parameters
        ----------
        ax
            The Matplotlib Axes to draw on; None creates new axes.
        measured
            Singular values to show as a histogram: a :class:`Measured`, an array, or the
            ``jacobians`` of :func:`kcalc.verify_kernels`.
        **line
            Additional options of the line, passed to Matplotlib.

        Returns
        -------
        Axes

        """
        return DRAWINGS["JacobianSpectrum"](self, measured, ax=ax, **line)

    def to_dict(self) -> dict[str, Any]:
        """Return the main results as plain data; infinite values become None.

        Returns
        -------
        dict[str, Any]
            Plain values that can be written as JSON.

        """
        return plain(self._frame()[0] | {"assumptions": self.assumptions})

    def _frame(self) -> list[dict[str, Any]]:
        mean, second = self.moment(1), self._second()
        return [
            {
                "q": self.q,
                "mean": mean,
                "second_moment": second,
                "isometry": second / mean / mean - 1,
                "smallest": math.sqrt(self._law.bottom.z),
                "largest": self.largest(),
                "atoms": [tuple(atom) for atom in self.atoms],
            }
        ]

    def _rows(self) -> Rows:
        (row,) = self._frame()
        atoms = ", ".join(f"{a.mass:.4g} at {a.position:.4g}" for a in self.atoms) or "none"
        texts = {name.replace("_", " "): shown(value) for name, value in row.items()}
        return [("s^2 over input channels", "value"), *(texts | {"atoms": atoms}).items()]

    def __repr__(self) -> str:
        mean = self.moment(1)
        about = f"E s^2 = {mean:.6g}, isometry {self._second() / mean / mean - 1:.4g}"
        return f"JacobianSpectrum({marked(f'{about}, s <= {self.largest():.6g}', self)})"


def jacobian_spectrum(
    network: Network,
    q: Any = 1,
    weights: Any = "gaussian",
    *,
    features: Any = None,
    input_law: str | None = None,
) -> JacobianSpectrum:
    """Compute the limiting distribution of the input-output Jacobian's squared singular values.

    J is d output / d input at initialisation, and all widths tend to infinity in fixed ratios. The
    result is the eigenvalue distribution of ``J^T J`` (n_in x n_in). It is exact for networks
    with a single position and independent dense weights, activations, sums, products (gates),
    concatenations and active dropout. With channel norms, it is exact for the bulk.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`, with one input and one output. Either all widths are known, or
        none is; unknown widths are taken to be equal.
    q
        The mean square of the input, > 0.
    weights
        The distribution of the weights: "gaussian", "orthogonal" (uniform, with orthonormal rows or
        columns), or {node: distribution}, with Gaussian weights at other nodes. The entries have
        variance sigma_w^2 / fan_in in both cases.
    features
        The width of layers that do not specify one, or {node: width}.
    input_law
        "gaussian" if the input's coordinates are independent Gaussians. This is required if an
        activation or a product acts on them directly; otherwise use None.

    Returns
    -------
    JacobianSpectrum
        The distribution, with ``.moment(n)``, ``.density(x)``, ``.atoms``, ``.largest(width)``,
        ``.smallest()``, ``.isometry``, ``.measure(...)`` and ``.plot()``.

    Raises
    ------
    KcalcError
        If the network has windows, positions, pooling, attention, BatchNorm, one-hot inputs,
        channel groups, surrogate or stopped gradients, several inputs or outputs, or symbols. Also
        if ratios of widths are unknown, an activation acts on an input of unknown distribution, the
        slopes have no finite mean square, or q is invalid. The message names the node.

    Notes
    -----
    The slopes are asymptotically free from the weights, and the pre-activations of one coordinate
    are jointly Gaussian with the q values of the kernel maps. An operator-valued Dyson equation
    with one unknown for each side of each weight determines the distribution. For chains of equal
    square layers, the product of S-transforms is used.

    References
    ----------
    [Pennington, Schoenholz and Ganguli 2017, 2018; Tracy and Widom 1996]

    Examples
    --------
    >>> import kcalc as kc
    >>> L = kc.layers
    >>> net = kc.chain(L.Input(), *4 * [L.Affine()])
    >>> law = kc.jacobian_spectrum(net)
    >>> [round(law.moment(n)) for n in (1, 2, 3)], f"{law.largest() ** 2:.4f}"
    ([1, 5, 35], '12.2070')

    """
    return JacobianSpectrum(reading_of(network, q, weights, features, input_law))
