"""What works without jax, matplotlib and the extras, and how a missing library is named."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kcalc as kc
from kcalc.foundation.extras import PIP

ROOT = Path(__file__).parents[2]
BROKEN = """
import sys

class Broken:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {libraries!r}:
            raise {error}

sys.meta_path.insert(0, Broken())
import kcalc as kc

L = kc.layers
net = kc.chain(L.Input(4), L.Affine(4), L.Nonlinear("tanh"), L.Affine(4))

def missing(call, command):
    try:
        call()
    except kc.KcalcError as error:
        assert "pip install " + command in str(error) and "\\n" not in str(error), error
    else:
        raise AssertionError(command)
"""
ERRORS = ("ModuleNotFoundError(name, name=name)", "RuntimeError('versions')")
CORE = """
import numpy as np
shaped = kc.shape(net, zeta=1.2)
assert max(shaped.residuals.values()) < 1e-9
values = [kc.c_map(net)(0.3), kc.q_map(net)(2.0), kc.ntk(net)(0.3), kc.gain("tanh")]
values += [kc.c_map(shaped.network)(0.3), kc.maximal_slope(net)(1.1), kc.scaling(net).to_dict()]
assert kc.ntk(net).matrix(np.eye(4)).shape == (4, 4)
assert all(shaped.export(to) for to in ("torch", "jax", "flax", "keras", "numpy"))
assert net._repr_html_() is None and shaped._repr_html_()
missing(lambda: kc.c_map(net).plot(), "matplotlib")
missing(shaped.plot, "matplotlib")
missing(net.draw, "matplotlib")
missing(lambda: kc.to_jax(net), "jax")
missing(lambda: kc.learnable_kernel(net), "jax")
missing(lambda: kc.ntk(net).matrix(np.eye(4), backend="jax"), "jax")
missing(lambda: kc.report(net), "'kcalc[report]'")
"""
AUDIT = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

found = kc.audit(build, (16, 4))
assert found.parameters and "jax" not in sys.modules and "matplotlib" not in sys.modules
"""
LIGHT = """
import sys
from kcalc.cli import main
assert main("shape resnet-101 --activation tanh --method dks".split()) == 0
print([name for name in ("jax", "matplotlib", "jinja2", "torch") if name in sys.modules])
"""
COMMANDS = """
import contextlib, io
from kcalc.cli import COMMANDS, main

works = {works!r}
refused = {refused!r}
assert {{line.split()[0] for line in (*works, *refused)}} | {models!r} == set(COMMANDS)
for line in (*works, *refused):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        status = main(line.split())
    said = said.getvalue()
    if line in refused:
        assert status == 2 and said.count("\\n") == 1, (line, said)
        assert said.rstrip().endswith("pip install " + refused[line]), (line, said)
    else:
        assert status == 0, (line, said)
"""
WORKS = (
    "maps vanilla-3",
    "shape vanilla-20 --activation tanh --json -",
    "shape vanilla-20 --method tat --export torch",
    "shape vanilla-20 --method geometric --features 16",
    "ntk vanilla-3",
    "gain tanh",
    "moments vanilla-3 --features 8",
    "scaling vanilla-3 --features 8",
    "smoothness vanilla-2 --activation tanh --features 4 --radius 1",
    "transfer vanilla-3 --width 16 --to 64",
    "verify --errata",
)
REFUSED = {
    "maps vanilla-3 --plot map.png": "matplotlib",
    "shape vanilla-20 --plot shaping.png": "matplotlib",
    "shape vanilla-20 --export onnx -o acts.onnx": "'kcalc[onnx]'",
    "report vanilla-3 -o page.html": "'kcalc[report]'",
    "train vanilla-3 --steps 1": "'kcalc[train]'",
    "verify --claim DKS-eq21 --html page.html": "'kcalc[report]'",
    "completion bash": "'kcalc[completion]'",
}
MODELS = {"apply", "read", "audit"}  # the audit of a model, below


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("error", ERRORS)
def test_maps_and_shaping_work_without_jax_and_matplotlib(error: str) -> None:
    libraries = ("jax", "jaxlib", "matplotlib", "jinja2", "latex2mathml", "markupsafe")
    run(BROKEN.format(libraries=libraries, error=error) + CORE)


def test_every_command_works_or_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    libraries = {library for library in PIP if library != "torch"} | {"jaxlib"}
    commands = COMMANDS.format(works=WORKS, refused=REFUSED, models=MODELS)
    run(BROKEN.format(libraries=libraries, error=ERRORS[1]) + commands)


def test_audits_work_without_jax_and_matplotlib() -> None:
    pytest.importorskip("torch")
    libraries = ("jax", "jaxlib", "matplotlib")
    run(BROKEN.format(libraries=libraries, error=ERRORS[0]) + AUDIT)


def test_the_command_line_shapes_with_neither_jax_nor_matplotlib() -> None:
    assert run(LIGHT).splitlines()[-1] == "[]"


def test_the_commands_name_extras_that_there_are() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = " ".join(project["dependencies"])
    for library, packages in PIP.items():
        if "[" in packages:
            name = packages.partition("[")[2].partition("]")[0]
            brought = " ".join(project["optional-dependencies"][name])
            alias = {"sklearn": "scikit-learn", "kfac_jax": "kfac-jax", "markupsafe": "jinja2"}
            assert alias.get(library, library) in brought
            assert library not in needed
        assert not packages.startswith("jax") or "jax" in needed


def test_no_module_imports_an_optional_library_at_its_top() -> None:
    """Readers of PyTorch models do: they are imported for PyTorch objects only."""
    allowed = {"lab/regression/network_kernel.py": {"sklearn"}}  # a subclass of scikit-learn's
    room = Path(kc.__file__).parent
    for path in room.rglob("*.py"):
        tops = set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                tops |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                tops.add((node.module or "").partition(".")[0])
        name = path.relative_to(room).as_posix()
        assert tops & (PIP.keys() - {"torch"}) <= allowed.get(name, set()), name
