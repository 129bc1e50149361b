"""Without a guest's folder the plain calculi answer, and what needs it raises one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

TOKENS = (
    "kcalc.calculi.attention",
    "kcalc.calculi.tied_readout",
    "kcalc.gaussian.softmax",
    "kcalc.gaussian.softmax_groups",
    "kcalc.gaussian.certified.softmax",
    "kcalc.network.architectures.transformers",
    "kcalc.network.token_mixing",
)
HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in {hidden!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""
PLAIN = """
import kcalc as kc
from kcalc.foundation.guests import MissingGuest

L = kc.layers
net = kc.chain(L.Input(3), L.Affine(4), L.Nonlinear("relu"), L.Affine(1))
C, K = kc.c_map(net), kc.ntk(net)
values = [C(0.3), kc.q_map(net)(2.0), K(0.3), K.nngp(0.3), *kc.q_values(net).values()]
values += [kc.node_values(net, 0.3)["affine_2"].c, *kc.gradients(net).nodes.values()]
values += [C.symbolic(), K.symbolic(), kc.slope_polynomial(net), kc.maximal_slope(net)(1.3)]
ball = C.ball(0.3)
assert float(ball.lower) - 1e-15 < values[0] < float(ball.upper) + 1e-15
assert len(kc.subnetworks(net)) == 1
assert all(str(value) for value in values)

def missing(call, folder):
    try:
        call()
    except MissingGuest as error:
        assert folder in str(error) and "\\n" not in str(error), error
    else:
        raise AssertionError(folder)
"""
CALLS = {
    "tokens": (
        TOKENS,
        "kcalc/calculi/attention",
        """
for ask in (kc.c_map, kc.q_map, kc.q_values, kc.node_values, kc.gradients, kc.ntk):
    missing(lambda: ask(net, tokens=4), FOLDER)
missing(lambda: kc.token_map(net, 4), FOLDER)
missing(lambda: kc.Sampling, FOLDER)
missing(lambda: kc.architectures.bert, "kcalc/network/architectures/transformers")
missing(lambda: kc.token_mixing, "kcalc/network/token_mixing")
""",
    ),
    "images": (
        ("kcalc.calculi.spatial",),
        "kcalc/calculi/spatial",
        """
for ask in (kc.c_map, kc.ntk):
    missing(lambda: ask(net, spatial="exact", image_shape=(4, 4)), FOLDER)
""",
    ),
}


@pytest.mark.parametrize("guest", CALLS)
def test_plain_networks_need_no_guest(guest: str) -> None:
    hidden, folder, calls = CALLS[guest]
    program = HIDDEN.format(hidden=hidden) + PLAIN + f"FOLDER = {folder!r}\n" + calls
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
