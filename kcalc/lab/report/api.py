"""``kc.report``: a self-contained HTML page about a network."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from ... import layers as L
from ...foundation.errors import KcalcError, glimpse
from ...foundation.extras import imported
from ...foundation.files import destination, write_whole
from ...foundation.plain_arguments import file_path, text


@dataclass(frozen=True, repr=False)
class NetworkReport:
    """A self-contained HTML page about a network.

    ``html`` is the text of the page, and ``path`` is the file to which it was written (None if it
    has not been written).

    ``refused`` is {result: reason} for results that a calculus could not compute; the page lists
    them too. ``numbers`` contains the numbers on the page as plain data.
    """

    name: str
    html: str
    path: Path | None = None
    refused: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return the size of the page in bytes."""
        return len(self.html.encode("utf-8"))

    def save(self, path: str | os.PathLike[str]) -> NetworkReport:
        """Write the page to a file atomically.

        Returns: the report with its path.

        Raises: KcalcError if the file cannot be written.
        """
        return replace(self, path=write_whole(file_path(path), self.html))

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers on the page as plain data."""
        return {"name": self.name, **self.numbers, "refused": self.refused}

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        place = "not written" if self.path is None else str(self.path)
        return f"NetworkReport({self.name!r}, {self.size / 1000:.0f} kB, {place})"

    def _repr_html_(self) -> str:
        what = f"Report on <b>{escape(self.name)}</b>, {self.size / 1000:.0f} kB"
        if self.path is None:
            return f"<p>{what}, not written yet; use <code>.save(path)</code> to write it.</p>"
        return (
            f"<p>{what}: <a "
            f'href="{escape(self.path.as_posix(), quote=True)}">{escape(self.path.name)}</a></p>'
        )


def report(
    net_or_model: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    example_inputs: Any = (),
    activation: Any = None,
    method: str | None = None,
    name: str | None = None,
    title: str | None = None,
    command: str | None = None,
    tokens: Any = None,
    token_cosine: float | None = None,
    **targets: Any,
) -> NetworkReport:
    """Make a self-contained HTML page about a network.

    The page shows a drawing, maps with sliders, slopes, the tangent kernel, shaping, constants and
    assumptions.

    The page works offline. It also lists the results that cannot be computed, with the reasons.

    Parameters
    ----------
    net_or_model
        A network, a :class:`kcalc.Shaping`, or a model that :func:`kcalc.read` accepts. For a
        Shaping, the original network is shown as "before" and the shaped one as "after", unless a
        method, targets or an activation is given. A model needs ``example_inputs``: an array or a
        shape, a list of arrays or shapes, or a dictionary with argument names as keys.
    path
        The file to which the page is written atomically. If None, no file is written.
    example_inputs
        Inputs for a model that :func:`kcalc.read` accepts.
    activation
        The activation of every nonlinear layer. None keeps the activations of the network.
    method
        The shaping method used on the page. The default is "edge" for transformers, "tat" for ReLU
        networks and "dks" for all others.
    name, title
        The page's headline and the line below it.
    command
        The command that regenerates the page; it is shown at the end of the page.
    tokens, token_cosine
        The tokens of an input, as in :func:`kcalc.node_values`, for networks with attention. The
        default is 128 tokens, or the number of positions if the network has positions. For networks
        with TokenMix, ``tokens`` is the target of the shaping method.
    **targets
        Targets of the shaping method, such as ``zeta=1.5`` or ``eta=.9``.

    Returns
    -------
    NetworkReport
        The page. ``save(path)`` writes it to a file.

    Raises
    ------
    KcalcError
        If the first argument is neither a network nor a model, if an activation, method or target
        is unknown, or if the file cannot be written.

    """
    from ... import interchange
    from ...shaping import Shaping
    from .network_facts import gathered
    from .page import rendered
    from .subject import subject

    imported("jinja2")  # fail before the computations if it is missing
    imported("latex2mathml.converter")
    if path is not None:
        if not isinstance(path, str | os.PathLike):
            raise KcalcError(
                f"path must be the file to write, such as 'page.html', got {glimpse(path)}; pass "
                "the inputs of a model as example_inputs: kc.report(model, example_inputs=[ids])"
            )
        destination(file_path(path))
    command = None if command is None else text(command, "command")
    about = subject(net_or_model, interchange.listed(example_inputs), name, title, activation)
    again = activation is not None or method is not None or targets
    over = {"tokens": tokens, "token_cosine": token_cosine}
    if about.network.nodes_of(L.TokenMix) and tokens is not None:
        targets["tokens"] = over.pop("tokens")
    facts = gathered(
        about,
        method,
        targets,
        net_or_model if isinstance(net_or_model, Shaping) and not again else None,
        over,
    )
    page = rendered(facts, command or _call(about.name, method, {**targets, **over}))
    found = NetworkReport(about.name, page, refused=dict(facts.refused), numbers=facts.numbers())
    return found if path is None else found.save(path)


def _call(name: str, method: str | None, targets: dict[str, Any]) -> str:
    options = [f"{key}={glimpse(value)}" for key, value in targets.items() if value is not None]
    given = [f"name={name!r}", *([f"method={glimpse(method)}"] if method else []), *options]
    return f"kc.report(network, path, {', '.join(given)})"
