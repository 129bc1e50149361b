"""Every activation on every architecture with every target.

Solved to 1e-13 at 50 digits, or refused with the nearest target.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial

import pytest
from shaping_oracle import truth

import kcalc as kc
from kcalc.shaping.choose_branch import solve
from kcalc.shaping.dks import constants_for
from kcalc.shaping.tat import check_curvature, curvature_systems, negative_slope

A, L = kc.architectures, kc.layers
ACTIVATIONS = (
    "tanh",
    "softplus",
    "sigmoid",
    "erf",
    "gelu",
    "swish",
    "mish",
    "elu",
    "selu",
    kc.activations.celu(2),
    "softsign",
    "atan",
    "asinh",
    "bentid",
    "relu",
    "leaky_relu",
    "hard_tanh",
    "hard_swish",
    "relu6",
    "exp",
)
ZETAS, TAUS, ETAS = (1.01, 1.1, 1.5, 10.0), (0.2, 0.3, 0.5), (0.5, 0.9, 0.95)
ALLOWED = 1e-13


def random_dag(seed: int = 7, size: int = 40) -> kc.Network:
    """Blocks (activation, Affine) on random earlier feature maps, some merged by
    normalised Sums.
    """
    pick = random.Random(seed)
    steps: list = [("x", L.Input(), ()), ("a0", L.Affine(), ("x",))]
    unread = ["a0"]
    for i in range(1, size):
        source = (
            unread.pop(pick.randrange(len(unread)))
            if len(unread) > 3
            else pick.choice([s[0] for s in steps if isinstance(s[1], L.Affine)])
        )
        steps += [(f"f{i}", L.Nonlinear("relu"), (source,)), (f"a{i}", L.Affine(), (f"f{i}",))]
        unread = [*dict.fromkeys([*(u for u in unread if u != source), f"a{i}"])]
        if len(unread) > 2:
            one, two = unread.pop(0), unread.pop(0)
            w = pick.uniform(0.3, 0.9)
            steps += [
                (f"s{i}", L.Sum((w, (1 - w * w) ** 0.5)), (one, two)),
                (f"g{i}", L.Nonlinear("relu"), (f"s{i}",)),
                (f"b{i}", L.Affine(), (f"g{i}",)),
            ]
            unread.append(f"b{i}")
    while len(unread) > 1:
        one, two = unread.pop(), unread.pop()
        name = f"m{len(unread)}"
        steps.append((name, L.Sum((0.6, 0.8)), (one, two)))
        unread.append(name)
    return kc.Network.from_steps(steps, [unread[0]])


def networks() -> dict[str, kc.Network]:
    out = {
        "vanilla-100": A.vanilla(100),
        "wide-resnet-250": A.wide_resnet(250),
        "densenet-121": densenet_121(),
        "random DAG": random_dag(),
    }
    for depth in (50, 101, 152):
        for weight in (0.0, 0.5, 0.8, 0.9):
            out[f"resnet-{depth} w={weight}"] = A.resnet_v2(depth, shortcut_weight=weight)
    return out


def densenet_121() -> kc.Network:
    """58 bottleneck layers in four dense blocks of 6, 12, 24 and 16, growth 32.

    Concatenations, and halving transitions.
    """
    steps: list = [("x", L.Input(3), ()), ("stem", L.Affine(64), ("x",))]
    tail, channels = "stem", 64
    for block, count in enumerate((6, 12, 24, 16)):
        for i in range(count):
            n = f"{block}.{i}"
            steps += [
                (f"f{n}", L.Nonlinear("relu"), (tail,)),
                (f"a{n}", L.Affine(128), (f"f{n}",)),
                (f"g{n}", L.Nonlinear("relu"), (f"a{n}",)),
            ]
            steps += [(f"b{n}", L.Affine(32), (f"g{n}",)), (f"c{n}", L.Concat(), (tail, f"b{n}"))]
            tail, channels = f"c{n}", channels + 32
        channels //= 2
        steps += [
            (f"t{block}", L.Nonlinear("relu"), (tail,)),
            (f"u{block}", L.Affine(channels), (f"t{block}",)),
        ]
        tail = f"u{block}"
    return kc.Network.from_steps(steps, [tail])


def residual(constants, targets: dict[str, float]) -> float:
    values = truth(constants, "C''(1)" in targets)
    return max(
        abs(float(values[name] - target)) / max(1.0, target) for name, target in targets.items()
    )


def cells() -> Iterator[tuple[str, str, Callable[[], float]]]:
    """Kind, place and computation of every cell of the grid."""
    for title, net in networks().items():
        for zeta in ZETAS:
            slope = cache(partial(_slope, net, zeta))
            for name in ACTIVATIONS:
                yield (
                    f"dks {kc.activation(name).name}",
                    f"{title} zeta={zeta}",
                    partial(_dks, name, slope),
                )
        for tau in TAUS:
            curvature = cache(partial(_curvature, net, tau))
            for name in ACTIVATIONS:
                yield (
                    f"tat {kc.activation(name).name}",
                    f"{title} tau={tau}",
                    partial(_tat, name, curvature),
                )
        for eta in ETAS:
            yield "tat eta", f"{title} eta={eta}", partial(_eta, net, eta)


@pytest.mark.slow
def test_every_cell_is_solved_or_refused(capsys, every) -> None:
    counts: Counter[str] = Counter()
    worst: dict[str, float] = {}
    refused: dict[str, str] = {}
    # no divisor of it is one of the number of activations: all have their turn
    step = 1 if every == 1 else 4 * every + 1
    for kind, where, run in itertools.islice(cells(), 0, None, step):
        _cell(kind, where, run, counts, worst, refused)
    lines = ["", f"{'kind':16}  solved refused  worst residual  a refusal"]
    for kind in sorted(worst | refused):
        numbers = (
            f"{counts[kind, 'solved']:6} {counts[kind, 'refused']:7}  {worst.get(kind, 0):14.1e}"
        )
        lines.append(f"{kind:16}  {numbers}  {refused.get(kind, '')[:110]}")
    lines.append(
        f"cells: {sum(counts.values())}, solved "
        f"{sum(v for k, v in counts.items() if k[1] == 'solved')}"
    )
    with capsys.disabled():
        sys.stdout.write("\n".join(lines) + "\n")
    assert max(worst.values()) <= ALLOWED


def _cell(
    kind: str, where: str, run, counts: Counter, worst: dict[str, float], refused: dict[str, str]
) -> None:
    try:
        worst[kind] = max(worst.get(kind, 0.0), run())
        counts[kind, "solved"] += 1
    except kc.KcalcError as error:
        counts[kind, "refused"] += 1
        refused[kind] = f"{where}: {error}"
        reasons = ("nearest", "cannot be met", "infinite", "positively homogeneous", "C'(1) up to")
        assert any(reason in str(error) for reason in reasons), refused[kind]


def _slope(net: kc.Network, zeta: float) -> float:
    return float(kc.maximal_slope(net).inverse(zeta))


def _curvature(net: kc.Network, tau: float) -> float:
    return float(kc.maximal_curvature(net).inverse(tau))


def _dks(name: str, wanted: Callable[[], float]) -> float:
    phi, slope = kc.activation(name), wanted()
    k = constants_for(phi, slope)
    if k.negative_slope is not None:
        transformed = kc.Constants(
            kc.activations.leaky_relu(k.negative_slope), 1.0, 0.0, k.gamma, k.delta
        )
        return residual(transformed, {"Q(1)": 1.0, "C(0)": 0.0, "C'(1)": slope, "Q'(1)": 1.0})
    assert k.alpha is not None and k.alpha > 0
    return residual(
        k,
        {"Q(1)": 1.0, "C(0)": 0.0, "C'(1)": slope} | ({"Q'(1)": 1.0} if phi.degree is None else {}),
    )


def _tat(name: str, wanted: Callable[[], float]) -> float:
    phi, curvature = kc.activation(name), wanted()
    check_curvature(phi)
    return residual(
        solve(curvature_systems(phi, curvature)),
        {"Q(1)": 1.0, "Q'(1)": 1.0, "C'(1)": 1.0, "C''(1)": curvature},
    )


def _eta(net: kc.Network, eta: float) -> float:
    slope = negative_slope(net, eta)
    assert 0 <= slope < 1
    return (
        abs(float(kc.maximal(net, kc.activations.leaky_relu(slope).c_map)(0.0)) - eta)
        if slope
        else 0.0
    )
