"""Claims about several streams: mean squares, cosines, gradients and mixing matrices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import expit

from ... import Network, architectures, c_map, chain, depth_profile, gradients, sinkhorn
from ... import layers as L
from ..bench import Bench, at_most, equal, statistical
from ..claim import Evidence
from .paper import claim

PLACE = "Streams and experts"
STREAMS, DEPTH = 4, 12
WRITE = np.array([1.2, 1.0, 0.9, 0.7])
H = sinkhorn(6 * np.eye(STREAMS) - 3, 2000)
BRANCH = chain(L.RMSNorm(), L.Affine(), L.Nonlinear("relu"), L.Affine(sigma_w=2**0.5))


def read(layer: int) -> np.ndarray:
    """Return the read vector of a sub-layer whose home stream is ``layer`` mod 4."""
    return expit(np.where(np.arange(STREAMS) == layer % STREAMS, 3, -3))


def network(depth: int = DEPTH, write: np.ndarray = WRITE) -> Network:
    """Build a network that reads out the mean of the streams."""
    return architectures.hyper_connected(BRANCH, STREAMS, depth, H, read, write, readout="mean")


def cosine(c: float) -> float:
    """Evaluate the C map of ReLU."""
    angle = np.arccos(np.clip(c, -1, 1))
    return float((np.sin(angle) + (np.pi - angle) * c) / np.pi)


def second_moments(depth: int, c: float, write: np.ndarray = WRITE) -> list[np.ndarray]:
    """Compute the second moments of the streams for one input and between two inputs."""
    same, cross = np.ones((STREAMS, STREAMS)), np.full((STREAMS, STREAMS), c)
    for layer in range(depth):
        h, p = read(layer), np.outer(write, write)
        kernel = cosine(float(h @ cross @ h / (h @ same @ h)))
        same, cross = H @ same @ H.T + p, H @ cross @ H.T + p * kernel
    return [same, cross]


@claim("STREAM-forward", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""let $H$ be the mixing matrix, $h$ the read vector, $p$ the write vector and
    $K_F$ the kernel map of the branch. The second moments of streams then obey
    $\Sigma'^{ab} = H\Sigma^{ab}H^\top +
    p\,p^\top K_F(h^\top\Sigma^{aa}h, h^\top\Sigma^{ab}h, h^\top\Sigma^{bb}h)$
    """
    same, cross = second_moments(DEPTH, 0.5)
    found = depth_profile(network(), 0.5)
    assert found.stream_q is not None
    yield equal(found.stream_q[-1], np.diag(same), "the mean squares of four streams")
    yield equal(found.c[-1], cross.mean() / same.mean(), "the cosine of the mean of these streams")
    draws, width = bench.size(20, 60), bench.size(200, 400)
    sizes = np.array([_simulated(bench.rng, width) for _ in range(draws)])
    kept, wide = sizes[:, 0], sizes[:, 1]
    expected = float(np.trace(same))
    yield statistical(2 * wide - kept, expected, f"random modules, widths {width} and {2 * width}")


def _simulated(rng: np.random.Generator, width: int) -> tuple[float, float]:
    """Measure the summed mean squares of the streams of random modules, at widths n and 2 n."""
    out = []
    for n in (width, 2 * width):
        streams = np.tile(rng.normal(size=n), (STREAMS, 1))
        streams /= np.sqrt((streams[0] ** 2).mean())
        for layer in range(DEPTH):
            x = read(layer) @ streams
            x = np.maximum(rng.normal(size=(n, n)) @ (x / np.sqrt((x**2).mean())) / np.sqrt(n), 0)
            x = rng.normal(size=(n, n)) @ x * np.sqrt(2 / n)
            streams = H @ streams + WRITE[:, None] * x
        out.append(float((streams**2).mean(axis=1).sum()))
    return out[0], out[1]


@claim("STREAM-backward", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""mean products of gradients at streams obey $\Gamma = H^\top\Gamma'H + h\,h^\top
    (p^\top\Gamma'p)\,\chi_F$, where the branch multiplies squared gradients by
    $\chi_F$. A positively homogeneous branch that begins with an RMSNorm conserves
    $\sum_{ij}\Gamma_{ij}\Sigma_{ij}$
    """
    gamma, net = np.full((STREAMS, STREAMS), 1 / STREAMS**2), network()
    found = gradients(net).nodes
    products = []
    for layer in reversed(range(DEPTH)):
        h, same = read(layer), second_moments(layer, 0.0)[0]
        after = second_moments(layer + 1, 0.0)[0]
        products.append(float((gamma * after).sum()))
        gamma = H.T @ gamma @ H + np.outer(h, h) * (WRITE @ gamma @ WRITE) / (h @ same @ h)
        own = [found[f"stream_{i}_{layer}"] for i in range(1, STREAMS + 1)]
        yield equal(own, np.diag(gamma), "squared gradients at the streams of a sub-layer")
        products.append(float((gamma * same).sum()))
    yield equal(products, products[0], "the conserved sum, after every sub-layer")


@claim("STREAM-mean", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if the columns of H sum to 1 and branches are normalised, the mean of the streams has the
    mean square of an ordinary residual stream with branch weight $\bar p$. Its cosine differs from
    that of the residual stream unless $p$ has equal entries, because branches read $\sum_j h_j X_j$
    """
    mean, c = float(WRITE.mean()), 0.5
    q = 1 + DEPTH * mean**2
    value = 0.5
    for layer in range(DEPTH):
        size = 1 + layer * mean**2
        value = (size * value + mean**2 * cosine(value)) / (size + mean**2)
    found = depth_profile(network(), c)
    yield equal(found.q[-1], q, "the mean square of the mean stream")
    yield at_most(
        1e-3, value - float(found.c[-1]), f"the cosine of the mean stream is not {value:.6f}"
    )
    same = c_map(network(write=np.ones(STREAMS)))(c)
    plain = 0.5
    for layer in range(DEPTH):
        plain = ((1 + layer) * plain + cosine(plain)) / (2 + layer)
    yield equal(same, plain, "with equal write weights, the cosine of a residual stream", 1e-9)


@claim("STREAM-sinkhorn", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the error of Sinkhorn's iteration falls by a factor of $\lambda_2^2$ per pair of divisions,
    where $\lambda_2$ is the second singular value of the limit. For logits 6I - 3 plus standard
    normals, the largest deviation of a row or column sum from 1 is about 1 % after 20 iterations
    """
    off = []
    for _ in range(bench.size(200, 1000)):
        logits = 6 * np.eye(STREAMS) - 3 + bench.rng.normal(size=(STREAMS, STREAMS))
        off.append(float(abs(sinkhorn(logits, 20).sum(axis=0) - 1).max()))
    yield equal(np.mean(off), 0.010, "the largest error of a sum, averaged over draws", 2e-3)
    logits = 4 * np.eye(2) - 2 + bench.rng.normal(size=(2, 2))  # one singular value below 1
    errors = [abs(sinkhorn(logits, k).sum(axis=0) - 1).max() for k in (60, 70)]
    second = np.linalg.svd(sinkhorn(logits, 5000), compute_uv=False)[1]
    yield equal((errors[1] / errors[0]) ** 0.1, second**2, "the factor per iteration", 1e-4)
