"""Time and residuals of shaping, per activation: ``python benchmarks/shaping.py [--peer] [--rounds 7]``.

``--peer`` adds google-deepmind/dks, if it is installed (``pip install --no-deps dks absl-py autograd`` in an environment of its own): CPU
time of one activation in a 100-layer plain network, warmed up, and the residuals where it goes wrong. All times are process time, best of
the rounds; activations alternate, so that a slow moment of the machine does not fall on one of them alone. Residuals are the largest
|value - target| over Q(1), Q'(1), C(0), C'(1), measured in 30 digits from the four constants alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import kcalc as kc
from kcalc.shaping.dks import constants_for
from kcalc.shaping.measure import local_values
from kcalc.shaping.search import solve
from kcalc.shaping.tat import check_curvature, curvature_systems

SMOOTH = (
    "tanh",
    "softplus",
    "swish",
    "sigmoid",
    "erf",
    "bentid",
    "atan",
    "asinh",
    "gelu",
    "gelu_tanh",
    "mish",
    "logcosh",
    "squareplus",
    "sin",
)
KINKED = ("elu", "selu", "celu", "softsign", "hard_swish")
HOMOGENEOUS = ("relu", "leaky_relu", "square")
PEER = (
    "tanh",
    "softplus",
    "leaky_relu",
    "relu",
    "selu",
    "elu",
    "swish",
    "sigmoid",
    "erf",
    "bentid",
    "atan",
    "asinh",
    "square",
    "softsign",
    "gelu",
)
PEER_NAMES = {"gelu": "gelu_exact"}  # theirs called gelu is the tanh approximation
DEPTH, ZETA, TAU = 100, 1.5, 0.3


def process_seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def best(jobs: dict[str, Callable[[], Any]], rounds: int, repeats: int) -> dict[str, float]:
    """The best mean of ``repeats`` calls over the rounds, in seconds."""
    out = dict.fromkeys(jobs, float("inf"))
    for run in jobs.values():
        run()
    for _ in range(rounds):
        for name, run in jobs.items():
            out[name] = min(out[name], process_seconds(lambda run=run: [run() for _ in range(repeats)]) / repeats)
    return out


def residual(constants: Any, slope: float, q_slope: bool) -> float:
    values = local_values(constants.transformed)
    targets = {"Q(1)": 1.0, "C(0)": 0.0, "C'(1)": slope} | ({"Q'(1)": 1.0} if q_slope else {})
    return max(abs(float(values[name] - target)) for name, target in targets.items())


def ours(rounds: int) -> dict[str, float]:
    slope = ZETA ** (1 / DEPTH)
    names = (*SMOOTH, *KINKED, *HOMOGENEOUS)
    dks = best({name: partial(constants_for, kc.activation(name), slope) for name in names}, rounds, 20)
    tat = best({name: partial(solve, curvature_systems(kc.activation(name), TAU / DEPTH)) for name in SMOOTH}, rounds, 20)
    print(f"constants of one activation, {DEPTH} layers: dks zeta = {ZETA}, tat tau = {TAU} (milliseconds, CPU)\n")
    print("| activation | dks | residual | tat |")
    print("|---|---|---|---|")
    for name in names:
        phi = kc.activation(name)
        left = residual(constants_for(phi, slope), slope, phi.degree is None)
        print(f"| {name} | {1e3 * dks[name]:.2f} | {left:.0e} | {f'{1e3 * tat[name]:.2f}' if name in tat else '-'} |")
    smooth = [1e3 * dks[name] for name in SMOOTH]
    print(
        f"\nmedian over smooth activations: dks {statistics.median(smooth):.2f}, tat {statistics.median(1e3 * t for t in tat.values()):.2f}"
    )
    return dks


def whole_networks(rounds: int) -> None:
    nets = {
        "resnet-152": kc.architectures.resnet_v2(152),
        "vanilla-100": kc.architectures.vanilla(100),
        "wide-resnet-250": kc.architectures.wide_resnet(250),
    }
    jobs = {
        f"{title}, {name}": (lambda net=net, name=name: kc.shape(net, name))
        for title, net in nets.items()
        for name in ("tanh", "gelu", "relu", "selu")
    }
    print("\nkc.shape(network, activation), validation and all (milliseconds, CPU)\n")
    for title, seconds in best(jobs, rounds, 3).items():
        print(f"| {title} | {1e3 * seconds:.1f} |")


# -- the peer --------------------------------------------------------------------------------------------------------------------------


def plain_slope(psi: float) -> float:
    return psi**DEPTH


def resnet_152_slope(psi: float, w: float = 0.5) -> float:
    """The maximal slope of ResNet-V2-152 with squared residual weight 1 - w^2 = .75 (DKS sec. 23)."""
    r = 1 - w * w
    return (r * psi**3 + 1 - r) ** 46 * (r * psi**2 + 1 - r) ** 4 * psi**5


def peer_constants(name: str, zeta: float, mu: Callable[[float], float]) -> kc.Constants:
    from dks.base import activation_transform as peer  # type: ignore[import-not-found]

    found = peer._get_activations_params([PEER_NAMES.get(name, name)], "DKS", {"c_slope_1_target": zeta}, {}, mu, None, None)
    p = found[PEER_NAMES.get(name, name)]
    phi = kc.activation(name) if "negative_slope" not in p else kc.activations.leaky_relu(float(p["negative_slope"]))
    return kc.Constants(
        phi,
        *(
            float(p.get(key, default))
            for key, default in (("input_scale", 1), ("input_shift", 0), ("output_scale", 1), ("output_shift", 0))
        ),
    )


def peer_comparison(own: dict[str, float]) -> None:
    from dks.base import activation_transform as peer  # type: ignore[import-not-found]

    def run(name: str) -> Any:
        return peer.get_transformed_activations(
            [PEER_NAMES.get(name, name)], method="DKS", dks_params={"c_slope_1_target": ZETA}, max_slope_func=plain_slope
        )

    run("tanh")
    print(f"\nagainst google-deepmind/dks: {DEPTH} layers, zeta = {ZETA} (milliseconds, CPU)\n")
    print("| activation | dks | kcalc | ratio | residual dks | residual kcalc |")
    print("|---|---|---|---|---|---|")
    ratios, slope = [], ZETA ** (1 / DEPTH)
    for name in PEER:
        phi = kc.activation(name)
        mine = f"{residual(constants_for(phi, slope), slope, phi.degree is None or name == 'leaky_relu'):.0e}"
        try:
            seconds = min(process_seconds(lambda name=name: run(name)) for _ in range(2))
        except ValueError as error:
            print(f"| {name} | {error} | {1e3 * own[name]:.2f} | - | - | {mine} |")
            continue
        ratios.append(seconds / own[name])
        theirs = f"{residual(peer_constants(name, ZETA, plain_slope), slope, phi.degree is None):.0e}"
        print(f"| {name} | {1e3 * seconds:.0f} | {1e3 * own[name]:.2f} | {ratios[-1]:.0f} | {theirs} | {mine} |")
    print(f"\nmedian ratio: {statistics.median(ratios):.0f}")
    wrong()
    tailored()


def wrong() -> None:
    """Cells in which the peer reports success: residuals of both. Ours may be a refusal."""
    net = kc.architectures.resnet_v2(152, shortcut_weight=0.5)
    print("\n| network, activation, zeta | residual dks | kcalc |")
    print("|---|---|---|")
    for name, zeta in (("selu", 1.5), ("relu", 10.0), ("selu", 10.0)):
        slope = float(kc.maximal_slope(net).inverse(zeta))
        cells = []
        for find in (lambda: peer_constants(name, zeta, resnet_152_slope), lambda: constants_for(kc.activation(name), slope)):  # noqa: B023
            try:
                cells.append(f"{residual(find(), slope, name == 'selu'):.0e}")
            except Exception as error:
                cells.append(f"{type(error).__name__}: {str(error)[:80]}")
        print(f"| resnet-152 w=.5, {name}, {zeta:g} | {cells[0]} | {cells[1]} |")


def tailored() -> None:
    """TAT's curvature condition on activations with a kink: the peer reports success, kcalc refuses."""
    print(f"\nTAT, {DEPTH} layers, tau = {TAU}: every C''(1) is to be {TAU / DEPTH:g}, Q(1) = Q'(1) = C'(1) = 1\n")
    print("| activation | peer: residual of Q(1), Q'(1), C'(1) | peer: C''(c) at c = 1 - 1e-2, 1 - 1e-4, 1 - 1e-6, 1 | kcalc |")
    print("|---|---|---|---|")
    for name in ("selu", "elu", "softplus"):
        phi = kc.activation(name)
        try:
            found = peer_tailored(name)
            values, c_map = local_values(found.transformed), found.transformed.c_map
            left = ", ".join(f"{abs(float(values[condition] - 1)):.0e}" for condition in ("Q(1)", "Q'(1)", "C'(1)"))
            bends = ", ".join(f"{float(c_map.derivative(2)(1 - gap)):.3g}" for gap in (1e-2, 1e-4, 1e-6, 0.0))
        except ValueError as error:
            left, bends = str(error), "-"
        try:
            check_curvature(phi)
            mine = f"residual {curvature_residual(solve(curvature_systems(phi, TAU / DEPTH))):.0e}"
        except kc.KcalcError as error:
            mine = f"refused: {error}"
        print(f"| {name} | {left} | {bends} | {mine} |")


def curvature_residual(constants: kc.Constants) -> float:
    values = local_values(constants.transformed)
    targets = {"Q(1)": 1.0, "Q'(1)": 1.0, "C'(1)": 1.0, "C''(1)": TAU / DEPTH}
    return max(abs(float(values[name] - target)) for name, target in targets.items())


def peer_tailored(name: str) -> kc.Constants:
    from dks.base import activation_transform as peer  # type: ignore[import-not-found]

    found = peer._get_activations_params([name], "TAT", {}, {"c_curve_target": TAU}, None, lambda curvature: DEPTH * curvature, None)[name]
    order = (("input_scale", 1), ("input_shift", 0), ("output_scale", 1), ("output_shift", 0))
    return kc.Constants(kc.activation(name), *(float(found.get(key, default)) for key, default in order))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--peer", action="store_true", help="compare with google-deepmind/dks")
    options.add_argument("--rounds", type=int, default=7)
    chosen = options.parse_args()
    own = ours(chosen.rounds)
    whole_networks(chosen.rounds)
    if chosen.peer:
        peer_comparison(own)


if __name__ == "__main__":
    main()
