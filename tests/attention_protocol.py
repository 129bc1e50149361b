"""Transformers of finite width against their kernel maps.

Kinds, widths and what counts as agreement.

``python tests/attention_protocol.py`` runs the whole protocol, six kinds at three widths with 100
networks of 8 pairs of sequences, and prints a line per check.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import kcalc as kc
from kcalc.verification.statistics import Power, Statistic, bias

L = kc.layers
TOKENS, COSINE, BLOCKS, KEY_WIDTH = 8, 0.3, 2, 64
HEADS = (3, 6, 12)
MOST_Z, MOST_SHARE = 4.5, 0.015


@dataclass(frozen=True)
class Kind:
    """A kind of transformer, and the inputs that it is measured with."""

    name: str
    norm: str = "pre"
    gated: bool = False
    causal: bool = False
    q2: float = 1.0

    def network(self, heads: int, blocks: int = BLOCKS, key_width: int = KEY_WIDTH) -> kc.Network:
        """Blocks of attention and an MLP on ``heads * key_width`` channels, and a readout."""
        width = heads * key_width
        steps: list[Any] = [("x", L.Input(width), ()), ("embedding", L.Affine(width), ("x",))]

        def add(name: str, layer: L.Layer, *reads: str) -> str:
            steps.append((name, layer, reads or (steps[-1][0],)))
            return name

        def branch(name: str, below: str, make: Any) -> str:
            read = add(f"{name} norm", L.LayerNorm(), below) if self.norm == "pre" else below
            total = add(f"{name} sum", L.Sum(weights=(1, 0.7)), below, make(name, read))
            return add(f"{name} norm", L.RMSNorm(), total) if self.norm == "post" else total

        def attention(name: str, below: str) -> str:
            reads = [
                add(f"{name} {what}", L.Affine(width, sigma_b=b), below)
                for what, b in (("q", 0.3), ("k", 0.2), ("v", 0.1))
            ]
            add(
                f"{name} read",
                L.Attend(heads=heads, key_width=key_width, causal=self.causal),
                *reads,
            )
            return add(f"{name} out", L.Affine(width))

        def mlp(name: str, below: str) -> str:
            add(f"{name} up", L.Affine(2 * width, sigma_w=1.4), below)
            inside = add(f"{name} phi", L.Nonlinear("swish" if self.gated else "gelu"))
            if self.gated:
                inside = add(
                    f"{name} gated",
                    L.Product(),
                    inside,
                    add(f"{name} other", L.Affine(2 * width), below),
                )
            return add(f"{name} down", L.Affine(width, sigma_w=1.4), inside)

        below = "embedding"
        for number in range(1, blocks + 1):
            below = branch(f"attention {number}", below, attention)
            below = branch(f"mlp {number}", below, mlp)
        add("readout", L.Affine(width), below)
        return kc.Network.from_steps(steps)

    def check(
        self, heads: int, draws: int = 100, pairs: int = 8, key: int = 0, **options: Any
    ) -> Any:
        """The measurement at one width."""
        network = self.network(
            heads, options.pop("blocks", BLOCKS), options.pop("key_width", KEY_WIDTH)
        )
        model = kc.to_jax(network, image_shape=(TOKENS, 1), weights="delta_gaussian")
        given: dict[str, Any] = {
            "tokens": TOKENS,
            "token_cosine": COSINE,
            "tangent": False,
        } | options
        if self.causal:
            given.setdefault("sampling", kc.Sampling(draws=400, chains=12))
        return kc.verify_kernels(
            model,
            0.5,
            1.0,
            None if self.q2 == 1 else self.q2,
            draws=draws,
            pairs=pairs,
            key=key,
            **given,
        )


KINDS = (
    Kind("pre-norm, GELU"),
    Kind("post-norm, GELU", "post"),
    Kind("no norm, GELU", "none"),
    Kind("pre-norm, SwiGLU", gated=True),
    Kind("causal, pre-norm, GELU", causal=True),
    Kind("two inputs of unequal q", "none", q2=2.0),
)


def statistics(check: Any) -> Iterator[tuple[str, Statistic, np.ndarray]]:
    """(name, statistic, nodes that count) of every quantity, and of gradients in every mode."""
    for quantity in check.quantities:
        yield quantity, check.statistic(quantity), check.judged()
    for mode, found in (check.gradients.modes if check.gradients is not None else {}).items():
        yield f"gradient, {mode}", found, np.isfinite(found.expected)


def share_of(found: Statistic) -> np.ndarray:
    """Deviations from what is expected, relative to it, or to .05 where it is smaller."""
    return np.abs(found.mean - found.expected) / np.maximum(np.abs(found.expected), 0.05)


def outliers(check: Any, share: float = MOST_SHARE) -> list[str]:
    """Where a value is further from its map than 4.5 standard errors, and than ``share`` of it."""
    found = []
    for name, s, counted in statistics(check):
        off = np.abs(s.mean - s.expected)
        size = (
            np.maximum(np.abs(s.expected), 0.05)
            if "c" in name.split("_")[0] or "cosine" in name
            else np.abs(s.expected)
        )
        bad = (
            counted.reshape(-1, *(1,) * (s.z.ndim - 1))
            & (np.abs(s.z) > MOST_Z)
            & (off > share * size)
        )
        found += [
            f"{name} at {_node(check, name, i)}: z {s.z[tuple(i)]:.1f}, "
            f"{off[tuple(i)] / size[tuple(i)]:.2%}"
            for i in np.argwhere(bad)
        ]
    return found


def _node(check: Any, name: str, place: np.ndarray) -> str:
    return str((check.gradients.nodes if name.startswith("gradient") else check.nodes)[place[0]])


def fall(checks: list[Any], quantity: str = "c") -> Power:
    """The power of the number of heads with which deviations of the mean fall, at the nodes of all
    widths.
    """
    k = checks[0].quantities.index(quantity)
    rows = [
        (check.samples[0].means - check.samples[0].expected)[:, check.judged(), k].reshape(
            check.draws, -1
        )
        for check in checks
    ]
    return bias(rows, HEADS)


def main() -> None:
    """All kinds at all widths, the greatest first."""
    found: dict[str, list[Any]] = {}
    for heads in reversed(HEADS):
        for kind in KINDS:
            start = time.perf_counter()
            check = kind.check(heads)
            found.setdefault(kind.name, []).insert(0, check)
            parts = [
                f"{name} |z| {np.nanmax(np.abs(s.z[counted])):.1f} "
                f"{np.nanmax(share_of(s)[counted]):.2%}"
                for name, s, counted in statistics(check)
            ]
            say(
                f"{kind.name}, {heads} heads, {time.perf_counter() - start:.0f} s: "
                f"{'; '.join(parts)}"
            )
            for line in outliers(check):
                say(f"   too far: {line}")
    for name, checks in found.items():
        say(
            f"{name}, power of the heads: "
            f"{ {q: str(fall(checks, q)) for q in checks[0].quantities} }"
        )


def say(line: str) -> None:
    """A line of the record."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
