# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnusedExpression=false
"""Right and wrong calls, for pyright: `.ci/check types` reads this file, and nothing runs it.

A wrong call carries the errors that are expected of it; one that passes is an error itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass
