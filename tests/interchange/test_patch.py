"""Patches of the user's source: they apply, and the model runs without kcalc as the edited one."""

import copy
import importlib
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

import kcalc as kc

torch = pytest.importorskip("torch")
from edit_oracle import edited  # noqa: E402
from torch import nn  # noqa: E402

from kcalc.interchange.torch_model import patching  # noqa: E402
from kcalc.interchange.torch_model.apply import scaled_edits  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch here")

HELPERS = """
import functools

import torch
import torch.nn.functional as F


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper


@decorated
def leaky(x, *, slope=.1, **more):
    return F.leaky_relu(x, slope)


def both(x,
         y,
         ):
    x += y
    return (x) \\
        + y
"""
BLOCKS = '''"""Blocks with a norm, a method that helps, and a sum."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Base(nn.Module):
    def forward(self, x):
        return x


class Block(Base):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.first = nn.Linear(width, width, bias=False)
        self.second = nn.Linear(width, width)

    def branch(self, x):
        return torch.tanh(x)

    def forward(self, x):
        x = super().forward(x)
        # the branch, in place
        y = F.relu(
            self.first(self.norm(x)),  # ünïcode
            inplace=True,
        )
        return x + self.branch(self.second(y))
'''
RESIDUAL = """import torch
from torch import nn
from .blocks import Block


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(2))
        self.act, self.last = nn.GELU(), nn.Linear(16, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, x, scale=1):
        x = self.inp(x)
        for block in self.blocks: x = block(x)
        x = x + torch.tanh(self.last(x))
        return scale * self.out(self.act(x))
"""
LOOPED = '''import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .helpers import both, leaky

shaped = 3  # a name that is taken
phi = lambda x: torch.tanh(x)  # noqa


class Looped(nn.Module):
    """A loop, functions that help, methods of arrays."""

    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.more = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.deep, self.out = nn.Linear(16, 16), nn.Linear(16, 4)

    def block(self, x):
        return torch.sin(self.deep(x))

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = (layer(x)
                 # over two lines
                 .relu_())
            x = x if layer is self.layers[0] else x * 1.0
        x = phi(self.more[0](x)); x = leaky(self.more[1](x), slope=.2)
        x = torch.add(self.more[2](x), self.more[3](x))
        x = checkpoint(self.block, x, use_reentrant=False)
        return self.out(both(self.more[4](x), self.more[5](x)))
'''
ENCODED = """from torch import nn


class Encoded(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        return self.out(self.net(x))
"""
SIGNS = """from torch import nn
import torch


def only(parts):
    return torch.relu(next(iter(parts)))


class Signs(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.norm = nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16)
        self.branch, self.out = nn.Linear(16, 16), nn.Linear(16, 4)
        self.layers = nn.ModuleList([nn.Linear(16, 16)])

    def forward(self, x):
        x = torch.tanh(self.norm(self.inp(x)))
        x = x + -torch.tanh(self.branch(x))
        return self.out(only(layer(x) for layer in self.layers))
"""
FURTHER = """import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def times(a, b):
    return torch.tanh(a * b)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, x):
        return self.layer(torch.tanh(x))


class Further(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 16, 0), Head()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))

    def late(self):
        return torch.tanh(self.layers[3](self.kept))

    def forward(self, ids):
        x = torch.tanh(input=self.layers[0](self.table(ids)))
        x = times(2.0, self.layers[1](times(x, 2.0)))
        self.kept = x
        x = checkpoint(function=self.late, use_reentrant=False)
        for i in (4, 5):
            x = (1.0 if i == 5 else 0.6) * x + (1.0 if i == 5 else 0.8) * self.layers[i](x)
        x = F.relu(2 * self.layers[6](x), inplace=True)
        y = 2 * self.layers[7](x)
        F.relu(input=y, inplace=True)
        return self.head(y)
"""
ODD_LIBRARY = """import torch


def drawn(x):
    return torch.tanh(x)


def plain(x):
    return torch.tanh(x)


def closed(scale):
    def inner(x):
        return torch.tanh(x) * scale

    return inner


bare = lambda x: torch.tanh(x)  # noqa
within = closed(1.0)
TABLE = {"plain": plain}
"""
ODD = """import torch
from torch import nn
from . import odd_library
from .odd_library import within


def helper(x):
    here = 1.0
    return torch.tanh(x) * here


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(7))

    def forward(self, x):
        x = odd_library.drawn(self.layers[0](x))
        x = odd_library.bare(self.layers[1](x))
        x = within(self.layers[2](x))
        plain = odd_library.plain
        x = plain(self.layers[3](x))
        x = odd_library.TABLE["plain"](self.layers[4](x))
        x = helper(self.layers[5](x))
        found, places = [self.layers[6](x)], iter([0])
        found[next(places)] += x
        return found[0]
"""
WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "kcalc":
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
sys.path.insert(0, sys.argv[1])
import copy, importlib, pickle
import torch

