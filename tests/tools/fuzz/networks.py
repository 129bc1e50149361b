"""Random networks through the whole pipeline.

``python tests/tools/fuzz networks --count 2000 --seed 0 [--start 0] [--processes 2]``.

Graph -> JSON -> network -> maps in NumPy, mpmath, Arb balls, SymPy and JAX -> shape -> export ->
run. Every number is compared with one that was made otherwise: maps with :mod:`fuzz.truth`,
residuals with a quadrature of their own, exported code with a forward pass in plain NumPy. Prints
one line; exit status 1 where anything disagrees or fails otherwise than by a KcalcError.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# programs run once
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import mpmath
import numpy as np
from fuzz import runs
from fuzz.cases import Case, case
from fuzz.truth import DIGITS, NoTruth, accuracy, conditions, truth

import kcalc as kc
from kcalc.calculi.kernel import kernel_over
from kcalc.fields import mpmath_field
from kcalc.fields.jets import Jet
from kcalc.interchange import network_from_dict, network_to_dict
from kcalc.network.compose import interpret

L = kc.layers
NUMPY, WIDE, CLOSE, ROUNDED, GAP = 1e-12, 1e-24, 1e-10, 1e-14, 1e-11
EXPORTED, RESIDUAL, MISSED = 1e-13, 1e-12, 1e-9
Values = dict[Any, tuple[Any, Any, Any]]


@dataclass
class Tally:
    """What came of the networks so far."""

    networks: int = 0
    compared: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    worst: dict[str, float] = field(default_factory=dict)
    faults: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Those of another process too."""
        self.networks += other.networks
        self.compared += other.compared
        self.refused += other.refused
        self.worst = {
            kind: max(self.worst.get(kind, 0), other.worst.get(kind, 0))
            for kind in self.worst | other.worst
        }
        self.faults += other.faults

    def line(self) -> str:
        """One line of text."""
        found = ", ".join(
            f"{kind} {count} (worst {self.worst.get(kind, 0):.1e})"
            for kind, count in sorted(self.compared.items())
        )
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.refused.most_common())
        seeds = sorted({seed for seed, _, _ in self.faults})
        return (
            f"{self.networks} networks; {sum(self.compared.values())} comparisons: {found}; "
            f"{sum(self.refused.values())} refusals: "
            f"{reasons or 'none'}; {len(self.faults)} mismatches; failing seeds {seeds}"
        )


class Mismatch(Exception):
    """Two numbers that should be one."""


