"""``kcalc completion SHELL``: shell completion of commands, options and their values."""

from __future__ import annotations

import argparse
from typing import Annotated, Any

from ..activations import names
from ..foundation.extras import imported
from ..interchange.writers import WRITERS
from ..shaping import METHODS
from .command import Option, write
from .networks import EXAMPLES

SHELLS = ("bash", "zsh", "tcsh")


def run(
    shell: Annotated[str, Option("the shell", "shell", metavar="SHELL", choices=SHELLS)],
) -> None:
    """Print a script that completes kcalc commands and options with the Tab key.

    This command requires shtab (pip install 'kcalc[completion]'). Create the folder first, and
    start a new shell afterwards. For zsh, the folder must be in $fpath before compinit runs.

    Examples:
      kcalc completion bash > ~/.local/share/bash-completion/completions/kcalc
      kcalc completion zsh > ~/.zsh/completions/_kcalc
      kcalc completion tcsh >> ~/.tcshrc

    """
    shtab = imported("shtab")
    write("-", shtab.complete(_described(shtab.FILE), shell).rstrip("\n") + "\n")


def _described(file: Any) -> argparse.ArgumentParser:
    """Create the parser of all commands, and mark options that take files or known names."""
    from . import parser

    known = {"activation": names(), "activations": names(), "method": METHODS, "export": WRITERS}
    known |= {"network": EXAMPLES}
    top = parser()
    (verbs,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    for verb in verbs.choices.values():
        for action in verb._actions:
            if action.metavar == "FILE":
                action.complete = file  # pyright: ignore[reportAttributeAccessIssue]
            elif action.choices is None and action.dest in known:
                action.choices = list(known[action.dest])
    return top
