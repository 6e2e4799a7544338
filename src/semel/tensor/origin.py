"""Where a node was written: the user's source line.

    call stack  -->  "file.py:12"

The first frame outside this package counts. Frames are told apart by their file, and the
answer is kept per code object, so that a walk costs a dictionary look-up per frame.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType

_PACKAGE = str(Path(__file__).parent.parent)
_is_ours: dict[CodeType, bool] = {}


def user_origin() -> str:
    """`file:line` of the innermost caller outside the package; empty if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        ours = _is_ours.get(code)
        if ours is None:
            ours = _is_ours[code] = code.co_filename.startswith(_PACKAGE)
        if not ours:
            return f"{code.co_filename}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""
