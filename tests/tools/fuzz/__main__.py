"""What goes in at random: ``python tests/tools/fuzz KIND --count N``.

``networks`` sends random networks through the whole pipeline (`networks.py`); ``json`` and ``onnx``
read spoilt files (`files.py`). The exit status is 1 if anything is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOOLS.parent), str(TOOLS)]

from fuzz import files, networks  # noqa: E402


def main() -> int:
    kind = sys.argv[1] if len(sys.argv) > 1 else ""
    if kind == "networks":
        return networks.main(sys.argv[2:])
    if kind in files.KINDS:
        return files.main(kind, sys.argv[2:])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
