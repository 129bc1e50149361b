"""Jobs in separate processes, for peak memory, cold starts and peers' interpreters.

``python -m benchmarks.child MODULE:FUNCTION JSON`` calls the function with the fields of the JSON
object and prints the result as its last line.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


class JobError(RuntimeError):
    """Raised if a job does not finish; the message is the last line that the job printed."""


def run(
    function: str,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    limit: float = 600.0,
    **job: Any,
) -> Any:
    """Return the result of ``module:function`` in a new process.

    Raises: JobError with the last line of the job, or after ``limit`` seconds.
    """
    command = [python, "-m", "benchmarks.child", function, json.dumps(job)]
    settings: Any = {
        "capture_output": True,
        "text": True,
        "cwd": ROOT,
        "env": inherited(environment),
    }
    try:
        done = subprocess.run(command, timeout=limit, check=False, **settings)
    except subprocess.TimeoutExpired:
        raise JobError(f"{function} {job}: not finished after {limit:g} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise JobError(
            f"{function} {job}: {(done.stderr.strip().splitlines() or ['killed'])[-1][:300]}"
        )
    return json.loads(lines[-1])


def inherited(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment variables of a job: those of this process, but with compiled modules cached,
    as in an installation.
    """
    return {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    } | dict(more or {})


def output(command: Sequence[str]) -> str:
    """Return the output of a command. Raises: JobError if it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=inherited(), check=False
    )
    if done.returncode:
        raise JobError(
            f"{' '.join(command)}: {(done.stderr.strip().splitlines() or ['killed'])[-1][:300]}"
        )
    return done.stdout


def process(command: Sequence[str]) -> tuple[float, float]:
    """Return (wall seconds, CPU seconds) of a whole process.

    Raises: JobError if it fails.
    """
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    output(command)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peak() -> float:
    """The peak of this process's resident set in bytes.

    On Linux this does not include the memory of the parent process, which rusage counts.
    """
    known = status("VmHWM")
    return known or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024.0
    )


def status(field: str) -> float:
    """A memory size of this process as reported by Linux, in bytes; 0 on other systems."""
    file = Path("/proc/self/status")
    lines = file.read_text().splitlines() if file.exists() else []
    return next(
        (1024.0 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0.0
    )


def imported(code: str) -> float:
    """The peak memory of a process that runs some code (for example imports), in bytes."""
    exec(code)
    return peak()


def main() -> None:
    module, name = sys.argv[1].split(":")
    print(json.dumps(getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))))


if __name__ == "__main__":
    main()
