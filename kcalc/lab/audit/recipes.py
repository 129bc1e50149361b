"""INIT-RECIPE: sigmas that a recipe prescribes, and model classes known to follow a recipe."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from ...foundation.errors import KcalcError, glimpse, unknown
from .depth import common_parameter
from .findings import Finding, criterion, named
from .laws import differ
from .recorder import drawn
from .subject import Subject, families

OFF = 0.02
STANDARD_SIGMA = 0.02
Expected = dict[str, float]


def _base(subject: Subject) -> float:
    """Return the sigma in the model's configuration, or 0.02 if it specifies none."""
    config = getattr(subject.model, "config", None)
    for name in ("initializer_range", "init_method_std", "init_std"):
        if isinstance(value := getattr(config, name, None), int | float):
            return float(value)
    return STANDARD_SIGMA


def gpt2(subject: Subject) -> Expected:
    """Return a common sigma, divided by (2L)^1/2 for weights that write to a stream of L blocks.

    [Radford et al. 2019, section 2.3]
    """
    sigma = _base(subject)
    expected = dict.fromkeys(subject.matrices, sigma)
    for stack in subject.stacks:
        expected |= {name: sigma / math.sqrt(2 * stack.depth) for name in stack.written}
    return expected


def olmo(subject: Subject) -> Expected:
    """Return fan_in^-1/2, with smaller values for weights that write to a stream.

    The value is (2 (l+1) fan_in)^-1/2 for weights that write to a stream in block l, counted from
    0, and width^-1/2 for tables.

    [OLMo, initialisation "mitchell"]
    """
    expected = {}
    for name in subject.matrices:
        used = subject.contracted.get(name)
        table = "embedding" in subject.roles[name] or used is None
        fan = subject.parameters[name].shape[-1] if table or used is None else used.fan_in
        expected[name] = fan**-0.5
    for stack in subject.stacks:
        for family, names in stack.families.items():
            if stack.writes(family):
                for block, name in enumerate(names):
                    expected[name] /= math.sqrt(2 * (block + 1))
    return expected


def deepnorm(subject: Subject) -> Expected:
    """Return Xavier's sigma for branches, multiplied by (8L)^-1/4 except for queries and keys.

    [Wang et al. 2022, for decoder-only or encoder-only models]
    """
    expected = {}
    for stack in subject.stacks:
        for names in stack.families.values():
            for name in names:
                used = subject.contracted[name]
                roles = set(subject.roles[name])
                gain = 1.0 if roles & {"query", "key"} else (8 * stack.depth) ** -0.25
                expected[name] = gain * math.sqrt(2 / (used.fan_in + used.fan_out))
    return expected


def fixup(subject: Subject) -> Expected:
    """Return He's sigma, multiplied by L^(-1/(2m-2)) in branches of m layers.

    The value is 0 for the last layer of each branch and for a readout that is not also a table.

    [Zhang et al. 2019]
    """
    expected = {}
    for stack in subject.stacks:
        for merge in stack.merges:
            layers = len(merge.inside)
            for contraction in merge.inside:
                he = math.sqrt(2 / contraction.fan_in)
                scale = len(stack.merges) ** (-1 / (2 * layers - 2)) if layers > 1 else 1.0
                last = contraction in merge.writers
                expected |= dict.fromkeys(contraction.parameters, 0.0 if last else he * scale)
    for name in subject.matrices:
        if "readout" in subject.roles[name] and "embedding" not in subject.roles[name]:
            expected[name] = 0.0
    return expected


def t_fixup(subject: Subject) -> Expected:
    """Return Xavier's sigma, multiplied by a factor that depends on the depth N.

    The factor is .67 N^-1/4 in an encoder and (9N)^-1/4 in a decoder. It applies to values, outputs
    and MLPs. Layers of a stream that reads another stream belong to a decoder. Tables of a model
    with a decoder have sigma width^-1/2 (9N)^-1/4. Queries and keys are left out, because their
    gain is 1 in the paper and 2^-1/2 in the authors' code.
    [Huang et al. 2020, section 3.2]
    """
    expected: Expected = {}
    for stack in subject.stacks:
        decoder = stack.reads_another
        factor = (9 * stack.depth) ** -0.25 if decoder else 0.67 * stack.depth**-0.25
        for name in (n for names in stack.families.values() for n in names):
            if not {"query", "key"} & set(subject.roles[name]):
                used = subject.contracted[name]
                expected[name] = factor * math.sqrt(2 / (used.fan_in + used.fan_out))
        for name in subject.matrices if decoder else ():
            if "embedding" in subject.roles[name]:
                expected[name] = factor * subject.parameters[name].shape[-1] ** -0.5
    return expected