for name in sys.argv[2:]:
    known = torch.load(f"{sys.argv[1]}/{name}.pt")
    kind = getattr(importlib.import_module(f"ours.{name.lower()}"), name)
    init = importlib.import_module(f"ours.shaped_{name.lower()}").init
    def fresh():
        model = kind()
        model.load_state_dict(known["state"])
        return model.eval()
    x = known["x"]
    assert torch.equal(fresh()(x), known["plain"]), name
    model = init(fresh(), draw=False)
    for found in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(found(x), known["kept"])
    assert [*model.state_dict()] == known["keys"]
    assert isinstance(model, kind) and type(model).__name__ == name
    drawn = init(fresh(), generator=torch.Generator().manual_seed(3)).eval()
    torch.testing.assert_close(drawn(x), known["drawn"])
    other = fresh()
    next(m for m in other.modules() if isinstance(m, torch.nn.Linear)).weight = (
        torch.nn.Parameter(torch.zeros(3, 5))
    )
    try:
        init(other)
    except ValueError as error:
        assert "has shape (3, 5), but had shape" in str(error)
    else:
        raise AssertionError("a model of another width")
    for layers in (model.layers[:2], model.layers + model.layers) if name == "Looped" else ():
        model.layers = layers
        try:
            model(x)
        except RuntimeError as error:
            assert "loop" in str(error)
        else:
            raise AssertionError("a loop of another length")
