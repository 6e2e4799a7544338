"""Where a node was written: the user's source line, and the function called there.

    call stack  -->  "file.py:12", "layer_norm"

The first frame outside this package counts. The function is the outermost one of this folder
that it takes to get there: of all that `layer_norm` calls, `layer_norm`. `semel.fft` and
`semel.linalg`, which are files beside it, count as it does. Frames are told apart by their file,
and the answer is kept per file, so that a walk costs a dictionary look-up per frame.

Who translates a model calls what no user can, too: there the model's operator gives its name.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).parent
#: Functions that users call, as those of the folder.
_BESIDE = frozenset(str(_FOLDER.parent / name) for name in ("fft.py", "linalg.py"))
_USER, _OURS, _HERE = range(3)
_whose: dict[str, int] = {}


class _Imposed(NamedTuple):
    """Where what is made now was written, if no line of the caller says it, and as which operator:
    the name of what is made by functions that are not `known`."""

    line: str
    operator: str
    known: Container[str]


_imposed: ContextVar[_Imposed | None] = ContextVar("_imposed", default=None)

#: What functions are called in the names of kernels, where their own would be long.
_SHORT = {
    **dict.fromkeys(("array_ufunc", "array_function"), ""),  # NumPy's own name says it
    "scaled_dot_product_attention": "attention",
    "batch_norm": "bn",
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), "conv"),
}


@contextmanager
def origin_of(line: str, operator: str, known: Container[str]) -> Iterator[None]:
    """Let all that is made inside come from there: a node of a model file, and its operator.

    What a function makes that is not among the `known` ones is made by the operator.
    """
    token = _imposed.set(_Imposed(line, operator, known))
    try:
        yield
    finally:
        _imposed.reset(token)


def call_origin() -> tuple[str, str]:
    """`file:line` of the innermost caller outside the package, and the function it called.

    Either is empty if there is none; operators are none.
    """
    frame = sys._getframe(1)
    name, is_inside = "", True
    while frame is not None:
        code = frame.f_code
        whose = _whose.get(code.co_filename)
        if whose is None:
            whose = _whose[code.co_filename] = _owner(code.co_filename)
        if whose == _USER:
            imposed = _imposed.get()
            if imposed is None:
                return f"{code.co_filename}:{frame.f_lineno}", _public(name)
            is_known = not _public(name) or name in imposed.known
            return imposed.line, _public(name) if is_known else imposed.operator
        if whose == _HERE and is_inside:
            name = code.co_name
        else:
            is_inside = False
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "", _public(name)


def user_origin() -> str:
    """`file:line` of the innermost caller outside the package; empty if there is none."""
    return call_origin()[0]


def _owner(file: str) -> int:
    if file.startswith(str(_FOLDER)) or file in _BESIDE:
        return _HERE
    return _OURS if file.startswith(str(_FOLDER.parent)) else _USER


def _public(name: str) -> str:
    return "" if name.startswith(("_", "<")) else _SHORT.get(name, name)