def nf_net(subject: Subject) -> Expected:
    """Return fan_in^-1/2 for contractions and .01 for the readout.

    [Brock et al. 2021, High-performance large-scale image recognition, the authors' code]
    """
    return {
        name: 0.01 if "readout" in subject.roles[name] else used.fan_in**-0.5
        for name, used in subject.contracted.items()
        if subject.parameters[name].ndim > 1
    }


def mup(subject: Subject, base: Any) -> Expected:
    """Return the sigmas of a base-width model, divided by the root of the growth of fan_in.

    Tables, in which only the outputs grow, keep their sigma. At the readout, only the inputs grow.
    Its sigma may be 0, stay the same (the model then multiplies by 1 / width), or be divided by the
    growth; the nearest of these three is expected. [Yang et al. 2022, Tensor Programs V, tables 3
    and 8]
    """
    model, laws, _ = drawn(base)
    others = dict(model.named_parameters())
    expected: Expected = {}
    for name in subject.matrices:
        if name not in others or others[name].ndim != subject.parameters[name].ndim:
            raise KcalcError(
                f"recipe: the model with the base width has no parameter {name} with the same "
                "number of axes; build both models with the same function of the width"
            )
        law, before = subject.laws[name], laws[name]
        if law.name == before.name == "constant" and law.mean == before.mean:
            continue
        inputs, outputs = _growth(subject, name, tuple(others[name].shape))
        readout = outputs == 1 != inputs and "embedding" not in subject.roles[name]
        factors = (0.0, 1.0, 1 / inputs) if readout else (inputs**-0.5,)
        factor = min(factors, key=lambda f: abs(f * before.sigma - law.sigma))
        sigma, error = factor * before.sigma, math.hypot(law.error, factor * before.error)
        expected[name] = law.sigma if not differ(replace(law, error=error), sigma, OFF) else sigma
    return expected


def _growth(subject: Subject, name: str, base: tuple[int, ...]) -> tuple[float, float]:
    """Return the growth of fan-in and of the other axes relative to the shape ``base``.

    Tables have one input. If the axes of a contraction are unknown, it is assumed to contract one
    axis that grew like all others.
    """
    ratios = [n / m for n, m in zip(subject.parameters[name].shape, base, strict=True)]
    used = subject.contracted.get(name)
    if used is None:
        return 1.0, math.prod(ratios)
    axes = used.axes.get(name)
    inputs = ratios[0] if axes is None else math.prod(ratios[axis] for axis in axes)
    return inputs, math.prod(ratios) / inputs


RECIPES: dict[str, Callable[..., Expected]] = {
    "gpt2": gpt2,
    "megatron": gpt2,
    "olmo": olmo,
    "deepnorm": deepnorm,
    "fixup": fixup,
    "t-fixup": t_fixup,
    "nf-net": nf_net,
    "mup": mup,
}
BY_FANS: dict[str, Callable[[int, int], float]] = {
    "zeros": lambda fan_in, fan_out: 0.0,
    "lecun": lambda fan_in, fan_out: fan_in**-0.5,
    "he": lambda fan_in, fan_out: (2 / fan_in) ** 0.5,
    "xavier": lambda fan_in, fan_out: (2 / (fan_in + fan_out)) ** 0.5,
    "torch": lambda fan_in, fan_out: (3 * fan_in) ** -0.5,
}
KNOWN_CLASSES = (
    "GPT2", "GPTBigCode", "ImageGPT", "DecisionTransformer", "ClvpForCausalLM", "ClvpModel",
    "ClvpDecoder",
)  # fmt: skip


def checked(recipe: Any) -> Any:
    """Check a recipe and return it.

    Raises: KcalcError for an unknown name or law.
    """
    if recipe is None:
        return None
    if isinstance(recipe, tuple) and len(recipe) == 2 and recipe[0] == "mup":
        return recipe
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise unknown("recipe", recipe, RECIPES)
        if recipe == "mup":
            raise KcalcError(
                'the recipe "mup" compares two widths; use ("mup", build), where build() returns '
                "the model with the base width"
            )
        return recipe
    if not isinstance(recipe, Mapping):
        raise KcalcError(
            f"recipe must be one of {', '.join(RECIPES)}, or a dictionary "
            f"{{name pattern: sigma or law}}, got {glimpse(recipe)}"
        )
    for pattern, law in recipe.items():
        number = isinstance(law, int | float) and not isinstance(law, bool)
        if not isinstance(pattern, str) or not (number or law in BY_FANS):
            raise KcalcError(
                f"recipe[{glimpse(pattern)}] must be a standard deviation, the value of a constant "
                f"or one of {', '.join(BY_FANS)}, got {glimpse(law)}"
            )
        if number and not math.isfinite(law):
            raise KcalcError(f"recipe[{pattern!r}] must be a finite number, got {law}")
    return recipe


