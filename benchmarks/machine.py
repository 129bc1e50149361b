"""The machine on which the figures were measured."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "numpy",
    "scipy",
    "sympy",
    "mpmath",
    "networkx",
    "python-flint",
    "jax",
    "jaxlib",
    "matplotlib",
)
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "XLA_FLAGS")


def load() -> str:
    """The load averages over 1, 5 and 15 minutes."""
    return (
        ", ".join(f"{value:.1f}" for value in os.getloadavg())
        if hasattr(os, "getloadavg")
        else "not known"
    )


def cores() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The name of the CPU, if the system reports it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor() or "unknown",
    )


def memory() -> str:
    """The machine's memory."""
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (ValueError, OSError, AttributeError):
        return "unknown"


def version(package: str) -> str:
    """The version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def heading(command: str, before: str, taken: float, peers: Sequence[str]) -> list[str]:
    """Paragraphs about where, when and how the figures were measured."""
    from kcalc.version import __version__

    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    threads = (
        ", ".join(f"{name}={os.environ[name]}" for name in THREADS if name in os.environ)
        or "the defaults of the libraries"
    )
    return [
        f"Written by `{command}` on {time.strftime('%Y-%m-%d')} in {taken / 60:.1f} minutes. "
        "Times are medians of alternating rounds; ratios are more reliable than milliseconds.",
        f"- Machine: {cores()} CPUs ({processor()}), {memory()}, {platform.system()} "
        f"{platform.machine()}; load average {before} at the start and {load()} at the end (1, 5, "
        f"15 minutes); a load far above {cores()} means that the processes shared the CPUs\n- "
        f"Python {platform.python_version()}, kcalc {__version__}, {versions}\n- Threads: "
        f"{threads}\n- Peers: {'; '.join(peers) or 'none (without --peers)'}",
    ]
