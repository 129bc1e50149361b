"""Translate remedies in error messages from Python calls to options of the current command."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

from ..foundation.errors import Remedy, glimpse

Options = Mapping[str, argparse.Action]  # {name of the value: option of the command}

METHODS = {
    "net.without_normalization()": "without_normalization",
    "net.normalised()": "normalise_sums",
    "net.preactivated()": "preactivated",
}
COMMANDS = {
    "kc.c_map(net, tokens=128)": "--tokens 128",
    "kc.node_values(net, tokens=...)": "kcalc maps --tokens T",
    "kc.gradients(net, tokens=...)": "kcalc ntk --tokens T",
    "kc.gain(activation)": "kcalc gain NAME",
    "kc.fluctuations": "kcalc moments --fluctuations",
    "kc.gradients": "kcalc ntk --layers",
    "kc.q_map(block)": "kcalc maps",
    " or kc.report(model, example_inputs=[(2, 3, 32, 32)])": " (for token ids, --ids 2,16)",
}
READINGS = {
    "(module, variables)": "name the pair (module, variables), and give --input SIZES",
    "model, {": "--input NAME=SIZES",
    "function, params": "name a function of only the inputs, and give --input SIZES",
}
PYTHON_NAMES = {  # arguments of Python functions whose options have other names
    "--base": "--width",
    "--example-inputs": "--input",
    "--path": "--output",
    "--shapes": "--input",
}
INPUTS = {
    "pass an array of integers": "give --ids SIZES",
    "pass the token ids as a tensor of integers": "give --ids SIZES",
    "pass example inputs, as in kc.audit(builder, example_inputs=(4, 64)). They can be a shape, a "
    "tensor, a tuple of shapes or tensors, or a dictionary with argument names as keys": (
        "give the sizes of example inputs, as in --input 4,64 (for token ids, --ids 4,64; for a "
        "named input, --input NAME=4,64)"
    ),
}
READ = re.compile(r"kc\.read\(((?:[^()]|\([^()]*\))*)\)|\bshapes=\{[^{}]*\}")
SHAPE = re.compile(r"\((\d+(?:, *\d+)*)")
VALUE = r"'[^']*'|\"[^\"]*\"|\{[^{}]*\}(?: or one number for all)?|\([^()]*\)|\.\.\.|-?\w[\w.+-]*\b"
KEYWORD = re.compile(rf"\b([a-z]\w*)=({VALUE})?")
TWICE = re.compile(r"(--[\w-]+ \w+), or \1")


def not_known(kind: str, name: str, known: Iterable[str]) -> str:
    """Return a message for an unknown word, with the nearest known word or all known words."""
    names = sorted(known)
    own = PYTHON_NAMES.get(name.replace("_", "-"))
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    near = [own] if own in names else near
    if near:
        return f"unknown {kind} {glimpse(name)}; did you mean {near[0]}?"
    if kind == "option":
        return f"unknown option {glimpse(name)}"
    return f"unknown {kind} {glimpse(name)}; choose one of {', '.join(names)}"


def spoken(text: str, options: Options, remedies: Iterable[Remedy] = ()) -> str:
    """Replace Python calls and keywords in the text of an error with options of the command.

    A remedy that needs options of another command becomes a ``kcalc shape`` command.
    """
    for remedy in remedies:
        if not remedy.options.keys() <= options.keys():
            text = text.replace(str(remedy), f"try {_shaped(remedy)}")
    for call, name in METHODS.items():
        if name in options:
            text = text.replace(call, options[name].option_strings[-1])
    for call, words in COMMANDS.items():
        text = text.replace(call, words)
    if "input" in options:
        text = READ.sub(_input, text)
        for advice, words in INPUTS.items():
            text = text.replace(advice, words)
    return TWICE.sub(r"\1", KEYWORD.sub(lambda match: _option(match, options), text))


def _shaped(remedy: Remedy) -> str:
    """Write a remedy as a command, such as ``kcalc shape --method dks --zeta 3``."""
    words = [f"kcalc shape --method {remedy.method}"]
    for name, value in remedy.options.items():
        flag = "--" + name.replace("_", "-")
        words.append(flag if value is True else f"{flag} {value}")
    return " ".join(words)


def _input(call: re.Match[str]) -> str:
    """Write ``kc.read(model, (2, 64))`` as ``--input 2,64``."""
    for start, words in READINGS.items():
        if (call[1] or "").startswith(start):
            return words
    sizes = SHAPE.search(call[0])
    return "--input " + (sizes[1].replace(" ", "") if sizes else "SIZES (such as 2,64)")


def _option(match: re.Match[str], options: Options) -> str:
    """Write ``zeta=2`` as ``--zeta 2``.

    The text is unchanged if the command does not have this option or value.
    """
    name, value = match.groups()
    if (name, value) == ("biases", "False") and "no_biases" in options:
        return "--no-biases"
    action = options.get(name)
    if action is None or not action.option_strings:
        return match[0]
    flag = action.option_strings[-1]
    if value in ("True", "False"):
        return _switch(match[0], action, value == "True")
    if value is None or value[0] in "{(.":
        return f"{flag} {action.metavar or name.upper()}"
    if value == "None":
        with suppress(Exception):
            if callable(action.type) and action.type("none") is None:
                return f"{flag} none"
        return f"no {flag}"
    return f"{flag} {value.strip(chr(39) + chr(34))}"


def _switch(text: str, action: argparse.Action, wanted: bool) -> str:
    if isinstance(action, argparse.BooleanOptionalAction):
        return action.option_strings[0 if wanted else 1]
    if action.nargs == 0:
        return action.option_strings[-1] if wanted else text
    return f"{action.option_strings[-1]} {'yes' if wanted else 'no'}"
