"""What every calculus is asked of a network, and how an outcome is written down.

An answer is a dictionary {quantity: value} of plain data; numbers are hex floats with the condition
number by which their tolerance is multiplied. A refusal is the error's type, message, node and the
stage, "construction" or "call", at which it was raised.
"""

from __future__ import annotations

import math
import re
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import sympy as sp

import kcalc as kc

from .corpus import Case

Answer = dict[str, Any]
Question = Callable[[Case], tuple[Callable[[], Any], Callable[[Any], Answer]]]
NODE = re.compile(r"node ('[^']*')")
PSI = 1.25
LIMIT = 8.0  # seconds of processor time for one question
SMALL = 25  # nodes of the networks that are asked for enclosures


def number(value: Any, condition: float = 1.0) -> Any:
    """A real number as [hex, condition]; what is no number as text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, sp.Basic) and not value.is_number:
        return formula(value)
    return [float(value).hex(), min(float(condition), 1e12)]


def formula(value: Any) -> str:
    """A SymPy expression as text; symbols are told by their names."""
    return sp.srepr(sp.sympify(value, strict=True))


def numbers(value: Any, name: str, condition: float = 1.0) -> Answer:
    """Plain data with all numbers written down, by path."""
    if isinstance(value, Mapping):
        return {
            k: v
            for key, item in value.items()
            for k, v in numbers(item, f"{name}.{key}", condition).items()
        }
    if isinstance(value, list | tuple | np.ndarray):
        return {
            k: v
            for i, item in enumerate(value)
            for k, v in numbers(item, f"{name}[{i}]", condition).items()
        }
    return {name: number(value.item() if isinstance(value, np.generic) else value, condition)}


def assumed(result: Any) -> Answer:
    """The assumptions of a result in order."""
    return {"assumptions": [str(a) for a in result.assumptions]}


def over(case: Case) -> dict[str, int]:
    """The argument that says how many tokens there are, for networks with attention."""
    return {} if case.tokens is None else {"tokens": case.tokens}


def by_output(net: kc.Network, value: Any) -> dict[str, Any]:
    """{output: value}, however many outputs there are."""
    found = value if isinstance(value, dict) else {net.outputs[0]: value}
    return {str(node): item for node, item in found.items()}


# -- the calculi -----------------------------------------------------------------------------------


def c_map(case: Case, assume: bool = False) -> Any:
    net = case.network

    def call(C: Any) -> Answer:
        slopes = (
            by_output(net, C.derivative()(case.c, case.q1, case.q2)) if len(net.inputs) == 1 else {}
        )
        out = assumed(C)
        for node, value in by_output(net, C(case.c, case.q1, case.q2)).items():
            out[f"C.{node}"] = number(value, 1 + abs(float(slopes.get(node, 1.0))))
        for node, value in slopes.items():
            out[f"C'.{node}"] = number(value, 100)
        for node, value in by_output(net, C.at_angle(1e-3, case.q1)).items():
            out[f"angle.{node}"] = number(1 - np.asarray(value), 1e12)
        return out

    return lambda: kc.c_map(net, assume_independent=assume, **over(case)), call


def c_map_assumed(case: Case) -> Any:
    return c_map(case, True)


def q_map(case: Case) -> Any:
    net = case.network

    def call(Q: Any) -> Answer:
        values = kc.q_values(net, case.q1, **over(case))
        answers = {
            f"Q.{node}": number(value, 10) for node, value in by_output(net, Q(case.q1)).items()
        }
        slopes = (
            {
                f"Q'.{node}": number(v, 1000)
                for node, v in by_output(net, Q.derivative()(case.q1)).items()
            }
            if len(net.inputs) == 1
            else {}
        )
        return (
            assumed(Q)
            | answers
            | slopes
            | {f"q.{node}": number(v, 10) for node, v in values.items()}
        )

    return lambda: kc.q_map(net, **over(case)), call


def means(case: Case) -> Any:
    """q, c and the channel mean of every node."""

    def call(_: Any) -> Answer:
        found = kc.node_values(case.network, case.c, case.q1, case.q2, **over(case))
        return {
            k: v
            for node, values in found.items()
            for k, v in numbers(tuple(values), str(node), 100).items()
        }

    return lambda: None, call


def token_cosines(case: Case) -> Any:
    """The map of the cosine of two tokens."""
    net = case.network

    def call(R: Any) -> Answer:
        found = by_output(net, R(0.3)) | {
            f"{node}'": value for node, value in by_output(net, R.derivative()(0.3)).items()
        }
        return assumed(R) | numbers(found, "R", 1000)

    return lambda: kc.token_map(net, case.tokens), call


def enclosure(case: Case) -> Any:
    net = case.network

    def call(C: Any) -> Answer:
        found = by_output(net, C.ball(case.c, case.q1, case.q2, digits=30))
        return {
            f"{node}.{end}": str(getattr(ball, end))
            for node, ball in found.items()
            for end in ("lower", "upper")
        }

    return lambda: kc.c_map(net), call


def formulas(case: Case) -> Any:
    net = case.network

    def call(C: Any) -> Answer:
        found = by_output(
            net,
            C.symbolic(
                sp.Rational(case.q1).limit_denominator(100),
                sp.Rational(case.q2).limit_denominator(100),
            ),
        )
        return assumed(C) | {node: str(composition) for node, composition in found.items()}

    return lambda: kc.c_map(net), call


def tangent(case: Case, **options: Any) -> Any:
    net = case.network

    def call(K: Any) -> Answer:
        out = assumed(K)
        for node, value in by_output(net, K(case.c, case.q1, case.q2)).items():
            out[f"ntk.{node}"] = number(value, 100)
        for node, value in by_output(net, K.nngp(case.c, case.q1, case.q2)).items():
            out[f"nngp.{node}"] = number(value, 100)
        first = net.nodes_of(kc.layers.Affine)[0]
        for node, value in by_output(net, K.layers[first](case.c, case.q1)).items():
            out[f"layer.{node}"] = number(value, 100)
        return out

    return lambda: kc.ntk(net, **over(case), **options), call


def tangent_standard(case: Case) -> Any:
    return tangent(case, parameterization="standard", features=8, assume_independent=True)


def tangent_formula(case: Case) -> Any:
    net = case.network

    def call(K: Any) -> Answer:
        return {
            node: str(composition) for node, composition in by_output(net, K.symbolic(1)).items()
        }

    return lambda: kc.ntk(net), call


def positions(case: Case, weights: str = "dense") -> Any:
    net = case.network
    shape = next(
        (net.layer(node).image_shape for node in net.inputs if net.layer(node).image_shape), None
    )
    rng = np.random.default_rng(len(net))
    widths = [net.layer(node).features or 3 for node in net.inputs]
    rows = {
        node: rng.standard_normal((2, *(shape or (2, 2)), width))
        for node, width in zip(net.inputs, widths, strict=True)
    }
    images = rows[net.inputs[0]] if len(rows) == 1 else rows

    def call(K: Any) -> Answer:
        return (
            assumed(K)
            | numbers(by_output(net, K.matrix(images)), "ntk", 100)
            | numbers(by_output(net, K.nngp.matrix(images)), "nngp", 100)
        )

    return lambda: kc.ntk(
        net, spatial="exact", image_shape=None if shape else (2, 2), weights=weights
    ), call


def positions_delta(case: Case) -> Any:
    return positions(case, "delta")


def gradients(case: Case) -> Any:
    net = case.network

    def call(found: Any) -> Answer:
        return assumed(found) | numbers(found.to_dict(), "gradients", 100)

    return lambda: kc.gradients(net, q=case.q1, output=net.outputs[0], **over(case)), call


def unbiased(case: Case) -> kc.Network:
    """The network with all sigma_b = 0, but for every fourth one, which shows the refusals of
    biases.
    """
    net, L = case.network, kc.layers
    if len(net) % 4 == 0:
        return net
    return net.map_layers(
        lambda _, layer: replace(layer, sigma_b=0) if isinstance(layer, L.Affine) else layer
    )


def slopes(case: Case, q: Any = None) -> Any:
    net = unbiased(case)

    def call(found: Any) -> Answer:
        out: Answer = {}
        for node, polynomial in by_output(net, found).items():
            for point in (1, PSI):
                out[f"{node} at {point}"] = number(polynomial.subs({kc.symbols.psi: point}), 100)
        return out

    return lambda: kc.slope_polynomial(net, q=q), call


def slopes_weighted(case: Case) -> Any:
    return slopes(case, case.q1)


def maxima(case: Case) -> Any:
    net = unbiased(case)

    def call(made: Any) -> Answer:
        slope, curvature, negative = made
        out = {
            "slope": number(slope(PSI), 100),
            "curvature": number(curvature(0.3), 100),
            "c": number(negative(0.4), 100),
        }
        return out | {"active": str(slope.active(PSI))} | assumed(slope)

    return lambda: (kc.maximal_slope(net), kc.maximal_curvature(net), kc.maximal_c_value(net)), call


def scaling(case: Case) -> Any:
    return lambda: kc.scaling(
        case.network, features=8, image_shape=(4, 4)
    ), lambda found: assumed(found) | numbers(found.to_dict(), "scaling", 100)


def moments(case: Case) -> Any:
    net = unbiased(case)
    make = lambda: kc.moments(net, features=8, output=net.outputs[0])
    return make, lambda found: assumed(found) | numbers(found.to_dict(), "moments", 1000)


def fluctuations(case: Case) -> Any:
    c = None if len(case.network.inputs) > 1 else 0.5
    return lambda: kc.fluctuations(
        case.network, features=8, q=case.q1, c=c
    ), lambda found: assumed(found) | numbers(found.to_dict(), "fluctuations", 1e5)


def smoothness(case: Case) -> Any:
    net = case.network
    make = lambda: kc.smoothness(
        net, features=8, radius=2.0, examples=3, q=case.q1, output=net.outputs[0]
    )
    return make, lambda found: assumed(found) | numbers(found.to_dict(), "smoothness", 1e4)


def smoothness_normalised(case: Case) -> Any:
    net = case.network
    make = lambda: kc.smoothness(
        net,
        features=8,
        normalisation="weight",
        epsilon=0.5,
        biases=False,
        q=case.q1,
        output=net.outputs[0],
    )
    return make, lambda found: assumed(found) | numbers(found.to_dict(), "smoothness", 1e4)


def shaping(case: Case) -> Any:
    net = case.network

    def call(shaped: Any) -> Answer:
        constants = {
            str(name): numbers(k.to_dict(), str(name), 1e5) for name, k in shaped.constants.items()
        }
        return (
            assumed(shaped)
            | {"changes": list(map(str, shaped.changes))}
            | {f"{n}.{k}": v for n, c in constants.items() for k, v in c.items()}
        )

    return lambda: kc.shape(net.normalised(), activation="tanh", method="dks"), call


QUESTIONS: dict[str, Question] = {
    "c_map": c_map,
    "c_map assumed": c_map_assumed,
    "q_map": q_map,
    "means": means,
    "enclosure": enclosure,
    "formulas": formulas,
    "ntk": tangent,
    "ntk standard": tangent_standard,
    "ntk formula": tangent_formula,
    "positions": positions,
    "positions delta": positions_delta,
    "gradients": gradients,
    "slopes": slopes,
    "slopes weighted": slopes_weighted,
    "maxima": maxima,
    "scaling": scaling,
    "moments": moments,
    "fluctuations": fluctuations,
    "smoothness": smoothness,
    "smoothness normalised": smoothness_normalised,
    "shaping": shaping,
    "token cosines": token_cosines,
}
DEAR = {"enclosure", "formulas", "ntk formula", "shaping"}  # asked of small networks alone


def asked(case: Case, name: str) -> bool:
    """Whether a network is asked a question."""
    if name.startswith("positions"):
        return case.kind in ("image", "tokens", "wild")
    if name == "token cosines":
        return case.tokens is not None
    return name not in DEAR or len(case.network) <= SMALL


class Slow(BaseException):
    """Raised in a question that takes more than LIMIT seconds of processor time."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise :class:`Slow` after so many seconds of processor time."""

    def stop(*_: Any) -> None:
        raise Slow

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def outcome(case: Case, name: str) -> Answer:
    """The answer or refusal of one question."""
    stage = "construction"
    try:
        with warnings.catch_warnings(), limited(LIMIT):
            warnings.simplefilter("ignore")
            make, call = QUESTIONS[name](case)
            made = make()
            stage = "call"
            return {"answer": call(made)}
    except kc.KcalcError as error:
        found = NODE.search(str(error))
        return {
            "refusal": type(error).__name__,
            "message": str(error),
            "node": found[1] if found else None,
            "stage": stage,
        }
    except Slow:
        return {"slow": LIMIT}
    except Exception as error:  # an error of another kind is recorded as a fault
        return {"fault": f"{type(error).__name__}: {str(error)[:200]}", "stage": stage}


