"""The peers' environments: built once in a cache folder, or given by the variables
``KCALC_BENCH_DKS`` and ``KCALC_BENCH_NEURAL_TANGENTS``.

neural-tangents 0.6.5 can be imported only with old versions of JAX, and dks needs none of its many
dependencies to compute constants.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Peer:
    """A package that kcalc is compared with: the requirements to install, and whether to skip
    dependencies.
    """

    name: str
    module: str
    packages: tuple[str, ...]
    bare: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        return f"KCALC_BENCH_{self.name.upper().replace('-', '_')}"


PEERS = (
    Peer("dks", "dks", ("numpy==1.26.4", "scipy==1.13.1", "absl-py", "autograd"), ("dks==0.1.2",)),
    Peer(
        "neural-tangents",
        "neural_tangents",
        (
            "neural-tangents==0.6.5",
            "jax==0.4.30",
            "jaxlib==0.4.30",
            "numpy==1.26.4",
            "scipy==1.13.1",
        ),
    ),
)


class PeerError(RuntimeError):
    """Raised if an environment cannot be built."""


def cache() -> Path:
    """The folder for the environments."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("KCALC_BENCH_CACHE") or Path(base) / "kcalc-benchmarks")


def interpreters(folder: Path, say: Callable[[str], None]) -> dict[str, str]:
    """Return {peer: its Python}, building environments that do not exist yet.

    Raises: PeerError with pip's last line.
    """
    return {
        peer.name: os.environ.get(peer.variable) or str(_built(peer, folder, say)) for peer in PEERS
    }


def _built(peer: Peer, folder: Path, say: Callable[[str], None]) -> Path:
    home = folder / peer.name
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    done = home / "complete"  # written last, so that an interrupted build is repeated
    if done.exists() and done.read_text() == _recipe(peer):
        return python
    say(f"building the environment of {peer.name} in {home}")
    venv.create(home, clear=True, with_pip=True)
    _pip(peer, python, peer.packages)
    if peer.bare:
        _pip(peer, python, ("--no-deps", *peer.bare))
    subprocess.run([python, "-c", f"import {peer.module}"], check=True)
    done.write_text(_recipe(peer))
    return python


def _recipe(peer: Peer) -> str:
    return " ".join((*peer.packages, *peer.bare))


def _pip(peer: Peer, python: Path, arguments: tuple[str, ...]) -> None:
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        *arguments,
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise PeerError(
            f"the environment of {peer.name} cannot be built: "
            f"{(found.stderr.strip().splitlines() or ['?'])[-1]}"
        )


def described(peers: Mapping[str, str]) -> list[str]:
    """The packages in each environment."""
    code = (
        "import importlib.metadata as m, sys; print(', '.join(f'{p} {m.version(p)}' for p in "
        "sys.argv[1:]))"
    )
    found = []
    for peer in PEERS:
        if peer.name in peers:
            names = [package.split("==")[0] for package in (*peer.bare, *peer.packages)]
            done = subprocess.run(
                [peers[peer.name], "-c", code, *names], capture_output=True, text=True, check=False
            )
            found.append(done.stdout.strip() or peer.name)
    return found
