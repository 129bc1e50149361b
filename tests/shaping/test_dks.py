"""Deep Kernel Shaping: the constants of the papers, measured conditions, refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest
import sympy as sp
from refusals import refused
from scipy import integrate
from thinning import mostly_slow

import kcalc as kc
from kcalc.calculi import kernel
from kcalc.calculi.global_maps import end_values
from kcalc.gaussian.expectations import quadrature
from kcalc.network.compose import interpret

L, A = kc.layers, kc.architectures
x = sp.Symbol("x")

KNOWN = {
    "tanh": (0.090437945, 0.56010669, -0.50500438, 14.902526),
    "softplus": (0.22802376, 0.40750958, -0.92371961, 7.3032530),
    "swish": (0.12949361, 0.34947537, -0.20889329, 11.504550),
    "relu": (0.38759102, 1, -1.0006045, 2.5916837),
}


@pytest.mark.parametrize("name", KNOWN)
def test_vanilla_100_constants(name: str) -> None:
    k = kc.shape(A.vanilla(100), name, method="dks", zeta=1.5).constants[name]
    assert (k.alpha, k.beta, k.delta, k.gamma) == pytest.approx(KNOWN[name], rel=1e-7)
    assert (k.input_scale, k.input_shift, k.output_shift, k.output_scale) == (
        k.alpha,
        k.beta,
        k.delta,
        k.gamma,
    )


def conditions_by_scipy(phi, kinks: tuple[float, ...]) -> dict[str, float]:
    """Q, Q', C(0), C' at q = 1 by adaptive quadrature of a difference quotient, nothing of kcalc
    inside.
    """

    def expect(f) -> float:
        points = [k for k in kinks if -9 < k < 9]
        return integrate.quad(
            lambda t: f(t) * np.exp(-t * t / 2) / np.sqrt(2 * np.pi),
            -10,
            10,
            points=points or None,
            limit=400,
            epsabs=1e-13,
        )[0]

    h = 1e-5

    def slope(t: float) -> float:
        return (phi(t + h) - phi(t - h)) / (2 * h)

    return {
        "Q(1)": expect(lambda t: phi(t) ** 2),
        "Q'(1)": expect(lambda t: phi(t) * slope(t) * t),
        "C(0)": expect(phi) ** 2,
        "C'(1)": expect(lambda t: slope(t) ** 2),
    }


@pytest.mark.parametrize(
    ("spec", "function"),
    [
        ("tanh", np.tanh),
        ("gelu", lambda t: t * 0.5 * (1 + float(sp.erf(t / np.sqrt(2))))),
        (sp.atan(x) + x / 5, lambda t: np.arctan(t) + t / 5),
    ],
)
def test_conditions_hold_by_another_quadrature(spec: object, function) -> None:
    net = A.rescaled_resnet(10, 3, shortcut_weight=0.7)
    s = kc.shape(net, spec, zeta=2.0)
    k = next(iter(s.constants.by_node.values()))
    measured = conditions_by_scipy(
        lambda t: k.gamma * (function(k.alpha * t + k.beta) + k.delta), ()
    )
    for condition, target in s.targets.items():
        assert measured[condition] == pytest.approx(target, abs=2e-8)
    assert max(s.residuals.values()) < 1e-11


@pytest.mark.parametrize(
    "name", mostly_slow(["tanh", "relu", "leaky_relu", "selu", "sigmoid", "erf", "elu"], 2)
)
@pytest.mark.parametrize("zeta", mostly_slow([1.5, 1.1, 5.0]))
def test_global_map_has_slope_zeta_and_keeps_q(name: str, zeta: float) -> None:
    s = kc.shape(A.resnet_v2(50), name, zeta=zeta)
    assert s.residuals["C_f'(1)"] < 1e-9
    assert s.values["C_f'(1)"] == pytest.approx(zeta, rel=1e-9)
    assert kc.c_map(s.network).derivative(1)(1.0) == pytest.approx(zeta, rel=1e-9)
    assert kc.q_map(s.network)(1.0) == pytest.approx(1.0, rel=1e-10)
    assert abs(kc.c_map(s.network)(0.0)) < 1e-12


def test_default_branch_is_the_smallest_shift_positive_first() -> None:
    s = kc.shape(A.vanilla(100), "tanh")
    betas = [k.beta for k in s.all_solutions["tanh"]]
    assert betas[0] > 0
    assert betas[:2] == pytest.approx([0.56010669, -0.56010669], rel=1e-7)


def test_constants_change_continuously_with_the_target() -> None:
    zetas = np.geomspace(1.02, 8, 15)
    points = np.array(
        [
            [
                (
                    k := kc.shape(A.vanilla(30), "softplus", zeta=float(z)).constants["softplus"]
                ).alpha,
                k.beta,
            ]
            for z in zetas
        ]
    )
    assert np.all(np.diff(points[:, 0]) > 0)
    assert np.abs(np.diff(points[:, 1])).max() < 0.2


@pytest.mark.parametrize("second_inputs", [False, True])
def test_forward_reading_shapes_by_the_depth_across_taps(second_inputs: bool) -> None:
    """Heads on every layer, or an input mixed in at every layer.

    Strict subnetworks are single layers, zeta^(1/depth) is wanted.
    """
    steps: list = [("x", L.Input(), ())]
    tail = "x"
    for i in range(5):
        steps += [
            (f"a{i}", L.Affine(), (tail,)),
            (f"f{i}", L.Nonlinear("tanh"), (f"a{i}",)),
            (f"b{i}", L.Affine(), (f"f{i}",)),
        ]
        tail = f"b{i}"
        if second_inputs:
            steps += [
                (f"y{i}", L.Input(), ()),
                (f"v{i}", L.Affine(), (f"y{i}",)),
                (f"s{i}", L.Sum((0.8, 0.6)), (tail, f"v{i}")),
            ]
            tail = f"s{i}"
    net = kc.Network.from_steps(steps, None if second_inputs else [f"b{i}" for i in range(5)])
    strict, forward = kc.shape(net), kc.shape(net, subnetworks="forward")
    assert strict.targets["C'(1)"] == pytest.approx(1.5, rel=1e-12)
    assert any("hide depth" in a.text and a.kind == "heuristic" for a in strict.assumptions)
    assert strict.to_dict()["options"]["subnetworks"] == "strict"
    assert any("forward bound" in a.text for a in forward.assumptions)
    assert not any("hide depth" in a.text for a in forward.assumptions)
    assert forward.to_dict()["options"]["subnetworks"] == "forward"
    slope = forward.targets["C'(1)"]
    v = greatest = slope
    for _ in range(4):
        v = slope * (0.64 * v + 0.36) if second_inputs else slope * v
        greatest = max(greatest, v)
    assert greatest == pytest.approx(1.5, rel=1e-12)
    slopes = kc.c_map(forward.network).derivative(1)(1.0)
    assert max(slopes.values() if isinstance(slopes, dict) else [slopes]) == pytest.approx(
        0.64 * 1.5 + 0.36 if second_inputs else 1.5, rel=1e-9
    )


def test_readings_agree_on_a_network_of_one_path() -> None:
    for net in (A.vanilla(20), A.densenet(4)):
        shaped = [
            kc.shape(net, "tanh", subnetworks=reading).targets["C'(1)"]
            for reading in ("strict", "forward")
        ]
        assert shaped[0] == pytest.approx(shaped[1], rel=1e-13)
    # here a tap would see a branch end on top of all before it: the forward bound is the larger
    net = A.resnet_v2(50)
    shaped = [
        kc.shape(net, "tanh", subnetworks=reading).targets["C'(1)"]
        for reading in ("strict", "forward")
    ]
    assert shaped[1] < shaped[0]


def test_several_activations_in_one_network() -> None:
    net = kc.chain(
        L.Input(), L.Affine(), L.Nonlinear("tanh"), L.Affine(), L.Nonlinear("softplus"), L.Affine()
    )
    s = kc.shape(net, zeta=1.5)
    assert set(s.constants) == {"tanh", "softplus"}
    assert s.constants["nonlinear_1"].activation.name == "tanh"
    assert max(s.residuals.values()) < 1e-11
    assert s.targets["C'(1)"] == pytest.approx(np.sqrt(1.5), rel=1e-12)


def test_changes_list_every_edit() -> None:
    net = kc.chain(
        L.Input(), L.Affine(sigma_w=2, sigma_b=0.5), L.Scale(3), L.Nonlinear("relu"), L.Affine()
    )
    s = kc.shape(net, "tanh")
    text = "\n".join(s.changes)
    for word in (
        "affine_1: sigma_w 2 -> 1",
        "scale_1",
        "nonlinear_1: activation relu -> tanh",
        "nonlinear_1: tanh ->",
    ):
        assert word in text
    assert not s.network.nodes_of(L.Scale)
    assert s.network.layer("affine_1") == L.Affine()
    assert s.original == net


def test_to_dict_is_plain_and_versioned() -> None:
    data = json.loads(json.dumps(kc.shape(A.vanilla(5), "tanh").to_dict()))
    assert data["schema"] == "kcalc.shaping/1"
    assert data["constants"]["tanh"]["input_scale"] > 0


@pytest.mark.parametrize(
    ("net", "options", "error", "message"),
    [
        (A.vanilla(5), {"zeta": 1.0}, kc.KcalcError, "must be > 1"),
        (A.vanilla(5), {"zeta": float("nan")}, kc.KcalcError, "finite"),
        (A.vanilla(5), {"zeta": "big"}, kc.KcalcError, "number"),
        (A.vanilla(5), {"zeta": sp.Symbol("z")}, kc.KcalcError, "z"),
        (A.vanilla(5), {"zetta": 2}, kc.KcalcError, "zeta"),
        (A.vanilla(5), {"subnetworks": "loose"}, kc.KcalcError, "strict"),
        (A.vanilla(5), {"subnetworks": ["strict"]}, kc.KcalcError, "strict"),
        (A.vanilla(5), {"method": "dsk"}, kc.KcalcError, "dks"),
        (A.vanilla(5), {"activation": "identity"}, kc.KcalcError, "identity"),
        (kc.chain(L.Input(), L.Affine()), {}, kc.KcalcError, "no nonlinear"),
        (
            kc.residual(kc.chain(L.Affine(), L.Nonlinear("tanh"), L.Affine())),
            {},
            kc.KcalcError,
            "net.normalised",
        ),
        (
            kc.chain(L.Affine(), L.BatchNorm(), L.Nonlinear("tanh")),
            {},
            kc.KcalcError,
            "without_normalization",
        ),
        (
            kc.chain(L.Affine(), L.Nonlinear("tanh"), L.Nonlinear("tanh")),
            {},
            kc.KcalcError,
            "nonlinear_2",
        ),
    ],
)
def test_bad_input_is_refused(net: kc.Network, options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        kc.shape(net, **options)


def test_shape_refuses_what_is_no_network() -> None:
    with refused("kc.Network"):
        kc.shape(A.vanilla(3).graph)  # type: ignore[arg-type]


def test_unknown_constants_name_the_known_ones() -> None:
    with refused("tanh"):
        kc.shape(A.vanilla(3), "tanh").constants["tan"]


def test_a_deep_network_is_read_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One pass tries its hypotheses and gives both global values.

    q values that wander in the last digit need one set of nodes.
    """
    from kcalc.cli import main

    folds: list[int] = []
    monkeypatch.setattr(
        kernel,
        "interpret",
        lambda network, *given: folds.append(len(network)) or interpret(network, *given),
    )
    before = quadrature._rule.cache_info().misses
    assert (
        main(["shape", "vanilla-1500", "--activation", "tanh", "--method", "dks", "--zeta", "1.37"])
        == 0
    )
    assert folds == [3002]
    assert quadrature._rule.cache_info().misses - before < 200
    words = capsys.readouterr().out
    assert "Q_f(1)" in words and "C_f'(1)" in words


def test_end_values_are_those_of_the_maps() -> None:
    for network in (
        kc.architectures.vanilla(7, activation="swish"),
        kc.architectures.resnet_v2(50, activation="tanh", shortcut_weight=0.8),
    ):
        size, slope = end_values(network)
        assert (size, slope) == (kc.q_map(network)(1.0), kc.c_map(network).derivative(1)(1.0))