def differences(old: Answer, new: Answer, tolerance: float) -> list[str]:
    """In which quantities two outcomes differ.

    Empty where one of them took too long to be known.
    """
    if "slow" in old or "slow" in new:
        return []
    if "answer" not in old or "answer" not in new:
        return [] if old == new else [f"{_short(old)} -> {_short(new)}"]
    one, two = old["answer"], new["answer"]
    found = [f"{key}: only in one of the records" for key in one.keys() ^ two.keys()]
    for key in one.keys() & two.keys():
        a, b = one[key], two[key]
        both = all(
            isinstance(v, list)
            and len(v) == 2
            and isinstance(v[0], str)
            and isinstance(v[1], float)
            for v in (a, b)
        )
        if a != b and not (both and close(a, b, tolerance)):
            found.append(f"{key}: {_value(a)} -> {_value(b)}")
    return sorted(found)


def without_wording(found: Answer) -> Answer:
    """An outcome without sentences: assumptions are (node, kind), refusals have no message."""
    if "answer" not in found:
        return {key: value for key, value in found.items() if key != "message"}
    answer = {
        key: value
        for key, value in found["answer"].items()
        if not (isinstance(value, str) and " " in value)
    }
    if "assumptions" in answer:
        answer["assumptions"] = [text.split(": ")[0] for text in answer["assumptions"]]
    return {"answer": answer}


def _short(found: Answer) -> str:
    return "an answer" if "answer" in found else ", ".join(f"{k}: {v}" for k, v in found.items())


def _value(found: Any) -> str:
    return (
        repr(float.fromhex(found[0]))
        if isinstance(found, list) and len(found) == 2 and isinstance(found[1], float)
        else str(found)
    )


def close(old: list[Any], new: list[Any], tolerance: float) -> bool:
    """Whether two written numbers agree to the tolerance times their condition number."""
    one, two = float.fromhex(old[0]), float.fromhex(new[0])
    if math.isnan(one) or math.isnan(two):
        return math.isnan(one) and math.isnan(two)
    if one == two:
        return True
    return abs(one - two) <= tolerance * max(old[1], new[1]) * max(abs(one), abs(two))
