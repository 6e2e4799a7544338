"""Where a node was written: the user's source line.

    call stack  -->  "file.py:12"

The first frame outside this package counts. Frames are told apart by their file, and the
answer is kept per file, so that a walk costs a dictionary look-up per frame.
"""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGE = str(Path(__file__).parent.parent)
_is_ours: dict[str, bool] = {}


def user_origin() -> str:
    """`file:line` of the innermost caller outside the package; empty if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        ours = _is_ours.get(file)
        if ours is None:
            ours = _is_ours[file] = file.startswith(_PACKAGE)
        if not ours:
            return f"{file}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""