class Judge:
    """One network on its way, and what it adds to the tally."""

    def __init__(self, given: Case, tally: Tally, thin: int = 1) -> None:
        self.case, self.tally, self.thin = given, tally, thin
        self.net = given.network
        self.exact: Values | None = None

    def run(self) -> None:
        """All stages; a refusal ends one of them, a mismatch is recorded."""
        self.tally.networks += 1
        for stage in (
            self.document,
            self.numbers,
            self.angles,
            self.wide,
            self.balls,
            self.symbols,
            self.jax,
            self.shaping,
        ):
            try:
                stage()
            except kc.KcalcError as error:
                self.tally.refused[f"{stage.__name__}: {reason(error)}"] += 1
            except Exception as error:
                text = str(error) if isinstance(error, Mismatch) else traceback.format_exc(limit=-3)
                self.tally.faults.append((self.case.seed, stage.__name__, text[-900:]))

    def agree(
        self, kind: str, found: Any, wanted: Any, tolerance: float, scale: Any = 1, what: Any = ""
    ) -> None:
        """Record how far two numbers (arrays) are apart.

        Raises: Mismatch beyond the tolerance, and for nan.
        """
        with mpmath.workdps(DIGITS):
            apart = float(np.max(np.abs(found - wanted) / scale))
        self.tally.compared[kind] += 1
        self.tally.worst[kind] = max(self.tally.worst.get(kind, 0.0), apart)
        if not apart <= tolerance:
            raise Mismatch(
                f"{kind} {what}: {found!s:.60} against {wanted!s:.60}, {apart:.1e} apart"
            )

    def same(self, kind: str, holds: Any, what: str = "") -> None:
        """Record that something holds. Raises: Mismatch."""
        self.tally.compared[kind] += 1
        if not holds:
            raise Mismatch(f"{kind}: {what}")

    # -- the network -------------------------------------------------------------------------------

    def document(self) -> None:
        """Through JSON and back, symbols and all."""
        given = self.case
        for net in (given.symbolic, given.network):
            text = json.dumps(network_to_dict(net), allow_nan=False)
            back = network_from_dict(json.loads(text))
            self.same(
                "JSON",
                back == net and hash(back) == hash(net) and list(back) == list(net),
                "differs",
            )
            self.same("JSON", back.outputs == net.outputs, "its outputs differ")
            self.same("JSON", json.dumps(network_to_dict(back)) == text, "second text differs")
            self.net = back
        self.same(
            "subs", given.symbolic.subs(given.symbols) == given.network, f"subs {given.symbols}"
        )

    # -- maps --------------------------------------------------------------------------------------

    def numbers(self) -> None:
        """NumPy at every node; the truth is made here."""
        given = self.case
        c = {node: float(value) for node, value in given.c.items()}
        q1, q2 = float(given.q1), None if given.uniform else float(given.q2)
        found = kc.node_values(self.net, c, q1, q2)
        whole = runs.by_output(self.net, kc.c_map(self.net)(c, q1, q2))
        for node in self.net.outputs:
            self.same(
                "C is that of the node",
                whole[node] == found[node][2],
                f"{node}: {whole[node]!r} and {found[node][2]!r}",
            )
        if given.kind == "wild":
            self.exact = self._fold()
        else:
            self.exact = truth(self.net, given.c, number(given.q1), number(given.q2))
        self.compare("NumPy", found, NUMPY)
        for node, value in runs.by_output(self.net, kc.q_map(self.net)(q1)).items():
            self.agree(
                "NumPy", value, self.exact[node][0], NUMPY, self.exact[node][0], f"Q at {node}"
            )

    def compare(self, kind: str, found: Values, tolerance: float) -> None:
        """(q1, q2, c) of nodes against the truth."""
        assert self.exact is not None
        for node, values in found.items():
            for value, wanted, scale in zip(
                values, self.exact[node], (*self.exact[node][:2], 1), strict=True
            ):
                self.agree(kind, value, wanted, tolerance, scale, f"at {node}")

    def angles(self) -> None:
        """1 - C at small angles, relatively."""
        given, net = self.case, self.net
        if self.exact is None or given.kind == "wild" or not given.uniform or accuracy(net) > WIDE:
            return
        for angle in (1e-7, 1e-3):
            with mpmath.workdps(DIGITS):
                cosine = mpmath.cos(mpmath.mpf(angle))
            exact = truth(
                net, dict.fromkeys(net.inputs, cosine), number(given.q1), number(given.q1)
            )
            for node, found in runs.by_output(
                net, kc.c_map(net).gap_at_angle(angle, float(given.q1))
            ).items():
                with mpmath.workdps(DIGITS):
                    wanted = 1 - exact[node][2]
                self.agree("1 - C", found, wanted, GAP, wanted, f"at angle {angle}, {node}")

    def wide(self) -> None:
        """The calculus in mpmath numbers of 30 digits."""
        # integrals take half a minute there
        if self.exact is not None and self.case.kind != "wild" and accuracy(self.net) < WIDE:
            self.compare("mpmath", self._fold(), WIDE)

    def _fold(self) -> Values:
        system, given, net = mpmath_field(30), self.case, self.net
        kernel = kernel_over(system, given.uniform, True)
        q1, q2 = system.number(given.q1), system.number(given.q2)
        inputs = {
            node: kernel.start(node, q1, q2, Jet((1 - system.number(given.c[node]),)))
            for node in net.inputs
        }
        states = {
            node: kernel.whole(state) for node, state in interpret(net, kernel, inputs).items()
        }
        return {node: (one, two, 1 - gap.value) for node, (one, two, gap) in states.items()}

    def balls(self) -> None:
        """Enclosures of C and Q at the outputs hold the truth."""
        given = self.case
        place = given.seed % 3 if given.kind != "integrated" else (given.seed // 10) % 4
        if self.exact is None or place or (given.kind == "wild" and self.thin > 1):
            return
        spare, digits = (accuracy(self.net), 25) if given.kind != "wild" else (1e-26, 20)
        q2 = None if given.uniform else given.q2
        for letter, position, enclosures in (
            ("C", 2, kc.c_map(self.net).ball(given.c, given.q1, q2, digits=digits)),
            ("Q", 0, kc.q_map(self.net).ball(given.q1, digits=digits)),
        ):
            for node, ball in runs.by_output(self.net, enclosures).items():
                with mpmath.workdps(DIGITS):
                    middle, radius, wanted = ball.mid, ball.radius, self.exact[node][position]
                    held = abs(middle - wanted) <= radius + spare * max(1, abs(wanted))
                self.same(
                    "ball", held, f"{letter} at {node}: {ball} without {mpmath.nstr(wanted, 25)}"
                )

    def symbols(self) -> None:
        """The named composition, evaluated in mpmath."""
        given = self.case
        if self.exact is None or (
            given.seed % 10 != 3 and given.seed % 40 != 8 and given.seed % 30
        ):
            return
        many = len(given.network.inputs) > 1
        values: dict[str, Any] = {
            f"c_{node}" if many else "c": number(c) for node, c in given.c.items()
        }
        values |= {str(symbol): number(value) for symbol, value in given.symbols.items()}
        made = kc.c_map(given.symbolic).symbolic(given.q1, None if given.uniform else given.q2)
        for node, composition in runs.by_output(self.net, made).items():
            used = {str(symbol) for symbol in composition.arguments}
            found = composition.evaluate(
                {name: value for name, value in values.items() if name in used}, digits=30
            )
            self.agree(
                "SymPy",
                found,
                self.exact[node][2],
                WIDE if given.kind == "exact" else ROUNDED,
                1,
                f"C at {node}",
            )

    def jax(self) -> None:
        """The NNGP kernel of two data points as a JAX function."""
        given = self.case
        node = self.net.outputs[-1]
        net = runs.part_of(self.net, node)
        if self.exact is None or given.kind == "wild" or given.seed % 16 or len(net.inputs) != 1:
            return
        rows = runs.data_with(net, float(given.c[net.inputs[0]]), float(given.q1), float(given.q2))
        kernel = np.asarray(kc.learnable_kernel(net)({}, rows, kind="nngp"))
        q1, q2, c = (float(v) for v in self.exact[node])
        wanted = np.array([[q1, c * np.sqrt(q1 * q2)], [c * np.sqrt(q1 * q2), q2]])
        self.agree("JAX", kernel, wanted, CLOSE, np.sqrt(q1 * q2))

    # -- shaping -----------------------------------------------------------------------------------

    def shaping(self) -> None:
        """Shape, measure again, export, run."""
        given = self.case
        if given.seed % self.thin:
            return
        shaped = kc.shape(self.net.normalised(), given.activation, given.method, **given.options)
        try:
            self.conditions(shaped)
            self.shaped_maps(shaped)
        except NoTruth as error:
            self.tally.refused[f"not compared: {error} shaped"] += 1
        self.exported(shaped)

    def conditions(self, shaped: Any) -> None:
        """Residuals of the local conditions by another quadrature.

        Small unless a warning says otherwise.
        """
        measured = [conditions(shaped.constants[name].transformed) for name in shaped.constants]
        for condition, target in shaped.targets.items():
            off = max(abs(float(values[condition] - target)) for values in measured)
            claimed, scale = shaped.residuals[condition], max(1.0, abs(target))
            self.agree("residuals", off, claimed, RESIDUAL, scale, condition)
            self.same(
                "targets",
                claimed < MISSED * scale or shaped.warnings,
                f"{condition} is off by {claimed}, and no warning says so",
            )

    def shaped_maps(self, shaped: Any) -> None:
        """Q = 1 at the outputs, and C at every node against the truth for the shaped network."""
        net, given = shaped.network, self.case
        c = {node: float(value) for node, value in given.c.items()}
        found = kc.node_values(net, c)
        self.compare_shaped(found, truth(net, given.c, number(1), number(1)))
        if "Q_f(1)" in shaped.global_targets:
            for node, q in runs.by_output(net, kc.q_map(net)(1.0)).items():
                self.agree("Q_f(1)", q, 1.0, MISSED, 1, f"at {node}")

    def compare_shaped(self, found: Values, wanted: Values) -> None:
        for node, values in found.items():
            for value, exact, scale in zip(
                values, wanted[node], (*wanted[node][:2], 1), strict=True
            ):
                self.agree("shaped", value, exact, NUMPY, scale, f"at {node}")

    def exported(self, shaped: Any) -> None:
        """Exported documents and code, run on arrays, against a forward pass in NumPy and the
        network in JAX.
        """
        net, seed = shaped.network, self.case.seed
        document = json.loads(shaped.export("json"))
        back = network_from_dict(document["network"])
        self.same("shaped JSON", back == net, "differs")
        c = {node: float(value) for node, value in self.case.c.items()}
        again = runs.by_output(net, kc.c_map(back)(c))
        for node, value in runs.by_output(net, kc.c_map(net)(c)).items():
            self.agree("shaped JSON", again[node], value, ROUNDED, 1, f"C at {node}")
        x, params = runs.inputs_of(net, seed), runs.weights_of(net, seed)
        wanted = runs.forward(net, x, params)
        for target in runs.targets(seed):
            found = runs.run_exported(shaped, target, x, params)
            # a norm of four channels that are all 0 in this draw
            if any(np.isnan(wanted[node]).any() for node in net):
                self.same(
                    f"nan of {target}",
                    all(
                        np.array_equal(np.isnan(found[node]), np.isnan(wanted[node]))
                        for node in net
                    ),
                )
                continue
            for node in net:
                self.agree(
                    f"export {target}",
                    found[node],
                    wanted[node],
                    EXPORTED,
                    runs.size(wanted, net, node),
                    f"at {node}",
                )
        if seed // 4 % 20 == 4:
            for node, value in runs.run_jax(shaped, x, params).items():
                self.agree(
                    "to_jax",
                    value,
                    wanted[node],
                    EXPORTED,
                    runs.size(wanted, net, node),
                    f"at {node}",
                )


def number(value: Any) -> Any:
    """A rational number in mpmath."""
    with mpmath.workdps(DIGITS):
        return mpmath.mpf(int(value.p)) / int(value.q) if hasattr(value, "p") else mpmath.mpf(value)


def reason(error: kc.KcalcError) -> str:
    """The kind of a refusal: its text without nodes, activations and numbers."""
    text = re.sub(r"'[^']*'|\d+(\.\d+)?(e[-+]\d+)?", "_", str(error).splitlines()[0])
    return f"{type(error).__name__} {text[:48].strip()}"


def fuzz(seeds: Iterable[int], thin: int = 1) -> Tally:
    """The pipeline over seeds in this process, shaping every ``thin``-th network."""
    tally = Tally()
    for seed in seeds:
        Judge(case(seed), tally, thin).run()
    return tally


def _shares(seeds: range, size: int) -> Iterator[range]:
    for start in range(seeds.start, seeds.stop, size):
        yield range(start, min(start + size, seeds.stop))


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="fuzz networks", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="networks")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--start", type=int, default=0, help="leave out so many of them, done before"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--thin", type=int, default=1, help="shape, export and run every so many networks alone"
    )
    options = parser.parse_args(arguments)
    seeds, begin = range(options.seed + options.start, options.seed + options.count), time.time()
    tally = Tally()
    with get_context("spawn").Pool(options.processes) as pool:
        for done in pool.imap_unordered(partial(fuzz, thin=options.thin), _shares(seeds, 25)):
            tally.add(done)
            for seed, stage, text in done.faults:
                print(f"seed {seed}, {stage}: {text}", file=sys.stderr)
            print(
                f"{tally.networks} of {len(seeds)}, {len(tally.faults)} faults",
                end="\r",
                file=sys.stderr,
            )
    print(tally.line(), f"({time.time() - begin:.0f} s)")
    return 1 if tally.faults else 0