def _patterns(subject: Subject, recipe: Mapping[str, Any]) -> Expected:
    """Return the sigmas of a user's recipe. If several patterns match, the last one counts."""
    expected: Expected = {}
    for pattern, law in recipe.items():
        names = [name for name in subject.laws if fnmatchcase(name, pattern)]
        if not names:
            raise KcalcError(f"no parameter name matches recipe[{pattern!r}]")
        for name in names:
            if law in BY_FANS:
                used = subject.contracted.get(name)
                if used is None and law != "zeros":
                    raise KcalcError(
                        f"recipe[{pattern!r}] = {law!r} needs a fan, but {name} is not part of any "
                        "recorded contraction; use a number"
                    )
                fans = (used.fan_in, used.fan_out) if used else (1, 1)
                expected[name] = BY_FANS[law](*fans)
                continue
            expected[name] = float(law)
            if expected[name] < 0 and not _by_value(subject, name, expected[name]):
                raise KcalcError(
                    f"recipe[{pattern!r}] = {expected[name]:g} is negative, so it is not a "
                    f"standard deviation, and {name} is not constant; use a number >= 0"
                )
    return expected


@criterion(
    "INIT-RECIPE",
    "error or warning",
    "sigma (or the value of constant gains and gates) differs from the recipe by more than 4 "
    "standard errors and 2 %. It is an error if the recipe was declared, and a warning if the "
    "model's class is known to follow a recipe (such as GPT-2's factor (2L)^-1/2 for weights that "
    "write to the stream)",
)
def recipe(subject: Subject) -> Iterator[Finding]:
    """Report parameters that differ from the declared recipe or from a known class's recipe."""
    if subject.recipe is None:
        yield from _known(subject)
        return
    if isinstance(subject.recipe, str | tuple):
        name, *base = [subject.recipe] if isinstance(subject.recipe, str) else subject.recipe
        expected, title = RECIPES[name](subject, *base), name
    else:
        expected, title = _patterns(subject, subject.recipe), "given"
    off = [n for n, sigma in expected.items() if _differs(subject, n, sigma)]
    for names in families(off).values():
        yield _off(subject, names, expected, "error", f"the {title} recipe")


def _by_value(subject: Subject, name: str, expected: float) -> bool:
    """Return whether a recipe's number is the value of a parameter's entries, not their sigma.

    This is the case if the number is 0, and for constant parameters other than weights and tables
    (LayerScale, gates, gains).
    """
    constant = subject.laws[name].name == "constant"
    return constant and (expected == 0 or name not in subject.matrices)


def _differs(subject: Subject, name: str, expected: float) -> bool:
    law = subject.laws[name]
    if _by_value(subject, name, expected):
        return not math.isclose(law.mean, expected, rel_tol=OFF)
    return differ(law, expected, OFF)


def _off(
    subject: Subject, names: tuple[str, ...], expected: Expected, severity: str, title: str
) -> Finding:
    law, number = subject.laws[names[0]], expected[names[0]]
    filled = number == 0 or _by_value(subject, names[0], number)
    aim = f"the value {number:.4g}" if filled else f"sigma {number:.4g}"
    fix = f"fill it with {number:.4g}" if filled else f"draw it with sigma {number:.4g}"
    return Finding(
        "INIT-RECIPE",
        severity,
        names,
        f"{named(names)} has {law.size}, but {title} has {aim}",
        f"{fix}, and check that the code that does this is called",
        subject.place(names),
    )


def _known(subject: Subject) -> Iterator[Finding]:
    """Report writers without GPT-2's factor in model classes that use it.

    This requires that the usual sigma of the model is known.
    """
    known = tuple(
        f"{path}." if path else ""
        for path, module in subject.model.named_modules()
        if type(module).__name__.startswith(KNOWN_CLASSES)
    )
    for stack in subject.stacks if known else ():
        common = common_parameter(stack)
        if common is None or stack.depth < 2:
            continue
        if not all(name.startswith(known) for name in stack.written):
            continue
        usual, factor = subject.laws[common], (2 * stack.depth) ** -0.5
        sigma: float = factor * usual.sigma
        expected = {name: sigma for name, normed in stack.written.items() if not normed}
        laws = {name: subject.laws[name] for name in expected}
        errors = {name: math.hypot(law.error, factor * usual.error) for name, law in laws.items()}
        off = [n for n, law in laws.items() if differ(replace(law, error=errors[n]), sigma, OFF)]
        for names in families(off).values():
            title = f"GPT-2's scheme, for {stack.depth} blocks,"
            yield _off(subject, names, expected, "warning", title)
