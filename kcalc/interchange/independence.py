"""Test whether weights and biases look like independent random draws.

The kernel calculus assumes independence. The tests use a sample of a layer's outputs, so the cost
hardly grows with the number of outputs. A false alarm is very unlikely for weights of any shape
from the usual initialisers: Gaussian, uniform, truncated, orthogonal, Delta-orthogonal, or sparse
with many nonzero entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .trace import Linear

Array = np.ndarray
OUTPUTS, ENTRIES = 128, 2**16  # size of the sample
RANKED = (64, 512)  # rows and columns used to determine a rank
FEW = 8  # with at most this many weights, the sum that gives an output is not close to Gaussian
SAME = 1e-10  # sums count as equal if their relative difference is smaller
FLAT = 5e-3  # singular values below this fraction of the largest count as 0
SURE = 10.0  # deviations above this many standard errors count as certain
COMPARED = 4096  # entries used to compare two arrays
ALIKE = 6.0  # correlations above this many standard errors count as certain
BENT = 0.5  # excess kurtosis that changes q by about 5 percent
OF_INPUT = "its input channels"


class Resemblance:
    """Finds arrays that are correlated with an earlier array."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], dict[str, Array]] = {}

    def __call__(self, name: str, array: Array) -> str | None:
        """Return the name of an earlier array of the same shape that is correlated with this one.

        Correlated arrays include equal arrays, negatives and noisy copies.
        """
        chosen = np.unravel_index(_chosen(np.size(array), COMPARED), np.shape(array))
        numbers = _unit(np.asarray(array)[chosen].astype(np.float64))
        if np.unique(np.abs(numbers)).size < 4:
            return None
        known = self._known.setdefault(np.shape(array), {})
        found = next((other for other, seen in known.items() if _correlated(numbers, seen)), None)
        known.setdefault(name, numbers)
        return found


def dependence(op: Linear, of_input: bool) -> str:
    """Describe how weights and biases differ from independent draws, or return "".

    ``of_input``: whether the layer reads an input of the model. If so, mirrored weights do no harm,
    because the channels of an input are not mirrored copies of each other.
    """
    if found := _structure(op, of_input):
        size = "they are read as independent weights of the same size"
        return f"its weights are not independent draws ({found}); {size}"
    if _follows(op):
        mean = "as if its input had been centred; they are read as independent"
        return f"its biases are correlated with the sums of its weights, {mean}"
    return ""


def unlike_gaussian(op: Linear) -> str:
    """Describe how the distribution of a layer's outputs differs from Gaussian, or return "".

    A difference matters only to activations and norms after the layer.
    """
    kurtosis = _excess(op)
    if not kurtosis:
        return ""
    reason = "because its sums have few terms or its biases are far from Gaussian"
    size = f"excess kurtosis {kurtosis:.2g} for q = 1"
    return f"its outputs are not Gaussian ({size}, {reason}); they are read as Gaussian"


def _chosen(size: int, count: int) -> Array:
    """Return the sorted indices of a sample, the same in every call."""
    places = np.random.default_rng(0).choice(size, min(size, count), replace=False)
    return np.sort(places)


