"""Shaping: constants of single activations, whole networks, and a comparison with
google-deepmind/dks.

Residuals are the largest |value - target| over the conditions, computed to 30 digits from the four
constants alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import kcalc as kc
from kcalc.shaping.choose_branch import solve
from kcalc.shaping.dks import constants_for
from kcalc.shaping.tat import check_curvature, curvature_systems
from kcalc.shaping.thirty_digits import local_values

from .. import child
from ..book import Figure, Options, Section, Table, digits, seconds, times
from ..timing import alternated

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
OTHERS = ("elu", "selu", "celu", "softsign", "hard_swish", "relu", "leaky_relu", "square")
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
DEPTH, ZETA, TAU = 100, 1.5, 0.3
SLOPE = ZETA ** (1 / DEPTH)
# shortcut weight .5 [DKS sec. 23]
RESNET_152 = {
    "share": 0.75,
    "factors": [[3, 46], [2, 4]],
    "alone": 5,
}


def run(options: Options) -> Section:
    constants, cpu, middle = own(options)
    network_table, resnet = networks(options)
    tables, figures = [constants, network_table], {}
    if "dks" in options.peers:
        beside, ratio = against(options, cpu)
        tables += [beside, wrong(options), tailored(options)]
        figures["dks_ratio"] = Figure(ratio, times(ratio))
    return Section(
        "Shaping",
        "Times are CPU times after import and one warm-up call. (The first call compiles the "
        "activation's derivatives, which takes 5 to 50 ms.) The floor of DKS is 4 to 5 "
        "evaluations of four Gaussian integrals and their Jacobian.",
        tables,
        figures
        | {
            "dks_median": Figure(1e3 * middle, seconds(middle)),
            "shape_resnet": Figure(1e3 * resnet, seconds(resnet)),
        },
    )


def residual(constants: Any, slope: float, q_slope: bool) -> float:
    """The largest residual of DKS's conditions."""
    values = local_values(constants.transformed)
    targets = {"Q(1)": 1.0, "C(0)": 0.0, "C'(1)": slope} | ({"Q'(1)": 1.0} if q_slope else {})
    return max(abs(float(values[name] - target)) for name, target in targets.items())


def own(options: Options) -> tuple[Table, dict[str, float], float]:
    """Constants of one activation for DKS and for TAT."""
    names = options.size(("tanh", "selu", "relu"), (*SMOOTH, *OTHERS))
    smooth = [name for name in names if name in SMOOTH]
    rounds, repeats = options.size(1, 7), options.size(3, 20)
    dks = alternated(
        {name: partial(constants_for, kc.activation(name), SLOPE) for name in names},
        rounds,
        repeats,
    )
    tat = alternated(
        {
            name: partial(solve, curvature_systems(kc.activation(name), TAU / DEPTH))
            for name in smooth
        },
        rounds,
        repeats,
    )
    rows = []
    for name in names:
        phi = kc.activation(name)
        left = residual(constants_for(phi, SLOPE), SLOPE, phi.degree is None)
        rows.append(
            (
                name,
                seconds(dks[name].cpu),
                f"{left:.0e}",
                seconds(tat[name].cpu) if name in tat else "-",
            )
        )
    middle = statistics.median(dks[name].cpu for name in smooth)
    rows.append(
        (
            "median of smooth activations",
            seconds(middle),
            "",
            seconds(statistics.median(t.cpu for t in tat.values())),
        )
    )
    caption = (
        f"Constants of one activation, {DEPTH} layers: dks zeta = {ZETA}, tat tau = {TAU} (CPU)"
    )
    return (
        Table(caption, ("activation", "dks", "residual", "tat"), rows),
        {name: t.cpu for name, t in dks.items()},
        middle,
    )


def networks(options: Options) -> tuple[Table, float]:
    """The whole of kc.shape, including validation and residuals."""
    nets = {
        "resnet-152": kc.architectures.resnet_v2(152),
        "vanilla-100": kc.architectures.vanilla(100),
        "wide-resnet-250": kc.architectures.wide_resnet(250),
        "vanilla-10000": kc.architectures.vanilla(10_000),
    }
    nets = dict(list(nets.items())[: options.size(1, 4)])
    names = options.size(("tanh",), ("tanh", "gelu", "relu", "selu"))
    jobs = {
        (title, name): partial(kc.shape, net, name)
        for title, net in nets.items()
        for name in (names if title != "vanilla-10000" else names[:1])
    }
    found = alternated({" ".join(key): job for key, job in jobs.items()}, options.size(1, 5))
    rows = [
        (
            title,
            *(
                seconds(found[f"{title} {name}"].cpu) if (title, name) in jobs else "-"
                for name in names
            ),
        )
        for title in nets
    ]
    return Table(
        "`kc.shape(network, activation)`, including validation (CPU)", ("network", *names), rows
    ), found["resnet-152 tanh"].cpu


# -- the peer --------------------------------------------------------------------------------------


def from_peer(name: str, found: dict[str, float]) -> kc.Constants:
    """The peer's constants, converted to kcalc's."""
    phi = (
        kc.activations.leaky_relu(found["negative_slope"])
        if "negative_slope" in found
        else kc.activation(name)
    )
    return kc.Constants(
        phi, *(found[key] for key in ("input_scale", "input_shift", "output_scale", "output_shift"))
    )


