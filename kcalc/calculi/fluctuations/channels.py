"""Covariances of the sampling noise in kernels that are means over finitely many channels.

They are covariances of functions of shared Gaussians, divided by the number of channels.
"""

from __future__ import annotations

import math
import zlib

import numpy as np

from ...foundation.errors import FreshnessError
from .expansions import IDENTITY, alike, correlated, series, slopes, wick
from .reading import ChannelGaussian, Function

Array = np.ndarray
SAMPLES = 60_000


class ChannelKernels:
    """Kernels of all functions at infinite width, and the covariances of their noise at width n.

    If ``c`` is None, there is one input and a kernel is (q,). Otherwise there are two inputs with
    the same q and cosine c, and a kernel is (q11, q12, q22). ``orthogonal``: whether weights have
    orthogonal rows or columns instead of independent Gaussian entries.
    """

    def __init__(self, q: float, c: float | None, orthogonal: bool) -> None:
        self.q, self.c, self.orthogonal = q, c, orthogonal
        self.size = 1 if c is None else 3
        self.atoms: dict[ChannelGaussian, Array] = {}
        self.ratio: dict[ChannelGaussian, float] = {}
        self.level: dict[int, tuple[float, float | None]] = {}
        self.kernel: dict[int, tuple[float, float | None]] = {}
        self.slope: dict[int, Array] = {}
        self.sampled = False
        self._noise: dict[int, Array] = {}

    # -- means -------------------------------------------------------------------------------------

    def enter(self, f: Function) -> None:
        """Compute and store a function's kernel from the kernels of the functions that it reads."""
        for atom in f.amounts:
            if atom not in self.atoms:
                self._atom(atom, f)
        total = sum((a * a * self.atoms[atom] for atom, a in f.amounts.items()), np.zeros((2, 2)))
        q = float(total[0, 0])
        c = None if self.c is None else min(1.0, max(-1.0, float(total[0, 1] / q)))
        self.level[f.id] = q, c
        if f.phi is None:
            self.kernel[f.id], self.slope[f.id] = (q, c), np.eye(self.size)
            return
        after = float(f.phi.second_moment(np.asarray(q)))
        c_after = None if c is None else float(f.phi.c_map(c, q))
        self.kernel[f.id], self.slope[f.id] = (after, c_after), slopes(f.phi, q, c)

    def _atom(self, atom: ChannelGaussian, f: Function) -> None:
        if atom.kind == "input":
            q, c = self.q, self.c
        elif atom.kind == "bias":
            q, c = f.sigma_b**2, 1.0
        else:
            shares = [(share, *self.kernel[g.id]) for share, g in f.reads]
            q = f.sigma_w**2 * sum(share * one for share, one, _ in shares)
            c = (
                f.sigma_w**2
                * sum(share * one * (0.0 if cos is None else cos) for share, one, cos in shares)
                / q
            )
            self.ratio[atom] = min(1.0, f.width / f.fan_in)
        across = 0.0 if c is None else q * c
        self.atoms[atom] = np.array([[q, across], [across, q]])

    # -- noise -------------------------------------------------------------------------------------

    def covariance(self, f: Function, g: Function) -> Array:
        """The covariance of the noise of two kernels, 0 unless their functions share Gaussians."""
        shared = [atom for atom in f.amounts if atom in g.amounts]
        if not shared:
            return np.zeros((self.size, self.size))
        found = self._independent(f, g, shared)
        if self.orthogonal:
            for atom in shared:
                if atom.kind == "weights":
                    weight = self.ratio[atom] * f.amounts[atom] ** 2 * g.amounts[atom] ** 2
                    found = (
                        found
                        - weight
                        * self.slope[f.id]
                        @ wick(self._part(self.atoms[atom]))
                        @ self.slope[g.id].T
                    )
        return found / f.width

    def _part(self, matrix: Array) -> Array:
        return matrix[:1, :1] if self.c is None else matrix

    def _independent(self, f: Function, g: Function, shared: list[ChannelGaussian]) -> Array:
        random = [atom for atom in shared if atom.kind != "input"]
        cross = sum((f.amounts[a] * g.amounts[a] * self.atoms[a] for a in random), np.zeros((2, 2)))
        if f.phi is None and g.phi is None:
            fixed = sum(
                (f.amounts[a] * g.amounts[a] * self.atoms[a] for a in shared if a.kind == "input"),
                np.zeros((2, 2)),
            )
            return wick(self._part(cross), self._part(fixed))
        self._refuse_input(f, g)
        (q, c), (r, _) = self.level[f.id], self.level[g.id]
        phi, psi = f.phi or IDENTITY, g.phi or IDENTITY
        if f.amounts == g.amounts:
            return alike(phi, psi, q, c)
        if self.c is None:
            rho = float(cross[0, 0]) / math.sqrt(q * r)
            first, second = series(phi, 2, IDENTITY, 0, q).copy(), series(psi, 2, IDENTITY, 0, r)
            first[0] = 0.0
            return np.array([[correlated(first, second, rho)]])
        self.sampled = True
        return self._samples(f).T @ self._samples(g) / SAMPLES

    @staticmethod
    def _refuse_input(f: Function, g: Function) -> None:
        for one, other in ((f, g), (g, f)):
            if one.phi is not None and any(atom.kind == "input" for atom in other.amounts):
                raise FreshnessError(
                    f"node {other.node!r} adds the network's input to the pre-activation of "
                    f"{one.node!r}, but the mean of the input's channels is unknown. Put an Affine "
                    "after the input"
                )

    def _samples(self, f: Function) -> Array:
        """Return samples of the centred products phi_a phi_b in many channels, (channels, 3)."""
        if f.id not in self._noise:
            u = sum(a * self._gaussians(atom) for atom, a in f.amounts.items())
            y = np.asarray(u if f.phi is None else f.phi.numeric(0)(u))  # pyright: ignore[reportArgumentType]
            products = np.stack([y[:, 0] ** 2, y[:, 0] * y[:, 1], y[:, 1] ** 2], axis=1)
            self._noise[f.id] = products - products.mean(axis=0)
        return self._noise[f.id]

    def _gaussians(self, atom: ChannelGaussian) -> Array:
        seed = zlib.crc32(repr((str(atom.node), atom.kind)).encode())
        z = np.random.default_rng(seed).standard_normal((SAMPLES, 2))
        q, across = self.atoms[atom][0, 0], self.atoms[atom][0, 1]
        c = across / q
        return math.sqrt(q) * np.stack(
            [z[:, 0], c * z[:, 0] + math.sqrt(max(0.0, 1 - c * c)) * z[:, 1]], axis=1
        )
