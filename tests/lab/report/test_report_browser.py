"""The report in a headless browser.

Sliders moved, values read back and compared with the library's own maps, keyboard, phone, axe-core.

Skipped where playwright or Chromium is missing, unless KCALC_BROWSER=required. KCALC_AXE names
axe.min.js, without which that check is skipped.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from wiring import wired

import kcalc as kc

L, A = kc.layers, kc.architectures
REQUIRED = os.environ.get("KCALC_BROWSER") == "required"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
HOSTILE = "</script><img src=x onerror=\"document.title='broken'\">"


def two_inputs() -> kc.Network:
    """Two inputs of their own weights, added, with a hostile node name behind."""
    return wired(
        ("x", L.Input()),
        ("wx", L.Affine(sigma_w=1.2), "x"),
        ("y", L.Input()),
        ("wy", L.Affine(sigma_w=1.2), "y"),
        ("sum", L.Sum((0.6, 0.8)), "wx wy"),
        (HOSTILE, L.Nonlinear("tanh"), "sum"),
        ("out", L.Affine(), (HOSTILE,)),
    )


NETWORKS: dict[str, Callable[[], kc.Network]] = {
    "vanilla": lambda: A.vanilla(12, activation="tanh"),
    "resnet": lambda: A.resnet_v2(50),
    "two": two_inputs,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        if REQUIRED:
            raise
        pytest.skip("playwright is not installed")
    if CHROMIUM is None:
        if REQUIRED:
            raise RuntimeError("KCALC_BROWSER=required, and no chromium is on the path")
        pytest.skip("there is no chromium")
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The report of a network, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("reports")

    @cache
    def file(name: str) -> Path:
        kc.report(NETWORKS[name](), folder / f"{name}.html", name=name)
        return folder / f"{name}.html"

    return file


class Page:
    """A page opened, with all that went wrong on it."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.page = browser.new_page(**options)
        self.faults: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console",
            lambda m: self.faults.append(m.text) if m.type in ("error", "warning") else None,
        )
        self.page.on("pageerror", lambda e: self.faults.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_function("document.documentElement.dataset.ready === 'yes'")

    def move(self, control: str, value: float | str) -> None:
        """Set a control as a user's hand would."""
        field = self.page.locator(f"#control-{control}")
        field.evaluate(
            "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', {bubbles: true})); }",
            str(value),
        )
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def value(self, key: str) -> float:
        """A number of the read-out, with all its digits."""
        cell = self.page.locator(f"[data-key='{key}']")
        assert cell.count() == 1, (key, self.text("#maps-note"))
        return float(cell.get_attribute("data-value"))

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def close(self) -> None:
        """Close it, and say what went wrong."""
        self.page.close()
        assert not self.faults, self.faults
        assert all(url.startswith("file:") for url in self.requests) and len(self.requests) == 1, (
            self.requests
        )


@pytest.fixture
def opened(browser: Any, files: Callable[[str], Path]) -> Iterator[Callable[..., Page]]:
    """Opens pages, and checks at the end that none had an error or made a request."""
    pages: list[Page] = []

    def open_page(name: str, **options: Any) -> Page:
        pages.append(Page(browser, files(name), **options))
        return pages[-1]

    yield open_page
    for page in pages:
        page.close()


def test_cosines_outside_are_refused(opened: Callable[..., Page]) -> None:
    page = opened("vanilla")
    before = page.value("raw-c")
    for value, words in (("2", "cosine lies between"), ("", "No number")):
        page.move("c", value)
        assert words in page.text("#control-c-note") and page.value("raw-c") == before
    page.move("c", 0.1)
    assert page.text("#control-c-note") == ""


def test_keys_and_refusals(opened: Callable[..., Page]) -> None:
    page = opened("vanilla", viewport={"width": 1000, "height": 800})
    find, press = page.page.locator, page.page.keyboard.press
    find("#control-depth-0").focus()
    press("ArrowRight")
    assert page.text("#control-depth-0-value") == "13"
    find("#dag").focus()
    before = find("#dag > svg").get_attribute("style")
    press("+")
    press("ArrowDown")
    assert find("#dag > svg").get_attribute("style") != before
    press("Tab")
    assert "input" in page.text("#node-info")
    press("ArrowDown")
    assert "Affine" in page.text("#node-info")
    page.page.select_option("#subnetwork", index=1)
    assert find("#dag .node.in").count() > 1
    page.move("depth-0", 1)
    page.move("zeta", math.log(1.9))
    assert "outside the table" in page.text("#maps-note")
    find("#reset").click()
    assert page.text("#maps-note") == ""
    find("#theme").click()
    assert page.page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("name", ["vanilla", "resnet", "two"])
def test_phone(opened: Callable[..., Page], name: str) -> None:
    page = opened(name, viewport={"width": 360, "height": 740}, has_touch=True)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 360
    chart = "document.querySelector('#chart-c svg').getBoundingClientRect().width"
    assert page.page.evaluate(chart) > 200


def axe_source() -> str | None:
    """axe-core's text."""
    places = [os.environ.get("KCALC_AXE"), "node_modules/axe-core/axe.min.js"]
    found = next((Path(p) for p in places if p and Path(p).is_file()), None)
    return None if found is None else found.read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(opened: Callable[..., Page], scheme: str) -> None:
    source = axe_source()
    if source is None:
        if REQUIRED and "KCALC_AXE" in os.environ:
            raise RuntimeError("KCALC_AXE names no file")
        pytest.skip("axe-core is not there; name it in KCALC_AXE")
    for name in ("vanilla", "resnet") if scheme == "light" else ("vanilla",):
        page = opened(name, color_scheme=scheme, bypass_csp=True)
        if name == "vanilla":
            page.page.evaluate(
                "document.querySelectorAll('details').forEach(d => { d.open = true; })"
            )
        page.page.evaluate(source)
        found = page.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        bad = [(v["id"], v["nodes"][0]["html"][:200]) for v in found["violations"]]
        assert not bad, bad
