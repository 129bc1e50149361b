"""The papers' experiments at the size of digits: comparisons by name.

Networks have ``depth`` layers of ``width`` channels where the recipe does not say otherwise; data,
steps and seeds are chosen when a recipe is run. The papers train convolutional networks on
ImageNet, CIFAR-10 and MNIST, mostly with K-FAC: the order of two variants carries over, not any
figure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..activations import activation
from ..foundation.errors import unknown
from ..foundation.plain_arguments import whole
from ..network.architectures import rescaled_resnet, vanilla
from ..network.combinators import Piece, chain, repeat
from ..network.layers import Affine, Flatten, Input, Nonlinear, Pool
from ..network.network import Network
from . import kfac
from .optimisers import OPTIMISERS
from .run_configurations import RunConfiguration
from .splits import Preparation

SMOOTH = ("tanh", "softplus")
SHALLOW_RATES = (3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
ZETAS = (1.00001, 1.1, 1.5, 3.0, 10.0, 10000.0)
SHORTCUTS = (0.0, 0.5, 0.8, 0.9, 0.95**0.5, 0.99)
STEEPER = 100.0  # scale of badly scaled inputs


@dataclass(frozen=True)
class Size:
    """Depth and width of the networks of a recipe."""

    depth: int = 100
    width: int = 64

    def vanilla(self, phi: str) -> Network:
        """A skip-free network."""
        return vanilla(self.depth, phi)

    def resnet(self, phi: str, shortcut_weight: float) -> Network:
        """A rescaled ResNet with branches of three layers, about as deep."""
        if shortcut_weight == 0:
            return self.vanilla(phi)
        return rescaled_resnet(max(1, self.depth // 3), 3, shortcut_weight, phi)

    def images(self, phi: str, down: Piece, end: Piece | None = None) -> Network:
        """A skip-free convolutional network.

        3 x 3 layers behind a stem and something that halves the image, then the mean.
        """
        layer = Nonlinear(activation(phi))
        body = repeat(chain(Affine(kernel=3), layer), max(1, self.depth - 2))
        return chain(
            Input(), Affine(kernel=3), layer, down, body, end or Pool("mean"), Flatten(), Affine()
        )


Entries = Callable[[Size], list[RunConfiguration]]


@dataclass(frozen=True)
class Recipe:
    """An experiment: its title and source, and its configurations for a size."""

    name: str
    title: str
    source: str
    entries: Entries
    depth: int = 100

    def configurations(
        self, depth: int | None = None, width: int = 64, **settings: Any
    ) -> list[RunConfiguration]:
        """The configurations for networks of this depth (None: the recipe's own) and width.

        ``settings``: where they set none.
        """
        chosen = self.depth if depth is None else depth
        width = whole(width, "width", 1)
        found = self.entries(Size(whole(chosen, "depth", 1), width))
        return [
            replace(one, width=_width(one, width), settings={**settings, **one.settings})
            for one in found
        ]


def _width(configuration: RunConfiguration, width: int) -> int:
    return configuration.width if configuration.width != RunConfiguration.width else width


def _shaped(
    size: Size, phi: str, label: str | None = None, method: str = "dks", **changes: Any
) -> RunConfiguration:
    return RunConfiguration(
        label or f"{method} {phi}", size.vanilla(phi), method, width=size.width, **changes
    )


# -- the headline ----------------------------------------------------------------------------------


def _headline(size: Size) -> list[RunConfiguration]:
    """DKS and TAT beside their baselines, and their Gaussian variants."""
    half = Size(max(2, size.depth // 2), size.width)
    shaped = [
        _shaped(size, "tanh"),
        _shaped(size, "softplus"),
        _shaped(size, "relu", "tat relu", "tat"),
    ]
    resnet = RunConfiguration(
        f"tat rescaled ResNet, {half.depth} layers, shortcut .8", half.resnet("relu", 0.8), "tat"
    )
    gaussian = [replace(one, label=f"{one.label}, Gaussian", weights="gaussian") for one in shaped]
    he = [
        _shaped(size, "relu", "He relu, orthogonal", "he"),
        _shaped(size, "relu", "He relu, Gaussian", "he", weights="gaussian"),
    ]
    plain = [_shaped(size, "tanh", "tanh, orthogonal", "none")]
    shallow = [
        RunConfiguration("logistic regression", chain(Input(), Affine()), rates=SHALLOW_RATES),
        RunConfiguration("2-layer He relu MLP", vanilla(1, "relu"), "he", rates=SHALLOW_RATES),
    ]
    return [*shaped, resnet, *he, *plain, *shallow, *gaussian]


def _methods(size: Size) -> list[RunConfiguration]:
    """Everything that makes deep skip-free networks trainable, or is said to."""
    plain = [
        _shaped(size, phi, method=method) for phi in SMOOTH for method in ("dks", "tat", "none")
    ]
    smooth = [*plain, _shaped(size, "tanh", method="eoc")]  # softplus has no edge of chaos
    relus = [
        _shaped(size, "relu", method=method)
        for method in ("dks", "tat", "eoc", "looks_linear", "lsuv", "wli")
    ]
    selu = _shaped(size, "selu", "selu, Gaussian", "none", weights="gaussian")
    return [*smooth, *relus, selu]


# -- DKS, appendices M and N -----------------------------------------------------------------------


def _zeta(size: Size) -> list[RunConfiguration]:
    return [_shaped(size, "tanh", f"zeta {zeta:g}", targets={"zeta": zeta}) for zeta in ZETAS]


def _residual_weight(size: Size) -> list[RunConfiguration]:
    return [
        RunConfiguration(f"{phi}, shortcut {weight:.3g}", size.resnet(phi, weight), "dks")
        for phi in SMOOTH
        for weight in SHORTCUTS
    ]


def _optimizers(size: Size) -> list[RunConfiguration]:
    left_out = {"nesterov"} if kfac.available() else {"nesterov", kfac.NAME}
    return [
        _shaped(size, phi, f"{phi}, {name}", settings={"optimizer": name})
        for phi in SMOOTH
        for name in OPTIMISERS
        if name not in left_out
    ]


def _laws(size: Size) -> list[RunConfiguration]:
    """N.1: laws of the weights of convolutions, with and without transformed activations."""
    laws = ("delta_orthogonal", "orthogonal", "delta_gaussian", "gaussian")
    nets = size.images("tanh", Affine(kernel=3, stride=2))
    return [
        RunConfiguration(f"{method}, {law}", nets, method, weights=law, width=size.width)
        for method in ("dks", "none")
        for law in laws
    ]


def _against(make: Callable[[Size, str], RunConfiguration]) -> Entries:
    """DKS beside a variant, for both smooth activations."""
    return lambda size: [
        one for phi in SMOOTH for one in (_shaped(size, phi, f"{phi}, dks"), make(size, phi))
    ]


def _inputs(size: Size) -> list[RunConfiguration]:
    """N.6: per-location normalisation, with inputs as they are and badly scaled."""
    found: list[RunConfiguration] = []
    for scale in (1.0, STEEPER):
        for law in ("mean_norm", None):
            name = f"inputs x {scale:g}, {'PLN' if law else 'no PLN'}"
            found.append(
                _shaped(size, "tanh", name, preparation=Preparation(scale=scale, normalisation=law))
            )
    return found


def _downsampling(size: Size) -> list[RunConfiguration]:
    """N.8: a max-pooling layer, or a convolution of the same window and stride."""
    downs: dict[str, Piece] = {
        "max-pooling": Pool("max", 3, 2, "same"),
        "convolution": Affine(kernel=3, stride=2),
    }
    return [
        RunConfiguration(f"{phi}, {name}", size.images(phi, down), "dks", width=size.width)
        for phi in SMOOTH
        for name, down in downs.items()
    ]


def _averaging(size: Size) -> list[RunConfiguration]:
    """N.9: mean pooling at the end, or a mean with random weights."""
    ends: dict[str, Piece] = {
        "mean-pooling": Pool("mean"),
        "weighted mean-pooling": Pool("weighted_mean"),
    }
    down = Affine(kernel=3, stride=2)
    return [
        RunConfiguration(f"{phi}, {name}", size.images(phi, down, end), "dks", width=size.width)
        for phi in SMOOTH
        for name, end in ends.items()
    ]


# -- TAT -------------------------------------------------------------------------------------------


def _prelu(size: Size) -> list[RunConfiguration]:
    nets = (
        ("vanilla", size.vanilla("relu")),
        ("rescaled ResNet, shortcut .8", size.resnet("relu", 0.8)),
    )
    return [
        RunConfiguration(f"{name}, {label}", net, method, targets, width=size.width)
        for name, net in nets
        for label, method, targets in (
            ("tat", "tat", {}),
            ("PReLU 0", "prelu", {"slope": 0.0}),
            ("PReLU .25", "prelu", {"slope": 0.25}),
        )
    ]


def _batch_sizes(size: Size) -> list[RunConfiguration]:
    return [
        _shaped(
            size,
            "relu",
            f"{optimizer}, batch {batch}",
            "tat",
            settings={"optimizer": optimizer, "batch_size": batch},
        )
        for optimizer in ("sgd", "adam", "muon")
        for batch in (16, 64, 256, 1024)
    ]


def _widths(size: Size) -> list[RunConfiguration]:
    return [
        replace(_shaped(size, "relu", f"{method}, width {width}", method), width=width)
        for method in ("tat", "eoc")
        for width in (size.width // 2, size.width, 2 * size.width)
    ]


def _tat_laws(size: Size) -> list[RunConfiguration]:
    return [
        _shaped(size, "relu", f"{method}, {law}", method, weights=law)
        for method in ("tat", "eoc")
        for law in ("orthogonal", "gaussian")
    ]


def _tat_dks(size: Size) -> list[RunConfiguration]:
    return [
        _shaped(size, phi, method=method)
        for phi in ("leaky_relu", *SMOOTH)
        for method in ("tat", "dks")
    ]


N = "DKS appendix N."
RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "headline",
            "Skip-free networks by DKS and TAT, and baselines",
            "DKS 28.2, TAT 6.1",
            _headline,
        ),
        Recipe("methods", "All methods, skip-free", "DKS 28.5, TAT table 5", _methods),
        Recipe(
            "dks-residual-weight",
            "DKS with skip connections of several weights",
            "DKS appendix M.1",
            _residual_weight,
            50,
        ),
        Recipe("optimizers", "DKS with several optimisers", "DKS appendix M.2", _optimizers),
        Recipe("dks-zeta", "The bound on slopes", "DKS appendix M.3, M.4", _zeta),
        Recipe("dks-n1", "Laws of initial weights", N + "1", _laws, 20),
        Recipe(
            "dks-n2",
            "Q(1) = 1 alone",
            N + "2",
            _against(lambda s, phi: _shaped(s, phi, f"{phi}, Q(1) = 1 alone", "normalisation")),
        ),
        Recipe(
            "dks-n3",
            "Without Q'(1) = 1",
            N + "3",
            _against(lambda s, p: _shaped(s, p, f"{p}, Q' free", targets={"q_slope": None})),
        ),
        Recipe(
            "dks-n4",
            "The least Q'(1)",
            N + "4",
            _against(lambda s, p: _shaped(s, p, f"{p}, least Q'", targets={"q_slope": "minimize"})),
        ),
        Recipe(
            "dks-n5",
            "Without transformations",
            N + "5",
            _against(lambda s, phi: _shaped(s, phi, f"{phi}, plain", "none")),
        ),
        Recipe("dks-n6", "Without per-location normalisation", N + "6", _inputs),
        Recipe(
            "dks-n7",
            "Equivalent parameters",
            N + "7",
            _against(lambda s, p: _shaped(s, p, f"{p}, equivalent", equivalent=True)),
        ),
        Recipe("dks-n8", "Max-pooling or a convolution", N + "8", _downsampling, 20),
        Recipe("dks-n9", "Means or weighted means", N + "9", _averaging, 20),
        Recipe("tat-dks", "TAT beside DKS", "TAT table 7", _tat_dks),
        Recipe(
            "tat-prelu", "Tailored and trainable negative slopes", "TAT tables 6, 10", _prelu, 50
        ),
        Recipe("tat-batch-size", "Batch sizes", "TAT table 8", _batch_sizes, 50),
        Recipe("tat-width", "Widths", "TAT table 9", _widths, 50),
        Recipe(
            "tat-initialisation", "Orthogonal or Gaussian weights", "TAT table 11", _tat_laws, 50
        ),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe of a name.  Raises: KcalcError for other names, with the nearest."""
    if not isinstance(name, str) or name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]