def _outputs(weight: Array) -> Array:
    """Return the indices of the outputs in the sample."""
    return _chosen(len(weight), max(RANKED[0], min(OUTPUTS, ENTRIES // max(weight[0].size, 1))))


def _unit(numbers: Array) -> Array:
    """Divide an array by its Euclidean norm; return zeros if the norm is 0 or infinite."""
    size = float(np.linalg.norm(numbers))
    return numbers / size if 0 < size < np.inf else np.zeros(numbers.shape)


def _correlated(a: Array, b: Array) -> bool:
    """Whether two unit vectors are more similar than independent vectors would be by chance."""
    cosine = abs(float(a @ b))
    return cosine > 1 - 1e-9 or cosine > ALIKE * float(np.sqrt(np.square(a) @ np.square(b)))


def _kurtosis(numbers: Array) -> float:
    """Return the mean fourth power divided by the squared mean square (3 for Gaussian values)."""
    squares = np.square(numbers)
    return float(np.square(squares).mean() / squares.mean() ** 2)


def _follows(op: Linear) -> bool:
    """Whether the bias of an output is correlated with the sum of its weights."""
    if op.bias is None:
        return False
    chosen = _outputs(op.weight)
    sums = np.asarray(op.weight)[chosen].reshape(len(chosen), -1).sum(1, dtype=np.float64)
    biases = np.asarray(op.bias, dtype=np.float64)[chosen]
    units = [_unit(numbers - numbers.mean()) for numbers in (sums, biases)]
    return len(chosen) >= 32 and _correlated(*units)


def _excess(op: Linear) -> float:
    """Return the excess kurtosis of the outputs for an input with q = 1.

    Returns 0 if the excess is small or uncertain.

    A sum of n independent terms of variance 1/n has the excess kurtosis of one term divided by n.
    Depthwise layers are excluded, because the calculus has no rule for activations after them.
    """
    if op.groups > 1 and op.weight.shape[1] == 1:
        return 0.0
    rows = max(1, ENTRIES // max(op.fan_in, 1))
    weights = np.asarray(op.weight).reshape(*op.weight.shape[:2], -1)[:rows]
    weights = weights[:, :, weights.any((0, 1))]
    biases = np.zeros(0) if op.bias is None else np.asarray(op.bias)
    found, error, whole = 0.0, 0.0, 0.0
    for array, terms in ((weights, weights[0].size), (biases, 1)):
        numbers = array.astype(np.float64).reshape(-1)
        variance = float(np.square(numbers).sum()) / max(numbers.size, 1) * terms
        if not 0 < variance < np.inf:
            continue
        found += variance**2 * (_kurtosis(numbers) - 3) / terms
        error += variance**2 * np.sqrt(24 / numbers.size) / terms
        whole += variance
    certain = abs(found) > (SURE if found > 0 else ALIKE) * error
    return found / whole**2 if certain and abs(found) > BENT * whole**2 else 0.0


# -- the structure of one array --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class WeightSample:
    """Weights of the outputs in a sample, divided by the largest absolute value.

    ``weights``: shape (outputs, inputs, taps), without taps whose weights are all 0; ``rows``: a
    matrix with the weights of every output that has nonzero weights; ``kurtosis``: the kurtosis of
    ``rows``. ``diagonal``: for square layers, the diagonal of the tap with the largest weights,
    divided by the root mean square of this tap.
    """

    weights: Array
    rows: Array
    kurtosis: float
    diagonal: Array


def _structure(op: Linear, of_input: bool) -> str:
    """Describe how the weights differ from independent weights, or return ""."""
    sample = _sampled(op)
    if sample is None:
        return ""
    pairs = () if of_input else (_paired_inputs,)
    tests = (_few, _copied_outputs, _copied_inputs, *pairs, _rank, _diagonal, _sizes)
    return next((found for test in tests if (found := test(sample))), "")


def _sampled(op: Linear) -> WeightSample | None:
    """Return a sample of a layer's weights.

    Returns None if the weights are all 0 or not all finite; these cases are reported elsewhere.
    """
    whole = np.asarray(op.weight)
    whole = whole.reshape(*whole.shape[:2], -1)
    weights = whole[_outputs(whole)].astype(np.float64)
    top = float(np.abs(weights).max(initial=0.0))
    if not 0 < top < np.inf:
        return None
    weights = weights / top
    energy = np.square(weights)
    diagonal = np.zeros(0)
    if op.groups == 1 and whole.shape[0] == whole.shape[1]:
        tap = int(energy.sum((0, 1)).argmax())
        diagonal = np.diagonal(whole[:, :, tap]) / (top * np.sqrt(energy[:, :, tap].mean()))
    weights = weights[:, :, energy.any((0, 1))]
    rows = weights[energy.any((1, 2))].reshape(-1, weights[0].size)
    return WeightSample(weights, rows, _kurtosis(rows), diagonal)


def _few(sample: WeightSample) -> str:
    """Detect identities, permutations, one-hot outputs, and a few very large weights."""
    rows, width = sample.rows, sample.rows.shape[1]
    count = float(np.count_nonzero(rows, axis=1).mean())
    if count <= min(FEW, width / 2):
        return f"each output reads about {count:.2g} of {width} inputs"
    squares = np.square(rows)
    share = float((np.square(squares).sum(1) / squares.sum(1) ** 2).mean())
    # (threshold for the share, minimum width, minimum number of rows)
    bounds = ((0.25, 32, 8), (0.5, 16, 1), (0.9, 4, 4))
    large = any(share > most and width >= w and len(rows) >= h for most, w, h in bounds)
    about = f"each output reads about {1 / share:.2g} of {width} inputs with large weights"
    return about if large else ""


def _copied_outputs(sample: WeightSample) -> str:
    count, depthwise = len(sample.rows), sample.weights.shape[1:] == (1, 1)
    copied = count >= 3 and not depthwise and _distinct(sample.rows) <= count / 3
    return "many outputs have the same weights" if copied else ""


def _copied_inputs(sample: WeightSample) -> str:
    distinct, width = _columns(sample)
    return f"many of {OF_INPUT} have the same weights" if 3 * distinct <= width >= 3 else ""


def _paired_inputs(sample: WeightSample) -> str:
    """Detect mirrored weights (W, -W), which make sums of mirrored activations dependent."""
    distinct, width = _columns(sample)
    pairs = f"{OF_INPUT} form pairs with the same weights up to sign"
    return pairs if 2 * distinct == width else ""


def _columns(sample: WeightSample) -> tuple[int, int]:
    """Return the number of distinct columns and the number of all columns.

    Equal columns count as distinct if they may be equal by chance.
    """
    rows, width = sample.rows, sample.rows.shape[1]
    values = np.unique(np.abs(rows).ravel()[:4096]).size
    if len(rows) < 4 or (len(rows) < 16 and values <= 16):
        return width, width
    return _distinct(rows.T), width


def _distinct(rows: Array) -> int:
    """Count rows that are not copies of others or of their negatives."""
    marks = np.sort(np.abs(rows @ np.random.default_rng(0).standard_normal(rows.shape[1])))
    return 1 + int((np.diff(marks) > SAME * marks[-1]).sum())


def _rank(sample: WeightSample) -> str:
    """Detect weights of low rank, and weights that are nearly multiples of each other."""
    rows = sample.rows[: RANKED[0]]
    rows = rows[:, rows.any(0)]
    rows = rows[:, :: max(1, rows.shape[1] // RANKED[1])]
    least = min(rows.shape)
    if least < 3:
        return ""
    sizes = np.linalg.svd(rows, compute_uv=False)
    rank = int((sizes > FLAT * sizes[0]).sum())
    if rank < 0.45 * least:
        return f"they form a matrix of rank {rank}"
    spread = float(np.square(sizes).sum() ** 2 / (sizes**4).sum())
    nearly = f"they form a matrix that is close to rank {max(1, round(spread))}"
    return nearly if least >= 16 and spread < least / 5 else ""


def _diagonal(sample: WeightSample) -> str:
    """Detect an identity, or a diagonal of signs, plus noise."""
    count = len(sample.diagonal)
    if count < 4:
        return ""
    error = np.sqrt(max(sample.kurtosis - 1, 0.5) / count)
    large = np.square(sample.diagonal).mean() > 1 + SURE * error
    trace = abs(sample.diagonal.sum()) > SURE * np.sqrt(count)
    return "the weights on the diagonal are larger" if large or trace else ""


def _sizes(sample: WeightSample) -> str:
    """Detect outputs or inputs with larger weights than others, or with zeros."""
    energy = np.square(sample.weights)
    for sums, what in ((energy.sum((1, 2)), "output"), (energy.sum((0, 2)), "input channel")):
        chance = (sample.kurtosis - 1) * len(sums) / energy.size
        if sums.var() > (0.1 + (2 + 8 / np.sqrt(len(sums))) * chance) * sums.mean() ** 2:
            return f"their sizes differ from one {what} to another"
    return ""
