"""Sampled attention goes on until its errors are those asked for, and these errors hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.calculi.attention import sampling as rounds
from kcalc.calculi.attention.sampling import Draws, until_accurate

A, L = kc.architectures, kc.layers
GPT = A.gpt2(blocks=2, features=16, heads=2, vocabulary=20, length=16, std=None)

# kc.node_values(GPT, .5, tokens=4, sampling=kc.Sampling(2, 3, 7)) at the output, as of 0.2.0
FROZEN = (
    1.0,
    0.0,
    0.08475236609318897,
    0.0012943935851832838,
    0.7438372709375098,
    0.0018403205914778375,
)


def run_of(value: float, spread: float) -> Any:
    """Chains that are normal, of a standard deviation over the root of the number of draws."""

    def run(draws: Draws) -> tuple[tuple[float, float], float]:
        found = [
            value + spread / draws.count**0.5 * np.random.default_rng((draws.seed, k)).normal()
            for k in draws.chains
        ]
        mean, error = draws.averaged(np.array(found))
        return (float(mean), float(error)), float(error)

    return run


@pytest.mark.parametrize("spread", [0.001, 0.01, 0.05, 0.3])
def test_stated_errors_hold_however_many_rounds_there_were(spread: float) -> None:
    found = [until_accurate(kc.Sampling(seed=s), run_of(1.0, spread))[0] for s in range(400)]
    means, errors = np.array(found).T
    z = (means - 1) / errors
    assert errors.max() <= 0.01
    assert np.sqrt(np.mean(z**2)) < 1.35 and np.mean(np.abs(z) > 2) < 0.12
    assert np.mean(np.abs(z) > 1) > 0.15  # nor are they much too large


@pytest.mark.parametrize("error", [0.02, 0.005])
def test_all_stated_errors_are_those_asked_for(error: float) -> None:
    asked = kc.Sampling(error=error)
    values = kc.node_values(GPT, 0.5, tokens=6, sampling=asked)
    for v in values.values():
        assert v.q_error <= error * v.q
        assert (v.token_cosine_error or 0) <= error and (v.c_error or 0) <= error
    found = kc.gradients(GPT, tokens=6, sampling=asked)
    for node, value in found.nodes.items():
        assert found.errors["nodes"][node] <= error * value * (1 + 1e-9)
    for node, value in found.weights.items():
        assert found.errors["weights"][node] <= error * value * (1 + 1e-9)
    kernels = kc.ntk(GPT, tokens=np.array([[0, 1, 2, 1]]), sampling=kc.Sampling(error=0.05))
    for name in ("nngp", "ntk"):
        kernel, errors = (getattr(kernels, n).reshape(4, 4) for n in (name, f"{name}_error"))
        own = np.sqrt(np.diagonal(kernel))
        assert (errors <= 0.05 * np.outer(own, own)).all() and errors.max() > 0


def test_answers_depend_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (kc.node_values(GPT, tokens=6) for _ in range(2))
    other = kc.node_values(GPT, tokens=6, sampling=kc.Sampling(seed=1))
    end = GPT.outputs[0]
    assert one.nodes == two.nodes and one[end] != other[end]
    # the clock is not asked for the numbers
    monkeypatch.setattr(rounds.time, "monotonic", iter(np.arange(0.0, 1e6, 1e3)).__next__)
    assert kc.node_values(GPT, tokens=6).nodes == one.nodes


def test_an_error_out_of_reach_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MOST", 4)
    found = kc.node_values(GPT, tokens=6, sampling=kc.Sampling(error=0.0005))
    assert found.heuristic and "heuristic" in repr(found)
    assert any("0.0005" in a.text and "draws=" in a.text for a in found.assumptions)


def test_a_limit_of_time_is_said() -> None:
    quick = kc.Sampling(error=0.0005, seconds=1e-6)
    found = kc.node_values(GPT, tokens=6, sampling=quick)
    assert any(a.kind == "heuristic" and "1e-06 s" in a.text for a in found.assumptions)
    assert not kc.node_values(GPT, tokens=6, sampling=kc.Sampling(seconds=600)).heuristic


def test_given_numbers_are_those_that_are_drawn() -> None:
    for given, draws, chains in (
        (kc.Sampling(5, 3), 5, 3),
        (kc.Sampling(draws=5), 5, 6),
        (kc.Sampling(chains=3), 8, 3),
    ):
        assert (given.draws, given.chains, given.error) == (draws, chains, None)
        (text,) = [
            a.text
            for a in kc.node_values(GPT, tokens=4, sampling=given).assumptions
            if a.kind == "sampled"
        ]
        assert f"{draws} draws" in text and f"{chains} independent" in text
    v = kc.node_values(GPT, 0.5, tokens=4, sampling=kc.Sampling(2, 3, 7))[GPT.outputs[0]]
    assert v.token_cosine_error == pytest.approx(FROZEN[3], rel=1e-9)
    assert v.token_cosine == pytest.approx(FROZEN[2], rel=1e-9)
    assert v.c == pytest.approx(FROZEN[4], rel=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 3, "error": 0.1}, "give only one"),
        ({"chains": 3, "seconds": 1}, "give only one"),
        ({"error": 0}, "error"),
        ({"error": 2}, "error"),
        ({"seconds": -1}, "seconds"),
        ({"chains": 1}, "chains"),
        ({"seed": -1}, "seed"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with refused(message):
        kc.Sampling(**options)


@pytest.mark.parametrize(
    "options", [{}, {"rotary": 100.0}, {"window": 3}, {"alibi": True}, {"relative": (1.5, 6, 4)}]
)
def test_the_variance_of_scores_is_that_of_drawn_ones(options: dict[str, Any]) -> None:
    """The mean over rows of the variance about the mean of what a row sees, by formula."""
    from kcalc.calculi.attention.sampled import _Scores, score_variance

    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((2, 7, 5))
    G, H = x @ x.T / 5, y @ y.T / 5
    op: Any = L.Attend(4, 8, causal=True, **options).lowered(None)  # pyright: ignore[reportArgumentType]
    drawn = _Scores(op, G, H, 1, 7, 7).drawn(rng, 20000)[0][:, 0]
    rows = [drawn[:, i, np.isfinite(drawn[0, i])].var(axis=1, ddof=1) for i in range(1, 7)]
    found = np.mean(rows, axis=0)
    error = found.std() / len(found) ** 0.5
    assert abs(score_variance(op, G, H) - found.mean()) < 4.5 * error


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [6, 16])
def test_errors_of_networks_hold(tokens: int) -> None:
    """Against a long run, over 40 seeds."""
    end = GPT.outputs[0]
    truth = kc.node_values(GPT, 0.5, tokens=tokens, sampling=kc.Sampling(1000, 16, 10**6))[end]
    z = []
    for seed in range(40):
        v = kc.node_values(GPT, 0.5, tokens=tokens, sampling=kc.Sampling(seed=seed))[end]
        assert v.c is not None and v.c_error is not None and truth.c is not None
        z.append((v.c - truth.c) / np.hypot(v.c_error, truth.c_error or 0))
    assert np.sqrt(np.mean(np.square(z))) < 1.6 and np.mean(np.abs(z) > 2) < 0.2
