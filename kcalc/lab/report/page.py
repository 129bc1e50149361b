"""The page, which is a template filled with facts, styles, scripts and data."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import time
from base64 import b64encode
from importlib import metadata
from typing import Any

from ... import __version__
from ...foundation.extras import imported
from ...foundation.templates import asset, template
from .kernels import SPHERE, meaning
from .markup import embedded, number
from .network_facts import Facts
from .sections import drawing_data, shown, slope_data
from .traces import verdict

SCRIPTS = ("program.js", "charts.js", "maps.js", "drawing.js", "figures.js", "page.js")


def rendered(facts: Facts, command: str) -> str:
    """Return the whole page as HTML text."""
    markup = imported("markupsafe").Markup

    script = "\n".join(asset("kcalc.lab.report", name) for name in SCRIPTS)
    hashed = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    view = shown(facts)
    return template(asset("kcalc.lab.report", "page.html")).render(
        view,
        facts=facts,
        verdict=verdict,
        meaning=meaning,
        number=number,
        provenance=provenance(command),
        fingerprint=f"sha256-{hashed}",  # the page allows only its own script
        style=markup(asset("kcalc.lab.report", "page.css")),
        script=markup(script),
        data=markup(embedded(_data(facts, view["parts"]))),
    )


def _data(facts: Facts, parts: Any) -> dict[str, Any]:
    """Return the data for the page's scripts."""
    options = facts.shaping.options if facts.shaping else {}
    return {
        "explorer": facts.explorer,
        "drawing": drawing_data(facts, parts),
        "slopes": slope_data(facts),
        "kernels": facts.kernels,
        "sphere": SPHERE,
        "tokens": facts.tokens,
        "depths": [facts.before, facts.after],
        "widths": facts.widths,
        "outputs": [str(node) for node in facts.subject.network.outputs],
        "method": facts.main.method if facts.main else None,
        "setting": {
            key: options[key]
            for key in ("zeta", "eta")
            if isinstance(options.get(key), int | float)
        },
    }


def provenance(command: str) -> dict[str, str]:
    """Return versions, the date, and the command that regenerates the page."""
    versions = (f"{name} {_version(name)}" for name in ("numpy", "scipy", "sympy", "jax"))
    return {
        "made with": f"kcalc {__version__}, Python {platform.python_version()}",
        "libraries": ", ".join(versions),
        "date": f"{_now():%Y-%m-%d %H:%M} UTC",
        "made by": command,
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _now() -> datetime.datetime:
    """Return the current time in UTC, or the time given by SOURCE_DATE_EPOCH.

    Reproducible builds must be identical byte for byte, so they set the time with
    SOURCE_DATE_EPOCH.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    known = float(epoch) if epoch.isdecimal() and len(epoch) < 12 else time.time()
    return datetime.datetime.fromtimestamp(known, datetime.UTC)
