"""Shared test options.

``--run-slow`` runs the checks marked slow too, in the code or by their measured times in
``slow.json``. ``--every N`` takes every N-th case of those with many, and ``--budget S`` as many as
take S seconds.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import mmap
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

# Tests run in a process per core; linear algebra on as many threads again would only wait for each
# other.
for _library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")
# Graphics processors round the factors of float32 products to 10 bits unless asked not to.
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")


def _compile_quickly() -> None:
    """Most programs run once on small arrays.

    The compiler's optimisations take longer than they save; see ``full_compilation``.
    """
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    given, name = os.environ.get("XLA_FLAGS", ""), QUICK.split("=")[0]
    if name not in given and _known(name.strip("-")):
        os.environ["XLA_FLAGS"] = f"{given} {QUICK}".strip()


def _known(flag: str) -> bool:
    """Whether the compiler has a flag; one that it does not know ends the process."""
    found = importlib.util.find_spec("jaxlib")
    library = (
        Path(found.origin).with_name("libjax_common.so")
        if found is not None and found.origin
        else None
    )
    if library is None or not library.exists():
        return False
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        # the names of retired flags stay in the file, as parts of longer texts
        return content.find(b"\0" + flag.encode() + b"\0") >= 0


QUICK = "--xla_cpu_use_fusion_emitters=false"  # a third of the time of large programs
_compile_quickly()

import matplotlib  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

sys.path.append(str(Path(__file__).with_name("tools")))
import deletion  # noqa: E402
import durations  # noqa: E402

NEEDING = deletion.needing()
collect_ignore_glob = [
    test.removeprefix("tests/") for test in NEEDING if "::" not in test
]  # in a copy of the project without a guest

matplotlib.use("Agg")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run checks marked slow")
    parser.addoption(
        "--every",
        type=int,
        default=1,
        metavar="N",
        help="of the cases of a long check, run every N-th",
    )
    parser.addoption(
        "--budget",
        type=float,
        metavar="S",
        help="of the slow cases, run the cheapest of every check that fit in S CPU seconds",
    )
    parser.addoption("--durations-to", metavar="FOLDER", help="write CPU seconds of each case")


def pytest_configure(config: pytest.Config) -> None:
    if folder := config.getoption("--durations-to"):
        config.pluginmanager.register(Stopwatch(Path(folder)))


INTEROP = (  # brought by the extra test-interop; tests that need a missing one are skipped
    "torch",
    "onnx",
    "onnxruntime",
    "flax",
    "equinox",
    "keras",
    "dask",
    "distributed",
    "ipywidgets",
)


def _absent(library: str | None) -> str | None:
    """A library of the extra test-interop that is not installed; None for all else."""
    root = (library or "").partition(".")[0]
    return root if root in INTEROP and importlib.util.find_spec(root) is None else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    _seed()  # modules may draw as they are imported
    report = yield
    found = re.search(r"No module named '(\w+)", str(report.longrepr)) if report.failed else None
    if found and (library := _absent(found[1])):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"needs {library}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    error = call.excinfo.value if call.excinfo is not None and report.failed else None
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and (library := _absent(error.name)):
            report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"needs {library}")
        error = error.__cause__ or error.__context__
    return report


class Stopwatch:
    """Writes down the CPU seconds of each case, those of its child processes included."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{os.getpid()}.jsonl"
        for name in (
            "kcalc.shaping",
            "kcalc.interchange",
            "kcalc.lab.report",
            "torch",
            "jax",
            "keras",
        ):
            with contextlib.suppress(ImportError):  # its import is no part of the first test's time
                importlib.import_module(name)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        started = sum(os.times()[:4])
        result = yield
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([item.nodeid, sum(os.times()[:4]) - started]) + "\n")
        return result


# rooms whose tests are all short come last: no process then waits long for the other
SHORT = ("fields", "network", "plotting")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.parent.name in SHORT)
    # a measurement takes the cases that are marked in the code only as slow ones
    seconds = {} if config.getoption("--durations-to") else durations.marked()
    for item in items:
        if guest := NEEDING.get(item.nodeid) or NEEDING.get(item.nodeid.partition("[")[0]):
            item.add_marker(pytest.mark.skip(reason=f"needs {guest}"))
        if item.nodeid in seconds:
            item.add_marker(pytest.mark.slow)
    if config.getoption("--run-slow"):
        _thin_out(config, items, config.getoption("--every"))
        if (budget := config.getoption("--budget")) is not None:
            slow = (item.nodeid for item in items if "slow" in item.keywords)
            chosen = durations.within(slow, seconds, budget)
            _keep_only(
                config, items, lambda item: "slow" not in item.keywords or item.nodeid in chosen
            )
        return
    skip = pytest.mark.skip(reason="long; run with --run-slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish(session: pytest.Session) -> None:
    _keep()
    gc.set_threshold(100_000, 50, 50)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path != item.path:
        _keep()


def _seed() -> None:
    """The same draws whichever tests ran before in the same process.

    Keras takes its seeds from ``random``.
    """
    random.seed(0)
    np.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _seed()


def _keep() -> None:
    """What has been imported, collected and cached stays to the end.

    The garbage collector need not go through it again and again.
    """
    gc.collect()
    gc.freeze()


def _thin_out(config: pytest.Config, items: list[pytest.Item], step: int) -> None:
    # cases of the same check that always run
    seen = Counter(item.nodeid.split("[")[0] for item in items if "slow" not in item.keywords)

    def chosen(item: pytest.Item) -> bool:
        name = item.nodeid.split("[")[0]
        kept = "slow" not in item.keywords or seen[name] % step == 0
        seen[name] += "slow" in item.keywords
        return kept

    _keep_only(config, items, chosen)


def _keep_only(
    config: pytest.Config, items: list[pytest.Item], chosen: Callable[[pytest.Item], bool]
) -> None:
    kept, left = [], []
    for item in items:
        (kept if chosen(item) else left).append(item)
    items[:] = kept
    if left:
        config.hook.pytest_deselected(items=left)


@pytest.fixture
def every(request: pytest.FixtureRequest) -> int:
    """The option ``--every``, for long checks that are one loop over many cases."""
    return request.config.getoption("--every")


@pytest.fixture
def untouched_pyplot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is shown, no global setting changes, no figure stays open."""
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "show", lambda *_, **__: pytest.fail("a plot was shown"))
    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before
    plt.close("all")


@pytest.fixture
def full_compilation() -> Iterator[None]:
    """Wide networks take longer to run than to compile."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
