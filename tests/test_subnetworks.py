"""Subnetworks against enumeration of all subsets of layers, and the maxima over them against the papers."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import sympy as sp

import kcalc as kc
from kcalc.calculi.slopes import slope_polynomial
from kcalc.layers import Affine, BatchNorm, Concat, Input, LayerNorm, Nonlinear, Sum
from kcalc.regions import find_regions, network_regions
from kcalc.subnetworks import Subnetwork, maximal, maximal_c_value, maximal_curvature, maximal_slope, subnetworks

psi, kappa = kc.symbols.psi, kc.symbols.kappa
w = sp.Symbol("w")
PSI = Fraction(3, 2)
Node = Hashable


# -- the oracle: every subset of layers ----------------------------------------------------------------------------------------------


def random_network(seed: int) -> kc.Network:
    """Up to nine layers: chains, sums and concatenations (maps read twice too) with rational weights, 1-3 inputs, extra heads."""
    rng = random.Random(seed)
    while True:
        try:
            net = _draw(rng)
            slope_polynomial(net)
            return net
        except kc.GraphError:  # widths that do not fit
            continue


def _draw(rng: random.Random) -> kc.Network:
    inputs = rng.choice([1, 1, 1, 2, 3])
    steps: list[Any] = [(f"x{i}", Input(), ()) for i in range(inputs)]
    local = rng.random()
    for i in range(rng.randint(max(1, inputs - 1), 9)):
        nodes = [step[0] for step in steps]
        unread = [n for n in nodes if not any(n in step[2] for step in steps)]
        recent = nodes[-3:] if rng.random() < local else nodes
        kind = rng.choice(["affine", "norm", "phi", "phi", "phi", "sum", "sum", "concat"])
        count = 1 if kind in ("affine", "norm", "phi") else rng.choice([1, 2, 2, 3])
        parents = tuple(rng.choice(unread if unread and rng.random() < 0.6 else recent) for _ in range(count))
        if kind == "sum":
            layer: Any = Sum(rng.choice([None, tuple(sp.Rational(rng.randint(1, 4), rng.randint(1, 3)) for _ in parents)]))
        elif kind == "concat":
            layer = Concat(rng.choice([None, tuple(rng.randint(1, 5) for _ in parents)]))
        else:
            layer = {"affine": Affine(), "norm": LayerNorm(), "phi": Nonlinear("relu")}[kind]
        steps.append((f"n{i}", layer, parents))
    read = {parent for step in steps for parent in step[2]}
    idle = tuple(f"x{i}" for i in range(inputs) if f"x{i}" not in read)
    if idle:
        steps.append(("last", Sum(), (steps[-1][0], *idle) if steps[-1][0] not in idle else idle))
    read = {parent for step in steps for parent in step[2]}
    outputs = {step[0] for step in steps if step[0] not in read}
    outputs |= {step[0] for step in steps[inputs:] if rng.random() < 0.08}
    return kc.Network.from_steps(steps, outputs)


def shares(layer: Any, count: int) -> list[Fraction]:
    if isinstance(layer, Sum):
        amounts = [Fraction(str(v)) ** 2 for v in layer.weights or (1,) * count]
    else:
        amounts = [Fraction(k) for k in layer.channels or (1,) * count]
    return [a / sum(amounts) for a in amounts]


def read_forward(net: kc.Network, members: frozenset[Node], entry: Node, start: Any, r: Any) -> dict[Node, Any]:
    """``U_{g,r}`` straight from its definition."""
    values = {entry: start}
    for node, layer, parents in net.steps():
        if node in members:
            inputs = [values[p] for p in parents]
            if isinstance(layer, Nonlinear):
                values[node] = r(inputs[0])
            elif isinstance(layer, Sum | Concat):
                values[node] = sum(s * v for s, v in zip(shares(layer, len(parents)), inputs, strict=True))
            else:
                values[node] = inputs[0]
    return values


def enumerate_subnetworks(net: kc.Network) -> dict[frozenset[Node], tuple[Node, Node]]:
    """All sets of layers that satisfy rules 1-3, with entry and exit."""
    layers = [node for node in net if not isinstance(net.layer(node), Input)]
    number = {node: i for i, node in enumerate([*layers, *net.inputs])}
    reads = [0] * len(layers)
    used_by = [0] * len(layers)
    for i, node in enumerate(layers):
        for parent in net.parents(node):
            reads[i] |= 1 << number[parent]
            if number[parent] < len(layers):
                used_by[number[parent]] |= 1 << i
    heads = [1 << len(layers) if node in net.outputs else 0 for node in layers]
    names = [*layers, *net.inputs]
    found = {}
    for subset in range(1, 1 << len(layers)):
        members = [i for i in range(len(layers)) if subset >> i & 1]
        outside = 0
        for i in members:
            outside |= reads[i] & ~subset
        if outside == 0 or outside & (outside - 1):
            continue
        exits = [i for i in members if (used_by[i] | heads[i]) & ~subset]
        if len(exits) == 1:
            found[frozenset(layers[i] for i in members)] = names[outside.bit_length() - 1], layers[exits[0]]
    return found


def intervals(net: kc.Network) -> set[tuple[frozenset[Node], Node, Node]]:
    nodes, _, regions = network_regions(net)
    pairs = [(path[i], path[j]) for path in regions.paths for j in range(len(path)) for i in range(j)]
    pieces = [Subnetwork(nodes[s], nodes[t], net) for s, t in pairs]
    return {(frozenset(piece.layers), piece.entry, piece.exit) for piece in pieces}


@pytest.mark.parametrize("block", range(10))
def test_random_networks_against_enumeration(block):
    for seed in range(50 * block, 50 * block + 50):
        net = random_network(seed)
        truth = enumerate_subnetworks(net)
        assert intervals(net) == {(layers, s, t) for layers, (s, t) in truth.items()}, seed

        slopes = {g: read_forward(net, g, s, Fraction(1), lambda x: PSI * x)[t] for g, (s, t) in truth.items()}
        curvatures = {g: read_forward(net, g, s, Fraction(0), lambda x: x + 1)[t] for g, (s, t) in truth.items()}
        value = sp.Rational(3, 2)
        for piece in subnetworks(net):
            assert Fraction(str(slope_polynomial(piece.network).subs(psi, value))) == slopes[frozenset(piece.layers)]

        mu = maximal_slope(net)
        greatest = max(slopes.values(), default=Fraction(1))
        assert max(Fraction(str(p.subs(psi, value))) for p in mu.pieces) == greatest, seed
        assert mu(1.5) == pytest.approx(float(greatest), rel=1e-14)
        bend = maximal_curvature(net)
        assert Fraction(str(bend.multipliers[0])) == max(curvatures.values(), default=Fraction(0)), seed
        assert bend(2.0) == pytest.approx(2 * float(bend.multipliers[0]), rel=1e-14, abs=1e-15)
        if greatest > 1:
            owner = mu.active(1.5)
            assert slopes[frozenset(owner.layers)] == greatest
            assert mu(mu.inverse(1.7)) == pytest.approx(1.7, rel=1e-13)


@pytest.mark.parametrize("r", [lambda x: 0.75 * x + 0.25, lambda x: x + 0.4 * (1 - x) ** 2 * (x < 1), lambda x: max(x, 0.3)])
def test_any_increasing_function_against_enumeration(r):
    for seed in range(1000, 1080):
        net = random_network(seed)
        values = [float(read_forward(net, g, s, 0.1, r)[t]) for g, (s, t) in enumerate_subnetworks(net).items()]
        assert maximal(net, r)(0.1) == pytest.approx(max(values, default=0.1), rel=1e-13), seed


def test_the_random_networks_reach_what_they_should():
    nets = [random_network(seed) for seed in range(500)]
    assert sum(len(net.inputs) > 1 for net in nets) > 100
    assert sum(len(net.outputs) > 1 for net in nets) > 100
    assert sum(len(set(parents)) < len(parents) for net in nets for _, _, parents in net.steps()) > 100
    assert sum(len(net) - len(net.inputs) >= 9 for net in nets) > 40
    assert sum(len(maximal_slope(net).pieces) > 1 for net in nets) > 20
    leaky = 0
    for net in nets:
        nodes, _, regions = network_regions(net)
        exits = {t for path in regions.paths for t in path[1:]}
        leaky += sum(regions.idom[t] < len(nodes) and t not in exits for t in range(len(nodes)))
    assert leaky > 50


# -- the papers' networks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [50, 101, 152])
def test_resnet_v2_is_its_own_maximum(depth):
    mu = maximal_slope(kc.architectures.resnet_v2(depth, residual_weight=w))
    assert mu.pieces == ((w**2 * psi**3 + 1 - w**2) ** sp.Rational(depth - 14, 3) * (w**2 * psi**2 + 1 - w**2) ** 4 * psi**5,)
    assert mu.warning is None
    assert mu.depth == depth - 1
    assert maximal_slope(kc.architectures.resnet_v2(depth, shortcut_weight=0)).pieces == (psi ** (depth - 1),)


def test_the_strict_reading_is_that_of_eq_20():
    mu = maximal_slope(kc.architectures.resnet_v2(50, residual_weight=sp.sqrt(sp.Rational(1, 20))))
    assert mu(1.05) == pytest.approx(1.43133, abs=5e-6)
    assert mu.forward_bound(1.05) == pytest.approx(1.56570, abs=5e-6)
    assert mu.longest_path_bound(1.05) == pytest.approx(1.05**49, rel=1e-13)


def test_wide_resnet():
    mu = maximal_slope(kc.architectures.wide_resnet(250, residual_weight=w))
    assert mu.pieces == ((w**2 * psi**2 + 1 - w**2) ** 120 * (w**2 * psi + 1 - w**2) ** 3 * psi**4,)


def test_vanilla_and_its_inverse():
    mu = maximal_slope(kc.architectures.vanilla(100))
    assert mu.pieces == (psi**100,)
    assert mu.inverse(1.5) == pytest.approx(1.5**0.01, rel=1e-15)
    assert repr(mu) == "MaximalSlope(psi**100)"
    assert mu._repr_latex_() == r"$\displaystyle \mu(\psi) = \psi^{100}$"


@pytest.mark.parametrize("depth", [2, 3, 7])
def test_skip_over_everything(depth):
    body = kc.repeat(kc.chain(Affine(), Nonlinear("tanh")), depth)
    skipped = kc.residual(kc.chain(body, Affine()), sp.sqrt(2) / 2)
    half = sp.Rational(1, 2)
    assert set(maximal_slope(skipped).pieces) == {psi**depth, psi**depth / 2 + half}
    mu = maximal_slope(kc.chain(skipped, Nonlinear("tanh")))
    assert set(mu.pieces) == {psi**depth, psi * (psi**depth / 2 + half)}
    for value in (1.0, 1.01, 1.4, 6.0):
        assert mu(value) == pytest.approx(max(value**depth, value * (1 + value**depth) / 2), rel=1e-14)
    assert (mu.active(6.0) != mu.active(1.0001)) == (depth > 2)
    assert "max{" in repr(mu)
    assert r"\max" in mu._repr_latex_()


def test_curvature_of_rescaled_resnets():
    found = maximal_curvature(kc.architectures.rescaled_resnet(16, shortcut_weight=w))
    assert {sp.expand(p) for p in found.pieces} == {3 * kappa, sp.expand(48 * (1 - w**2) * kappa)}
    for weight in (sp.Rational(1, 10), sp.Rational(99, 100)):
        numeric = maximal_curvature(kc.architectures.rescaled_resnet(16, shortcut_weight=weight))
        assert numeric.pieces == (max(3, 48 * (1 - weight**2)) * kappa,)
    assert numeric.inverse(0.3) == pytest.approx(0.1, rel=1e-15)
    with_transitions = maximal_curvature(kc.architectures.resnet_v2(50, w))
    assert sp.expand(with_transitions.expr / kappa) == sp.expand(44 * (1 - w**2) + 5)


@pytest.mark.parametrize(("depth", "slope"), [(50, 0.43052), (100, 0.57044), (1000, 0.84435)])
def test_negative_slopes_of_vanilla_networks(depth, slope):
    mu = maximal_c_value(kc.architectures.vanilla(depth))
    assert mu.inverse(0.9) == pytest.approx(slope, abs=5e-6)
    assert mu(mu.inverse(0.9)) == pytest.approx(0.9, rel=1e-13)
    assert mu([0.0, 1.0]) == pytest.approx([mu(0.0), 0.0])


def test_c_value_takes_the_branch_where_it_is_larger():
    net = kc.architectures.rescaled_resnet(2, branch_depth=8, shortcut_weight=0.99)
    mu = maximal_c_value(net)
    assert len(mu.active(0.2).layers) == 16
    assert mu(0.2) == pytest.approx(maximal_c_value(kc.architectures.vanilla(8))(0.2), rel=1e-14)
    with pytest.raises(kc.UnreachableTarget):
        mu.inverse(0.9999)
    for wrong in (0, 1, -1):
        with pytest.raises(kc.KcalcError):
            mu.inverse(wrong)
    for wrong in (1.01, -2, "a", math.nan, [0, 2]):
        with pytest.raises(kc.KcalcError, match="negative_slope"):
            mu(wrong)


# -- subnetworks as objects ----------------------------------------------------------------------------------------------------------


def test_a_subnetwork_is_a_network():
    net = kc.architectures.rescaled_resnet(3, features=16)
    pieces = subnetworks(net)
    assert len(pieces) == 4
    branch = next(piece for piece in pieces if len(piece.layers) == 6)
    assert branch.network.inputs == (branch.entry,)
    assert branch.network.outputs == (branch.exit,)
    assert branch.network.features[branch.entry] == 16
    assert set(branch.network) - {branch.entry} == set(branch.layers)
    assert repr(branch) == f"Subnetwork({branch.entry!r} -> {branch.exit!r}, 6 layers)"
    assert branch == Subnetwork(branch.entry, branch.exit, net)
    whole = next(piece for piece in pieces if piece.entry in net.inputs)
    assert whole.network == net


def test_branches_that_reconverge_in_groups():
    steps = [("x", Input(), ())]
    steps += [(name, Nonlinear("relu"), ("x",)) for name in "abc"]
    steps += [("s", Sum(), ("a", "b")), ("t", Sum(), ("s", "c"))]
    found = {frozenset(piece.layers) for piece in subnetworks(kc.Network.from_steps(steps))}
    assert found == {frozenset(group) for group in ("a", "b", "c", "abs", "abcst")}


# -- what the strict reading hides ---------------------------------------------------------------------------------------------------


def tapped_chain(depth: int, heads: bool) -> kc.Network:
    steps: list[Any] = [("x", Input(), ())]
    tail = "x"
    for i in range(depth):
        steps += [(f"a{i}", Affine(), (tail,)), (f"f{i}", Nonlinear("relu"), (f"a{i}",))]
        tail = f"f{i}"
        if heads:
            steps.append((f"h{i}", Affine(), (tail,)))
        else:
            steps += [(f"y{i}", Input(), ()), (f"m{i}", Sum((sp.Rational(4, 5), sp.Rational(3, 5))), (tail, f"y{i}"))]
            tail = f"m{i}"
    return kc.Network.from_steps(steps)


@pytest.mark.parametrize("heads", [True, False])
def test_taps_and_second_inputs_hide_depth_and_say_so(heads):
    mu = maximal_slope(tapped_chain(6, heads))
    assert mu.pieces == (psi,)
    assert mu.inverse(1.5) == pytest.approx(1.5, rel=1e-15)
    assert mu.depth == 6
    assert "1 of the 6 nonlinear layers" in mu.warning
    assert mu.longest_path_bound(2.0) == pytest.approx(64)
    expected = 2.0
    for _ in range(5):
        expected = 2 * expected if heads else 2 * (16 * expected + 9) / 25
    assert mu.forward_bound(2.0) == pytest.approx(expected, rel=1e-13)


def test_inputs_that_meet_at_once_leave_no_subnetwork():
    net = kc.Network.from_steps([("x", Input(), ()), ("y", Input(), ()), ("s", Sum(), ("x", "y"))])
    assert subnetworks(net) == ()
    mu = maximal_slope(net)
    assert mu.pieces == (1,)
    assert mu([1.0, 5.0]) == pytest.approx([1, 1])
    with pytest.raises(kc.KcalcError, match="no nonlinear layer"):
        mu.inverse(1.5)
    with pytest.raises(kc.KcalcError, match="no nonlinear layer"):
        mu.active(1.5)


# -- habits and bad input ------------------------------------------------------------------------------------------------------------


def test_symbolic_weights_need_numbers_for_numbers():
    mu = maximal_slope(kc.architectures.resnet_v2(50, residual_weight=w))
    with pytest.raises(kc.KcalcError, match=r'net.subs\(\{"w"'):
        mu(1.1)
    numeric = maximal_slope(mu.network.subs({w: 0.3}))
    assert numeric(1.1) == pytest.approx(float(mu.expr.subs({w: sp.Rational(3, 10), psi: sp.Rational(11, 10)})), rel=1e-13)


def test_values_are_vectorised_and_checked():
    mu = maximal_slope(kc.architectures.densenet(5))
    grid = np.array([[1.0, 1.2], [2.0, 1e6]])
    assert mu(grid).shape == grid.shape
    assert mu(grid)[1, 0] == pytest.approx(float(mu.expr.subs(psi, 2)), rel=1e-14)
    assert mu(1.0) == 1.0
    assert mu(mu.inverse(grid + 1)) == pytest.approx(grid + 1, rel=1e-13)
    for wrong in (0.999, -1, math.nan, math.inf, "1.1", [1.1, 0.5], psi, None):
        with pytest.raises(kc.KcalcError, match="psi"):
            mu(wrong)
    for wrong in (1, 0.5, -3, math.nan, math.inf, "2", [1.5, 1.0]):
        with pytest.raises(kc.KcalcError, match="target"):
            mu.inverse(wrong)
    with pytest.raises(kc.KcalcError, match="one psi at a time"):
        mu.active([1.1, 1.2])


@pytest.mark.parametrize("target", [1 + 1e-9, 1.5, 1e5, 1e300])
@pytest.mark.parametrize("weight", [0.02, 0.7, 0.9999])
def test_inverse_at_all_scales(target, weight):
    mu = maximal_slope(kc.architectures.rescaled_resnet(30, shortcut_weight=weight))
    found = mu.inverse(target)
    assert 1 < found <= target
    log = 30 * math.log1p((1 - weight**2) * (found**3 - 1)) if weight < 0.9 else None
    if log is not None:
        assert math.exp(log) - 1 == pytest.approx(target - 1, rel=1e-6 if target < 1.001 else 1e-12)
    assert mu(found) == pytest.approx(target, rel=1e-12)


def test_curvature_checks_its_input():
    bend = maximal_curvature(kc.architectures.vanilla(4))
    assert bend([0.0, 2.0]) == pytest.approx([0, 8])
    assert repr(bend) == "MaximalCurvature(4*kappa)"
    for wrong in (-1, math.nan, "a"):
        with pytest.raises(kc.KcalcError, match="kappa"):
            bend(wrong)
    with pytest.raises(kc.KcalcError, match="target"):
        bend.inverse(0)
    with pytest.raises(kc.KcalcError, match="no nonlinear layer"):
        maximal_curvature(kc.chain(Affine())).inverse(1)


def test_slopes_by_activation():
    block = kc.residual(kc.chain(Nonlinear("tanh"), Affine(), Nonlinear("relu"), Affine()), sp.Rational(3, 5))
    mu = maximal_slope(kc.chain(Affine(), kc.repeat(block, 3)), symbols_by_activation=True)
    assert mu({"tanh": 1.1, "relu": 1.2}) == pytest.approx(max(1.32, (0.36 + 0.64 * 1.32) ** 3), rel=1e-14)
    assert mu({"tanh": [1.1, 1.0], "relu": 1.0}).shape == (2,)
    assert maximal_slope(kc.chain(Affine()), symbols_by_activation=True)({}) == 1.0
    with pytest.raises(kc.KcalcError, match="psi_relu"):
        mu({"tanh": 1.1})
    with pytest.raises(kc.KcalcError, match="pass a mapping"):
        mu(1.1)
    with pytest.raises(kc.KcalcError, match="no inverse"):
        mu.inverse(1.5)


def test_functions_below_the_identity_are_refused():
    net = kc.architectures.rescaled_resnet(3)
    with pytest.raises(kc.KcalcError, match=r"r\(x\) < x"):
        maximal(net, lambda x: x / 2)(0.5)
    with pytest.raises(kc.KcalcError, match="must be a function"):
        maximal(net, 2)


def test_missing_rules_are_named():
    with pytest.raises(kc.NoRule, match="BatchNorm"):
        maximal_slope(kc.chain(Affine(), BatchNorm(), Nonlinear("relu")))


def test_pruning_does_not_use_the_papers_factor_rule():
    """p_f = ((1+psi)/2)^13 divides p_h = p_f (psi^2 - 3 psi + 3), yet p_h < p_f on (1, 2): only multisets of factors may be compared."""
    mu = maximal_slope(kc.architectures.densenet(3))
    assert len(mu.pieces) == 1
    half = sp.Rational(1, 2)
    body = kc.repeat(kc.chain(Affine(), Nonlinear("relu")), 2)
    net = kc.chain(kc.residual(kc.chain(body, Affine()), sp.sqrt(2) / 2), Affine())
    assert set(maximal_slope(net).pieces) == {psi**2, psi**2 / 2 + half}


def test_long_polynomials_are_summarised():
    mu = maximal_slope(kc.architectures.densenet(60))
    assert repr(mu) == "MaximalSlope(a polynomial of degree 61)"
    assert "degree 61" in mu._repr_latex_()
    assert mu(1.5) == pytest.approx(1.5 * math.prod(1 + 0.5 / k for k in range(3, 63)), rel=1e-13)


def test_regions_of_a_long_chain_and_of_a_ladder():
    size = 20000
    chain = find_regions([(), *((i,) for i in range(size))], [size])
    assert chain.paths == (tuple(range(size + 1)),)
    ladder = find_regions([(), *((i, 0) if i else (0,) for i in range(size))], [size])
    assert ladder.paths == tuple((0, k) for k in range(1, size + 1))
