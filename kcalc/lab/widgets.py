"""Sliders in a notebook that show the global C map of a network.

The sliders change the activation, depth, shortcut weight and shaping of the network.

They need ipywidgets (the extra ``widgets``); the rest of kcalc does not.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from .. import Network, c_map, residual_blocks, shape, with_residual_weights
from .. import layers as L
from ..foundation.errors import KcalcError
from ..foundation.extras import imported
from ..plotting import c_maps, entitle

__all__ = ["Explorer", "explore"]

ACTIVATIONS = ("relu", "tanh", "erf", "softplus", "gelu", "selu", "sigmoid", "sin")
DEPTHS = ("depth", "blocks", "layers")  # argument names that mean depth in builders
GIVEN = "as given"
DRAWN = 4.2  # inches


@dataclass(frozen=True, eq=False)
class Explorer:
    """Controls and a picture. A notebook displays ``box``.

    ``values`` contains the current values of the controls, and ``network`` is the network built
    from them.
    """

    box: Any
    controls: Mapping[str, Any]
    picture: Any = field(repr=False)
    message: Any = field(repr=False)
    _make: Callable[[dict[str, Any]], Network] = field(repr=False)

    @property
    def values(self) -> dict[str, Any]:
        """Return {control: its current value}."""
        return {name: control.value for name, control in self.controls.items()}

    @property
    def network(self) -> Network:
        """Return the network before shaping.

        Raises: KcalcError for invalid settings.
        """
        return self._make(self.values)

    def redraw(self, *_: Any) -> None:
        """Redraw the picture.

        If the settings are invalid, show a message and, if possible, the unshaped network.
        """
        self.message.value = ""
        maps: dict[str, Any] = {}
        try:
            network = self.network
            maps["before shaping"] = c_map(network)
            method = self.controls["method"].value
            if method != "none":
                target = {"dks": "zeta", "tat": "eta"}[method]
                maps["shaped"] = c_map(
                    shape(network, method=method, **{target: self.controls[target].value}).network
                )
            drawn = _png(maps)
        except KcalcError as error:
            self.message.value = f"<p role='alert'>{escape(str(error))}</p>"
            if not maps:
                return
            try:
                drawn = _png({"before shaping": maps["before shaping"]})
            except KcalcError:
                return
        self.picture.value = drawn

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.box._repr_mimebundle_(**options)

    def __repr__(self) -> str:
        return f"Explorer({', '.join(f'{name}={value}' for name, value in self.values.items())})"


def explore(net_or_builder: Network | Callable[..., Network]) -> Explorer:
    """Show sliders that redraw the global C map of a network.

    If you pass a network, the selected activation replaces its activations, and the selected
    shortcut weight replaces the weights of its residual blocks, if it has any. Both are "as given"
    at first. If you pass a function that builds networks (such as ``kc.architectures.vanilla``),
    each of its arguments ``activation``, ``depth`` (or ``blocks``, ``layers``) and
    ``shortcut_weight`` gets a control. ``method`` shapes the network by DKS with the slope ``zeta``
    or by TAT with the c value ``eta``.

    Returns: an :class:`Explorer`.

    Raises: KcalcError if ipywidgets is not installed, and for any other argument.
    """
    widgets = imported("ipywidgets")
    imported("matplotlib")
    if isinstance(net_or_builder, Network):
        controls, make = _of_network(net_or_builder, widgets)
    elif callable(net_or_builder) and not isinstance(net_or_builder, type):
        controls, make = _of_builder(net_or_builder, widgets)
    else:
        raise KcalcError(
            f"explore needs a kcalc.Network or a function that builds one, got "
            f"{type(net_or_builder).__name__}"
        )
    wide = {"description_width": "10em"}
    controls["method"] = widgets.Dropdown(
        options=["none", "dks", "tat"], value="none", description="shaping", style=wide
    )
    late: dict[str, Any] = {"continuous_update": False, "style": wide}
    controls["zeta"] = widgets.FloatSlider(
        value=1.5, min=1.01, max=5, step=0.01, description="zeta (DKS)", **late
    )
    controls["eta"] = widgets.FloatSlider(
        value=0.9, min=0.05, max=0.99, step=0.01, description="eta (TAT)", **late
    )
    picture, message = widgets.Image(format="png", layout={"max_width": "100%"}), widgets.HTML()
    found = Explorer(
        widgets.VBox([*controls.values(), message, picture]), controls, picture, message, make
    )
    for control in controls.values():
        control.observe(found.redraw, names="value")
    found.redraw()
    return found


Maker = Callable[[dict[str, Any]], Network]


def _of_network(network: Network, widgets: Any) -> tuple[dict[str, Any], Maker]:
    controls: dict[str, Any] = {"activation": _activations(widgets, GIVEN)}
    if residual_blocks(network):
        weights = [GIVEN, *(f"{k / 20:.2f}" for k in range(20))]
        style = {"description_width": "10em"}
        slider = widgets.SelectionSlider(
            options=weights,
            value=GIVEN,
            description="shortcut weight",
            continuous_update=False,
            style=style,
        )
        controls["shortcut_weight"] = slider

    def make(values: dict[str, Any]) -> Network:
        made, phi, weight = network, values["activation"], values.get("shortcut_weight", GIVEN)
        if phi != GIVEN:
            made = made.written_out().map_layers(lambda node, layer: L.Nonlinear(phi), L.Nonlinear)
        return (
            made if weight == GIVEN else with_residual_weights(made, shortcut_weight=float(weight))
        )

    return controls, make


def _of_builder(builder: Callable[..., Network], widgets: Any) -> tuple[dict[str, Any], Maker]:
    known = inspect.signature(builder).parameters
    style = {"description_width": "10em"}
    controls: dict[str, Any] = {}
    if "activation" in known:
        controls["activation"] = _activations(widgets)
    depth = next((name for name in DEPTHS if name in known), None)
    if depth is not None:
        controls[depth] = widgets.IntSlider(
            value=10, min=1, max=100, description=depth, continuous_update=False, style=style
        )
    if "shortcut_weight" in known:
        options: dict[str, Any] = {
            "description": "shortcut weight",
            "continuous_update": False,
            "style": style,
        }
        controls["shortcut_weight"] = widgets.FloatSlider(
            value=0.7, min=0, max=0.99, step=0.01, **options
        )
    if not controls:
        raise KcalcError(
            f"the builder has none of the parameters activation, {', '.join(DEPTHS)} and "
            "shortcut_weight, so there is nothing to control"
        )

    def make(values: dict[str, Any]) -> Network:
        made = builder(**{name: values[name] for name in values if name in known})
        if not isinstance(made, Network):
            raise KcalcError(f"the builder must return a kcalc.Network, got {type(made).__name__}")
        return made

    return controls, make


def _activations(widgets: Any, *first: str) -> Any:
    names = [*first, *ACTIVATIONS]
    return widgets.Dropdown(
        options=names, value=names[0], description="activation", style={"description_width": "10em"}
    )


def _png(maps: dict[str, Any]) -> bytes:
    """Draw the C maps without pyplot, so that no figure stays open, and return the PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(DRAWN, DRAWN), layout="constrained")
    ax = figure.subplots()
    c_maps(maps, ax=ax)
    entitle(ax, "C map")
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return stream.getvalue()
