"""Parts of the kernel calculus.

Sums that cancel for one input, windows, statistics over few channels, names.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.calculi.atoms import Atom, Pair, Term, disjoint, merged, opened
from kcalc.calculi.freshness import Algebra
from kcalc.calculi.kernel import kernel_over
from kcalc.calculi.second_moments import Moments, SecondMoments
from kcalc.calculi.symbolic import cosine, tidy
from kcalc.fields import NUMPY
from kcalc.fields.jets import Jet
from kcalc.network.compose import interpret
from kcalc.network.primitives import Reads

L = kc.layers


def texts(found: Any, node: str) -> list[tuple[str, str]]:
    return [(note.text, note.kind) for note in found.assumptions if note.node == node]


# -- terms -----------------------------------------------------------------------------------------


def atom(name: str, support: int, **more: Any) -> Atom:
    return Atom(name, Moments(1.0, 2.0, 0.3, 0.4, 0.5), support, True, **more)


def test_terms_that_cancel_for_one_input_stay() -> None:
    a, b = atom("a", 2), atom("b", 4)
    assert merged([Term(1.0, 2.0, a), Term(0.5, 1.0, b), Term(-1.0, 0.5, a)]) == (
        Term(0, 2.5, a),
        Term(0.5, 1.0, b),
    )
    assert merged([Term(2.0, 1.0, a), Term(0.5, -1.0, a)]) == (Term(2.5, 0, a),)
    assert merged([Term(0.1, 0.1, a), Term(0.2, 0.2, a), Term(-0.3, -0.3, a), Term(1, 1, b)]) == (
        Term(1, 1, b),
    )
    assert merged([Term(0.1, 0.1, a), Term(-0.1 - 1e-13, -0.1, a)])[0].a1 == pytest.approx(
        -1e-13, rel=1e-2
    )
    n = sp.Symbol("n", positive=True)
    assert merged([Term(n, n, a), Term(-n, -n, a)]) == () and merged(
        [Term(n, n, a), Term(n, n, a)]
    ) == (Term(2 * n, 2 * n, a),)
    sum_ = atom("s", 6, terms=(Term(3, 5, a), Term(1, 1, b)))
    assert opened([Term(2, 7, sum_), Term(1, 1, b)]) == (Term(6, 35, a), Term(3, 8, b))


@pytest.mark.parametrize("ratio", [1e-20, 1e-8, 1e8, 1e20])
def test_norms_of_inputs_of_unlike_size(ratio: float) -> None:
    """Layer norm of relu forgets the size of either input."""
    C = kc.c_map(kc.chain(L.Input(), L.Affine(), L.Nonlinear("relu"), L.LayerNorm()))
    assert C(0.3, 1.0, ratio) == pytest.approx(C(0.3), rel=1e-13)


def test_sealed_sums() -> None:
    algebra, a, b = Algebra(SecondMoments(NUMPY, False)), atom("a", 2), atom("b", 4)
    moments = Moments(1.0, 2.0, 0.1, 0.0, 0.0)
    plain = Pair(moments, (Term(1, 1, a), Term(2, 2, b)), window=(0.5, 0.5))
    made = algebra.sealed(plain, "s")
    assert (
        made.terms[0].atom.terms == plain.terms
        and made.window == (0.5, 0.5)
        and made.terms[0].atom.gaussian
        and not made.terms[0].atom.patched
    )
    for shifts in ((0.1, 0.1), (0, 0.1), (0.1, 0)):
        shifted = Pair(moments, plain.terms, *shifts)
        assert algebra.sealed(shifted, "s") is shifted
        patched = algebra.sealed(shifted, "s", patched=True).terms[0].atom
        assert patched.patched and not patched.gaussian and patched.support == 6
    raw = Pair(moments, (Term(1, 1, atom("x", 8, raw=True)), Term(1, 1, a)))
    assert algebra.sealed(raw, "s").terms[0].atom.raw
    assert disjoint([2, 4, 8]) and not disjoint([2, 4, 6]) and disjoint([]) and disjoint([1])


def test_sums_of_different_channels() -> None:
    """[a, b] + w reads two halves of w.

    Cut again by a finer concatenation, all addends independent.
    """
    fine = [(f"k{i}", L.Affine(2), "x") for i in range(4)]
    halves = (("a", L.Affine(4), "x"), ("b", L.Affine(4, sigma_w=2), "x"), ("w", L.Affine(8), "x"))
    network = wired(
        *halves,
        *fine,
        ("f", L.Concat(), "a b"),
        ("k", L.Concat(), "k0 k1 k2 k3"),
        ("s", L.Sum(), "f w"),
        ("t", L.Sum([1, 2]), "s k"),
        features=3,
    )
    found = kc.node_values(network, 0.3, 0.8, 1.3)
    assert found["s"] == pytest.approx((3.5 * 0.8, 3.5 * 1.3, 0.3), rel=1e-13)
    assert found["t"] == pytest.approx((7.5 * 0.8, 7.5 * 1.3, 0.3), rel=1e-13)
    swapped = wired(
        *halves,
        ("f", L.Concat(), "a b"),
        ("g", L.Concat(), "b a"),
        ("s", L.Sum(), "f w"),
        ("t", L.Sum(), "s g"),
        ("u", L.Sum(), "t w"),
        features=3,
    )
    with pytest.raises(kc.FreshnessError, match="different channels"):
        kc.c_map(swapped)


def test_addends_that_share_weights_are_told() -> None:
    share = ("the addends share weights; their cross terms are computed", "exact")
    network = wired(
        ("w", L.Affine(), "x"),
        ("v", L.Affine(), "x"),
        ("s", L.Sum(), "w v"),
        ("t", L.Sum(), "s w"),
        ("u", L.Affine(), "t"),
    )
    assert texts(kc.c_map(network), "s") == [] and texts(kc.c_map(network), "t") == [share]


def test_what_an_activation_sees_is_described() -> None:
    names = ("tanh", "relu", "sin", "erf")
    for count in (2, 3, 4):
        steps = [(f"w{i}", L.Affine(), "x") for i in range(count)] + [
            (f"f{i}", L.Nonlinear(names[i]), f"w{i}") for i in range(count)
        ]
        network = wired(
            *steps,
            ("s", L.Sum(), " ".join(f"f{i}" for i in range(count))),
            ("r", L.Nonlinear("relu"), "s"),
        )
        with pytest.raises(kc.FreshnessError) as caught:
            kc.c_map(network)
        shown = ", ".join(f"{names[i]} at 'f{i}'" for i in range(min(count, 3)))
        assert (
            f"node 'r': relu sees a sum with {shown}{', ...' if count > 3 else ''}, not a fresh "
            f"Gaussian" in str(caught.value)
        )
    with pytest.raises(kc.FreshnessError, match="relu sees a raw network input"):
        kc.c_map(wired(("r", L.Nonlinear("relu"), "x")))


# -- statistics ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "few"), [(128, False), (126, True), (256, False)])
def test_groups_of_few_channels_are_told(width: int, few: bool) -> None:
    network = wired(
        ("w", L.Affine(width), "x"),
        ("f", L.Nonlinear("relu"), "w"),
        ("g", L.GroupNorm(2), "f"),
        ("a", L.Affine(width), "g"),
        features=3,
    )
    told = texts(kc.c_map(network), "g")
    assert (
        (f"each group has only {width // 2} channels, treated as many", "heuristic") in told
    ) is few and len(told) == 1 + few
    grouped = wired(
        ("w", L.Affine(width), "x"),
        ("f", L.Nonlinear("relu"), "w"),
        ("g", L.Affine(width, groups=2), "f"),
        features=3,
    )
    assert texts(kc.c_map(grouped), "g") == [
        (
            f"each group of the convolution reads only {width // 2} channels, treated as many",
            "heuristic",
        )
        if few
        else ("each group of the convolution has many channels", "convention")
    ]


@pytest.mark.parametrize("norm", [L.LayerNorm(), L.RMSNorm(), L.GroupNorm(1)])
def test_norms_over_one_channel_are_refused(norm: Any) -> None:
    with refused("'n'.*normalises"):
        kc.c_map(
            wired(
                ("w", L.Affine(1), "x"),
                ("f", L.Nonlinear("relu"), "w"),
                ("n", norm, "f"),
                features=3,
            )
        )
    kc.c_map(
        wired(
            ("w", L.Affine(2), "x"), ("f", L.Nonlinear("relu"), "w"), ("n", norm, "f"), features=3
        )
    )
    with refused("'n'.*normalises.*0"):
        kc.c_map(
            wired(
                ("w", L.Affine(2), "x"),
                ("f", L.Nonlinear("sign"), "w"),
                ("p", L.Product(), "f f"),
                ("n", L.LayerNorm(), "p"),
                features=3,
            )
        )


def _group_normalised(width: int, joined: bool) -> kc.Network:
    """Group norms behind a concatenation of 4/7 and 3/7 of the channels, or of its parts."""
    norms = (
        [("c", L.Concat(), "f g"), ("n", L.GroupNorm(14), "c")]
        if joined
        else [
            ("nf", L.GroupNorm(8), "f"),
            ("ng", L.GroupNorm(6), "g"),
            ("n", L.Concat(), "nf ng"),
        ]
    )
    return wired(
        ("x", L.Input(5)),
        ("w", L.Affine(4 * width, sigma_b=0.2), "x"),
        ("f", L.Nonlinear("relu"), "w"),
        ("v", L.Affine(3 * width, sigma_w=2.0, sigma_b=0.5), "x"),
        ("g", L.Nonlinear("gelu"), "v"),
        *norms,
        ("o", L.Affine(5 * width, sigma_b=0.3), "n"),
        ("t", L.Nonlinear("tanh"), "o"),
        ("z", L.Affine(3), "t"),
    )


def test_groups_that_keep_to_the_parts_of_a_concatenation_are_exact() -> None:
    """``GroupNorm(Concat(f, g)) = Concat(GroupNorm(f), GroupNorm(g))``, channel by channel."""
    joined, apart = (_group_normalised(64, form) for form in (True, False))
    for q in (0.4, 1.0, 2.5):
        np.testing.assert_allclose(
            kc.node_values(joined, 0.3, q)["z"], kc.node_values(apart, 0.3, q)["z"], rtol=1e-13
        )
        np.testing.assert_allclose(*(kc.ntk(net)(0.3, q) for net in (joined, apart)), rtol=1e-13)
        one, two = (kc.gradients(net, q).nodes for net in (joined, apart))
        np.testing.assert_allclose(*([g[n] for n in "xwfvgotz"] for g in (one, two)), rtol=1e-13)


@pytest.mark.slow
def test_group_norms_behind_a_concatenation_against_draws() -> None:
    net = _group_normalised(192, True)
    check = kc.verify_kernels(kc.to_jax(net, weights="gaussian"), 0.5, q=1.3, draws=32)
    assert check.passed, check


def test_slopes_at_q_values_refuse_groups_of_a_concatenation() -> None:
    """Behind the norm the parts weigh by their channels, whatever their q values were."""
    net = wired(
        ("w", L.Affine(4), "x"),
        ("f", L.Nonlinear("relu"), "w"),
        ("v", L.Affine(2), "x"),
        ("c", L.Concat(), "f v"),
        ("n", L.GroupNorm(3), "c"),
        features=5,
    )
    assert str(kc.slope_polynomial(net)) == "2*psi/3 + 1/3"
    with refused("'n'.*concatenation"):
        kc.slope_polynomial(net, q=1.0)


def test_groups_that_differ_are_refused() -> None:
    both = [("w", L.Affine(4), "x"), ("f", L.Nonlinear("relu"), "w"), ("c", L.Concat(), "w f")]
    other = ("v", L.Affine(2), "x"), ("c", L.Concat(), "f v"), ("n", L.GroupNorm(2), "c")
    across = wired(*both[:2], *other, features=3)
    with pytest.raises(kc.FreshnessError, match="one group holds channels of several.*assume_ind"):
        kc.c_map(across)
    told = texts(kc.c_map(across, assume_independent=True), "n")
    assert (
        "all groups of channels are normalised in the same way, by all channels",
        "heuristic",
    ) in told
    kc.c_map(wired(*both, ("n", L.GroupNorm(1), "c"), features=3))
    with refused("'n'.*normalises"):
        kc.c_map(wired(*both[:2], ("n", L.GroupNorm(4), "f"), features=3))
    with pytest.raises(kc.FreshnessError, match="'g' is a grouped Affine after a concatenation"):
        kc.c_map(wired(*both, ("g", L.Affine(4, groups=2), "c"), features=3))
    told = texts(
        kc.c_map(
            wired(*both, ("g", L.Affine(4, groups=2), "c"), features=3), assume_independent=True
        ),
        "g",
    )
    assert (
        "the groups of the convolution are treated as identically distributed",
        "heuristic",
    ) in told


def test_standardised_weights_over_one_channel_are_refused() -> None:
    with refused("'s'.*standardises"):
        kc.c_map(
            wired(
                ("w", L.Affine(1), "x"),
                ("f", L.Nonlinear("relu"), "w"),
                ("s", L.Affine(3, standardised=True), "f"),
                features=3,
            )
        )
    network = wired(
        ("w", L.Affine(2), "x"),
        ("f", L.Nonlinear("relu"), "w"),
        ("s", L.Affine(3, standardised=True), "f"),
        features=3,
    )
    for index, q in ((0, 0.8), (1, 1.9)):
        assert kc.node_values(network, 0.3, 0.8, 1.9)["s"][index] == pytest.approx(
            q / 2 - q / (2 * math.pi), rel=1e-13
        )


def test_batches_of_alike_inputs() -> None:
    network = kc.large_batch(
        wired(("w", L.Affine(), "x"), ("b", L.BatchNorm(), "w"), ("v", L.Affine(), "b")), c=0.2
    )
    for c in (-0.5, 0.2, 0.7):
        assert kc.c_map(network)(c) == pytest.approx((c - 0.2) / 0.8, rel=1e-13, abs=1e-15)
        assert kc.node_values(network, c, 0.5, 3.0)["b"][:2] == (1.0, 1.0)
    with refused("'b'.*-0.7.*there.*.*0.2.*-0.6"):
        kc.c_map(network)(-0.7)
    assert kc.c_map(network)(-0.6) == pytest.approx(-1, rel=1e-12)
    for call in (lambda: kc.large_batch(network, 1.0), lambda: L.BatchNorm(1.0)):
        with refused(r"in \[0, 1\)"):
            call()


def test_kernels_tell_two_inputs_apart_unless_told_otherwise() -> None:
    kernel = kernel_over()
    assert (kernel.uniform, kernel.statistics.follow_c, kernel.statistics.assume_independent) == (
        False,
        True,
        False,
    )
    state = kernel.rule(
        L.Affine().lowered(Reads("w", ("x",), (None,))),
        "w",
        [kernel.start("x", 0.5, 2.0, Jet((0.3,)))],
    )
    q1, q2, gap = kernel.whole(state)
    assert (q1, q2, gap.value) == pytest.approx((0.5, 2.0, 0.3), rel=1e-14)
    with refused("'x' has no value"):
        interpret(wired(("w", L.Affine(), "x")), kernel, {})


# -- tangent kernels -------------------------------------------------------------------------------


def test_only_centre_taps_count() -> None:
    for kernel, told in ((1, False), ((1, 1), False), (3, True), ((1, 2), True)):
        K = kc.ntk(
            wired(
                ("w", L.Affine(kernel=kernel), "x"),
                ("f", L.Nonlinear("relu"), "w"),
                ("v", L.Affine(), "f"),
            )
        )
        assert (
            (
                "only the centre tap of a Delta-initialised convolution is counted as a parameter",
                "convention",
            )
            in texts(K, "w")
        ) is told
        assert any("Delta-initialised: only" in text for text, _ in texts(K, "w")) is told


# -- symbols ---------------------------------------------------------------------------------------


def test_only_linear_mixes_are_multiplied_out() -> None:
    x, y, z = sp.symbols("x y z", positive=True)
    assert tidy(x * (y + 1)) == x * y + x
    for kept in (
        (x * y) ** z,
        x ** (y + z),
        sp.log(x * y),
        sp.exp(x * (y + 1)),
        sp.sqrt(x * (y + 1)),
    ):
        assert str(tidy(kept)) == str(kept)
    assert cosine(1 - x / (y + 1)) == x / (y + 1) and cosine(
        sp.Rational(1, 3) * (1 - x)
    ) == x / 3 + sp.Rational(2, 3)


@pytest.mark.parametrize(
    ("layer", "beyond"),
    [
        (L.Affine(kernel=3, padding=1), False),
        (L.Affine(kernel=3, padding=2), True),
        (L.Affine(padding=1), True),
        (L.Affine(kernel=(5, 3), padding=(2, 1)), False),
        (L.Affine(kernel=(5, 3), padding=2), True),
        (L.Affine(kernel=2, padding=1), True),
        (L.Affine(kernel=2, padding="circular"), False),
    ],
)
def test_padding_beyond_half_a_window_is_a_heuristic(layer: Any, beyond: bool) -> None:
    """Some locations read zeros alone at the centre tap, where kernel maps say q = 1."""
    net = kc.chain(L.Input(3), layer)
    assert kc.c_map(net).heuristic == kc.ntk(net).heuristic == beyond
