"""Spoilt files in great numbers, judged in a process of their own.

``python tests/tools/fuzz json --count 1000``, or ``onnx``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fuzz.documents import any_network
from fuzz.spoilt import onnx_models, spoilt_onnx, spoilt_text, vocabulary

import kcalc as kc

KINDS = ("json", "onnx")
SECONDS, MEGABYTES = 1.0, 500
FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.spawn",
    "subprocess.Popen",
    "socket.connect",
    "ctypes.dlopen",
    "os.remove",
    "os.rename",
    "shutil.rmtree",
)
ARMED: dict[str, Any] = {"on": False, "seen": [], "folder": "/no/folder/yet"}
# SymPy's trees as array functions; networkx's decorators
COMPILED = (
    "<lambdifygenerated",
    "<class 'networkx.utils.decorators.argmap'>",
)
# unroll loops of their own
TEMPLATES = (
    os.path.join("sympy", "polys", "monomials.py"),
    os.path.join("mpmath", "libmp", "libhyper.py"),
)
# compiles the signature of a function when it is first called
DECORATORS = os.path.join("networkx", "utils", "decorators.py")
# imports erf and the like from where its printers say
LAMBDIFY = os.path.join("sympy", "utilities", "lambdify.py")
LIBRARIES = (
    sys.prefix,
    sys.base_prefix,
    str(Path(kc.__file__).parent),
    "/dev/null",
    "/proc/",
    "/sys/",
)


def _harmless(code: Any, caller: str) -> bool:
    """Whether code is that of a library, or text that a library makes of templates of its own."""
    if (
        code.co_filename.startswith((*COMPILED, *LIBRARIES[:3]))
        or "frozen" in code.co_filename
        or caller.endswith(TEMPLATES)
    ):
        return True
    if not caller.endswith(LAMBDIFY) or not code.co_names:
        return False
    return code.co_names == ("functools", "reduce") or code.co_names[0].split(".")[0] in (
        "numpy",
        "scipy",
        "mpmath",
        "math",
        "sympy",
    )


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: code made from text, programs started, files opened that are neither the model
    nor a library.
    """
    if not ARMED["on"]:
        return
    if event in FORBIDDEN:
        ARMED["seen"].append(f"{event} {str(arguments)[:80]}")
    elif (
        event == "compile"
        and str(arguments[1]).startswith(COMPILED)
        and not sys._getframe(1).f_code.co_filename.endswith(DECORATORS)
    ):
        text = arguments[0].decode() if isinstance(arguments[0], bytes) else str(arguments[0])
        if bad := [
            word
            for word in ("import", "__", "open", "eval", "exec", "os.", "sys.", "getattr")
            if word in text
        ]:
            ARMED["seen"].append(f"compile {bad[0]} in {text[:80]}")
    elif event == "exec" and not _harmless(arguments[0], sys._getframe(1).f_code.co_filename):
        ARMED["seen"].append(f"exec {arguments[0].co_filename}")
    elif (
        event == "open"
        and isinstance(arguments[0], str | bytes)
        and not os.fsdecode(arguments[0]).startswith((*LIBRARIES, ARMED["folder"]))
    ):
        ARMED["seen"].append(f"open {arguments[0]!r}")


class Slow(BaseException):
    """A case ran for ten times as long as it may."""


def _alarm(*_: Any) -> None:
    raise Slow


def judged(run: Any, case: Any) -> tuple[str, str]:
    """(outcome, text) of reading one case: "read", "refused", or what must not be."""
    ARMED.update(on=True, seen=[])
    begin = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, 10 * SECONDS)
    try:
        run(case)
        outcome = ("read", "")
    except kc.KcalcError as error:
        outcome = ("refused", "") if str(error).strip() else ("error", "an empty message")
    except Slow:
        outcome = ("slow", "stopped")
    except BaseException as error:
        outcome = ("error", f"{type(error).__name__}: {error}"[:300])
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        ARMED["on"] = False
    spent = time.process_time() - begin
    if ARMED["seen"]:
        return "executed", "; ".join(ARMED["seen"])[:300]
    return ("slow", f"{spent:.2f} s") if spent > SECONDS else outcome


def cases(kind: str, folder: str) -> tuple[Any, Any]:
    """(make, run) for "json" or "onnx"."""
    if kind == "json":
        from kcalc.interchange.json_format import network_from_dict, network_to_dict, parse_json

        rng = random.Random(11)
        documents = [network_to_dict(any_network(rng)) for _ in range(60)]
        return (lambda r: spoilt_text(r.choice(documents), r)), lambda text: network_from_dict(
            parse_json(text, "the document")
        )
    models = onnx_models()
    words = vocabulary(models)
    path = Path(folder) / "case.onnx"

    def run(data: bytes) -> None:
        from kcalc.interchange.read import read

        path.write_bytes(data)
        read(path)

    for proto in models:
        run(proto.SerializeToString())
    return (lambda r: spoilt_onnx(models, r, words)), run


def fuzz(kind: str, count: int, first: int = 0) -> dict[str, Any]:
    """Counts of outcomes over ``count`` seeds in this process, and the first faults with their
    seeds.
    """
    with tempfile.TemporaryDirectory() as folder:
        ARMED["folder"] = folder
        make, run = cases(kind, folder)
        signal.signal(signal.SIGVTALRM, _alarm)
        counts: dict[str, int] = {}
        faults: list[tuple[int, str, str]] = []
        longest, base = 0.0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for seed in range(first, first + count):
            print(seed, end="\r", file=sys.stderr)
            case = make(random.Random(seed))
            begin, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            outcome, text = judged(run, case)
            longest = max(longest, time.process_time() - begin)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            if grown > MEGABYTES:
                outcome, text = "large", f"{grown:.0f} MB"
            counts[outcome] = counts.get(outcome, 0) + 1
            if outcome not in ("read", "refused"):
                faults.append((seed, outcome, text))
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024
    return {
        "kind": kind,
        "counts": counts,
        "faults": faults[:40],
        "longest": longest,
        "grown_mb": grown,
    }


def in_child(kind: str, count: int, first: int = 0) -> dict[str, Any]:
    """:func:`fuzz` in a process of its own, which a crash ends."""
    command = [
        sys.executable,
        str(Path(__file__).parent),
        kind,
        "--count",
        str(count),
        "--first",
        str(first),
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if not found.stdout:
        return {
            "kind": kind,
            "counts": {},
            "faults": [(-1, "crash", found.stderr[-600:])],
            "longest": 0.0,
            "grown_mb": 0.0,
        }
    return json.loads(found.stdout)


def main(kind: str, arguments: list[str]) -> int:
    """The command line of the full run."""
    parser = argparse.ArgumentParser(prog=f"fuzz {kind}", description=__doc__)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args(arguments)
    sys.addaudithook(watch)
    found = fuzz(kind, options.count, options.first)
    print(json.dumps(found))
    return int(bool(found["faults"]))