def against(options: Options, cpu: dict[str, float]) -> tuple[Table, float]:
    """The peer's and kcalc's times and residuals, measured in alternating rounds."""
    names = options.size(("tanh", "relu"), PEER)
    theirs: list[dict[str, Any]] = []
    mine: list[dict[str, float]] = []
    for _ in range(options.size(1, 2)):
        theirs.append(
            child.run(
                "benchmarks.peer_jobs:dks",
                options.peers["dks"],
                names=names,
                depth=DEPTH,
                zeta=ZETA,
                repeats=2,
            )
        )
        again = alternated(
            {name: partial(constants_for, kc.activation(name), SLOPE) for name in names}, 3, 10
        )
        mine.append({name: t.cpu for name, t in again.items()})
    rows, ratios = [], []
    for name in names:
        phi, ours = kc.activation(name), min(found[name] for found in mine)
        left = residual(
            constants_for(phi, SLOPE), SLOPE, phi.degree is None or name == "leaky_relu"
        )
        if "error" in theirs[0][name]:
            rows.append((name, theirs[0][name]["error"], seconds(ours), "-", "-", f"{left:.0e}"))
            continue
        spent = min(found[name]["cpu"] for found in theirs)
        ratios.append(spent / ours)
        off = residual(from_peer(name, theirs[0][name]["constants"]), SLOPE, phi.degree is None)
        rows.append(
            (name, seconds(spent), seconds(ours), times(ratios[-1]), f"{off:.0e}", f"{left:.0e}")
        )
    middle = statistics.median(ratios)
    rows.append(("median", "", "", times(middle), "", ""))
    columns = ("activation", "dks", "kcalc", "ratio", "residual of dks", "of kcalc")
    caption = (
        f"Compared with google-deepmind/dks: {DEPTH} layers, zeta = {ZETA} (CPU, warmed up, the "
        "better of alternating processes for both)"
    )
    return Table(caption, columns, rows), middle


def wrong(options: Options) -> Table:
    """Residuals of both programs if the peer reports success."""
    net = kc.architectures.resnet_v2(152, shortcut_weight=0.5)
    rows = []
    for name, zeta in (("selu", 1.5), ("relu", 10.0), ("selu", 10.0)):
        slope = float(kc.maximal_slope(net).inverse(zeta))

        def peer(name: str = name, zeta: float = zeta) -> kc.Constants:
            return from_peer(
                name,
                child.run(
                    "benchmarks.peer_jobs:dks_resnet",
                    options.peers["dks"],
                    limit=60,
                    name=name,
                    zeta=zeta,
                    power=RESNET_152,
                ),
            )

        finders: tuple[Callable[[], Any], ...] = (
            peer,
            partial(constants_for, kc.activation(name), slope),
        )
        cells = [
            _left(
                find,
                lambda constants, slope=slope, name=name: residual(
                    constants, slope, name == "selu"
                ),
            )
            for find in finders
        ]
        rows.append((f"resnet-152, w = .5, {name}, zeta = {zeta:g}", *cells))
    return Table(
        "Residuals for the activations for which the peer reports success",
        ("network, activation, target", "dks", "kcalc"),
        rows,
    )


def _left(find: Callable[[], Any], judge: Callable[[Any], float]) -> str:
    try:
        return f"{judge(find()):.0e}"
    except (kc.KcalcError, child.JobError) as error:
        return f"refused: {str(error)[:160]}"


def tailored(options: Options) -> Table:
    """TAT's curvature condition for activations with a kink.

    The peer reports success, and kcalc raises an error.
    """
    rows = []
    for name in ("selu", "elu", "softplus"):
        phi = kc.activation(name)
        try:
            found = from_peer(
                name,
                child.run(
                    "benchmarks.peer_jobs:dks_tailored",
                    options.peers["dks"],
                    limit=60,
                    name=name,
                    depth=DEPTH,
                    tau=TAU,
                ),
            )
            values, c_map = local_values(found.transformed), found.transformed.c_map
            left = ", ".join(
                f"{abs(float(values[condition] - 1)):.0e}"
                for condition in ("Q(1)", "Q'(1)", "C'(1)")
            )
            bends = ", ".join(
                digits(float(c_map.derivative(2)(1 - gap))) for gap in (1e-2, 1e-4, 1e-6, 0.0)
            )
        except child.JobError as error:
            left, bends = str(error)[:160], "-"
        rows.append((name, left, bends, _left(lambda phi=phi: _tailored(phi), curvature_residual)))
    return Table(
        f"TAT, {DEPTH} layers, tau = {TAU}. The targets are C''(1) = {TAU / DEPTH:g} and Q(1) = "
        "Q'(1) = C'(1) = 1 for every activation. For SELU, C''(1) is infinite for all constants; "
        "the peer's integration ignores the jump in SELU's slope.",
        (
            "activation",
            "dks: residual of Q(1), Q'(1), C'(1)",
            "dks: C''(c) at 1 - c = 1e-2, 1e-4, 1e-6, 0",
            "residual of kcalc",
        ),
        rows,
    )


def _tailored(phi: Any) -> kc.Constants:
    check_curvature(phi)
    return solve(curvature_systems(phi, TAU / DEPTH))


def curvature_residual(constants: kc.Constants) -> float:
    """The largest residual of TAT's conditions."""
    values = local_values(constants.transformed)
    targets = {"Q(1)": 1.0, "Q'(1)": 1.0, "C'(1)": 1.0, "C''(1)": TAU / DEPTH}
    return max(abs(float(values[name] - target)) for name, target in targets.items())