print("all equal")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A package ``ours`` of models, imported; the folder above it."""
    folder = tmp_path_factory.mktemp("project")
    package = folder / "src" / "ours"
    package.mkdir(parents=True)
    texts = {"residual": RESIDUAL, "blocks": BLOCKS, "looped": LOOPED, "encoded": ENCODED}
    texts |= {"signs": SIGNS, "further": FURTHER, "odd": ODD, "odd_library": ODD_LIBRARY}
    for name, text in (texts | {"helpers": HELPERS, "__init__": ""}).items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "src")
        yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "ours"]:
        del sys.modules[name]


def of_reading(model, x, activation=None):
    reading = kc.read(model, x)
    return kc.shape(reading, activation, method="dks", zeta=1.5, assume_independent=True)


def shaped(name, activation=None):
    """A model of the project, an input, and its shaping."""
    torch.manual_seed(0)
    model = getattr(importlib.import_module(f"ours.{name.lower()}"), name)().eval()
    x = torch.randn(3, 5, 16) if name == "Encoded" else torch.randn(3, 8)
    x = torch.arange(6).view(2, 3) if name == "Further" else x
    return model, x, of_reading(model, x, activation)


def apply(text, folder):
    done = subprocess.run(
        ["patch", "-p1", "--binary"], input=text.encode(), cwd=folder, capture_output=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run_without_kcalc(names, project, folder):
    """Patch models of the project in another folder, and compare them there with edited ones."""
    shutil.copytree(project / "src", folder / "src", ignore=lambda *_: ["__pycache__"])
    for name, activation in names.items():
        model, x, s = shaped(name, activation)
        apply(s.edits.patch(model, root=project), folder)
        kept = kc.apply_edits(model, s.edits, weights="keep").eval()
        generator = torch.Generator().manual_seed(3)
        drawn = kc.apply_edits(model, s.edits, generator=generator).eval()
        assert not torch.allclose(kept(x), model(x))
        known = {"x": x, "state": model.state_dict(), "plain": model(x), "kept": kept(x)}
        known |= {"drawn": drawn(x), "keys": [*kept.state_dict()]}
        torch.save(known, folder / "src" / f"{name}.pt")
    call = [sys.executable, "-c", WITHOUT, str(folder / "src"), *names]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.stdout == "all equal\n", done.stderr


def test_patched_models_run_without_kcalc(project, tmp_path):
    """Equal to ``kc.apply_edits``, with the old weights and with new ones."""
    names = {"Residual": None, "Looped": "softsign", "Encoded": None, "Signs": None}
    names["Further"] = None
    run_without_kcalc(names, project, tmp_path)


@pytest.mark.slow
def test_code_of_libraries_is_copied(project, tmp_path, monkeypatch):
    """Functions and classes that cannot be changed: their edited code stands in the new file."""
    fixed = ("helpers.py", "blocks.py", "transformer.py")
    monkeypatch.setattr(patching, "is_library", lambda file: file.endswith(fixed))
    run_without_kcalc({"Residual": "softsign", "Looped": None}, project, tmp_path)
    for name in ("helpers", "blocks"):
        old = project / "src" / "ours" / f"{name}.py"
        assert (tmp_path / "src" / "ours" / f"{name}.py").read_text() == old.read_text()


def test_the_shaping_makes_the_patch_of_the_model_that_was_read(project, tmp_path, monkeypatch):
    """``s.patch(path)``; paths begin at the folder of imports, or at the present one above it."""
    monkeypatch.chdir(tmp_path)
    _, _, s = shaped("Looped")
    text = s.patch("shaped.patch")
    assert Path("shaped.patch").read_text(encoding="utf-8") == text
    assert "+++ b/ours/looped.py" in text and "+++ b/ours/helpers.py" in text
    assert "import shaped as shaped_call" in text
    monkeypatch.chdir(project)
    assert "+++ b/src/ours/looped.py" in s.patch()


def test_ends_of_lines_stay(tmp_path, monkeypatch):
    """A file with the line ends of Windows and no last line end."""
    package = tmp_path / "endings"
    package.mkdir()
    body = ENCODED.strip().replace("self.net(x)", "self.net(x).relu()")
    (package / "__init__.py").write_bytes(body.replace("\n", "\r\n").encode())
    monkeypatch.syspath_prepend(tmp_path)
    from endings import Encoded  # type: ignore[import-not-found]

    model = Encoded().eval()
    (package / "shaped_encoded.py").touch()
    apply(of_reading(model, torch.randn(2, 5, 16)).edits.patch(model, root=tmp_path), tmp_path)
    assert (package / "shaped_encoded_2.py").exists()
    new = (package / "__init__.py").read_bytes()
    assert new.count(b"\r\n") == new.count(b"\n") and not new.endswith(b"\n")


def test_what_cannot_be_patched(project, tmp_path):
    """Another model, code without a file, a folder elsewhere, changed files: one line each."""
    model, _, s = shaped("Residual")
    file = project / "src" / "ours" / "residual.py"
    for words, *given in (
        ("no module 'blocks", torch.nn.Linear(3, 3), None),
        ("root", model, tmp_path),
        ("root", model, tmp_path / "missing"),
        ("Module", "model", None),
        ("changed", model, project),
    ):
        file.write_text(RESIDUAL + "\n# more\n" * (words == "changed"), encoding="utf-8")
        with refused(words):
            s.edits.patch(given[0], root=given[1])
    file.write_text(RESIDUAL, encoding="utf-8")


def test_edits_that_a_patch_cannot_express(project, monkeypatch):
    """Copied code with other globals, library code by local names, names and calls in the way."""
    model: Any = importlib.import_module("ours.odd").Odd()
    *_, edits = edited(model, torch.randn(3, 8))
    monkeypatch.setattr(patching, "is_library", lambda file: file.endswith("odd_library.py"))
    words = [
        "odd_library.drawn is library code", "odd_library.<lambda> is", "closed.<locals>.inner is",
        "odd_library.plain is", "odd_library.plain is", "variable 'here'", "next.places.* twice",
    ]  # fmt: skip
    for match, edit in zip(words, edits, strict=True):
        with refused(match):
            replace(edits, items=(edit,)).patch(model, root=project)


def test_patches_of_library_classes():
    """They consist of the new file, here with only the edits of activations or scaled weights."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), torch.randn(3, 8)
    s = of_reading(model, x)
    for edits in (s.edits.only("activation"), scaled_edits(kc.read(model, x), {"0": 2.0})):
        lines = edits.patch(model).splitlines(True)
        names = {"__name__": __name__}
        exec("".join(line[1:] for line in lines if line[0] == "+" != line[1]), names)
        kept = kc.apply_edits(model, edits)(x)
        torch.testing.assert_close(names["init"](copy.deepcopy(model))(x), kept)
        assert not torch.allclose(kept, model(x))


def test_networks_that_were_not_read_have_no_patch():
    with refused(r"kc\.read"):
        kc.shape(kc.architectures.vanilla(5, "tanh"), method="dks", zeta=1.5).patch()
