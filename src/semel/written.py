"""What the caller of this package wrote: the call that an error should name.

    stack of a GraphError that is being made  --users_call-->  "softmax"

Functions are made of functions: `softmax` of a maximum, `x // y` of a division and its like. An
error in the innermost one is about what was written outermost. That is the last frame of this
package on the way to the caller's code, and, where his source is at hand, the very name that he
used for it: `astype` is `cast` to us. All of it is looked up when an error is made, and costs
nothing before.
"""

from __future__ import annotations

import ast
import linecache
import sys
from types import CodeType, FrameType
from typing import Any

_PACKAGE = __name__.partition(".")[0]
#: The modules of functions of tensors, whose errors are about what was called there.
_FUNCTIONS = f"{_PACKAGE}.tensor."
#: Operators by their methods, as the functions that do the same.
OPERATORS = {
    "__add__": "add", "__sub__": "sub", "__mul__": "mul", "__truediv__": "div",
    "__floordiv__": "floor_divide", "__mod__": "remainder", "__pow__": "pow",
    "__matmul__": "matmul", "__and__": "bitwise_and", "__or__": "bitwise_or",
    "__xor__": "bitwise_xor", "__lshift__": "bitwise_left_shift",
    "__rshift__": "bitwise_right_shift", "__eq__": "eq", "__ne__": "ne", "__lt__": "lt",
    "__le__": "le", "__gt__": "gt", "__ge__": "ge", "__neg__": "neg", "__abs__": "abs",
    "__invert__": "bitwise_not", "__divmod__": "divmod", "__len__": "len", "__iter__": "iter",
    "__contains__": "in", "truth": "bool", "length": "len", "to_array": "numpy",
    "getitem": "getitem", "setitem": "setitem",
}  # fmt: skip
_REFLECTED = {f"__r{name[2:]}": word for name, word in OPERATORS.items()}
#: What an op of a graph is called by those who write it, where it has another name.
OPS = {
    "idiv": "floor_divide", "imod": "remainder", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "shl": "bitwise_left_shift", "shr": "bitwise_right_shift",
    "not": "bitwise_not", "max": "maximum", "min": "minimum",
}  # fmt: skip


def users_call(where: str) -> str:
    """The call that the caller wrote, if it is one of a function of tensors; else `where`."""
    found: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not (name == _PACKAGE or name.startswith(f"{_PACKAGE}.")):
            break
        found = frame
        frame = frame.f_back
    if found is None or frame is None:
        return where
    if not found.f_globals.get("__name__", "").startswith(_FUNCTIONS):
        return where
    name = found.f_code.co_name
    if name == "__init__":
        return type(found.f_locals.get("self")).__name__
    if name in OPERATORS or name in _REFLECTED:
        return OPERATORS.get(name) or _REFLECTED[name]
    if name.startswith(("_", "<")) or not any(name in vars(owner) for owner in _owners()):
        return where  # of a protocol: whoever raises says what was written
    return _spelled(frame, found.f_code) or name


def _spelled(frame: FrameType, code: CodeType) -> str:
    """The name by which a frame calls a function of ours; empty if its source does not say."""
    lines = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    first, last, start, end = lines
    if first is None or last is None or start is None or end is None:
        return ""
    source = [linecache.getline(frame.f_code.co_filename, n) for n in range(first, last + 1)]
    text = "".join(source).encode()
    tail = len(source[-1].encode()) - end if source else 0
    try:
        call = ast.parse(text[start : len(text) - tail].decode(), mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(call, ast.Call):
        return ""
    name = getattr(call.func, "attr", "") or getattr(call.func, "id", "")
    return name if not name.startswith("_") and _is_ours(name, code) else ""


def _is_ours(name: str, code: CodeType) -> bool:
    """Whether a name of ours is the function of that code."""
    known = [vars(owner).get(name) for owner in _owners()]
    return any(getattr(getattr(f, "__func__", f), "__code__", None) is code for f in known)


def _owners() -> list[Any]:
    """What has the public names: the class of tensors, and the package."""
    package: Any = sys.modules.get(_PACKAGE)
    return [owner for owner in (getattr(package, "Tensor", None), package) if owner is not None]
