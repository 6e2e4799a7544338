"""Plain Python data as JSON values, and back.

    None, bool, int, float, complex, str, bytes, list, tuple, dict  --encode_plain-->  JSON values
    JSON values  --decode_plain-->  equal data of the same types

What JSON has is written as it is; everything else is a list that starts with its kind. Types are
taken exactly: a subclass (an enum, a NumPy scalar) would come back as something else, so it
is refused. Nothing is evaluated, and no type is looked up by a name in the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from semel.errors import GraphError, PlanError
from semel.ir.encode import as_list, as_text

MAX_DEPTH = 64
_KINDS = "None, bool, int, float, complex, str, bytes, list, tuple or dict"
_INT_LIMIT = 1 << 63  # larger ones are written in hexadecimal: decimal parsers have limits


def encode_plain(value: Any, path: str, add_blob: Callable[[bytes], list[int]]) -> Any:
    """JSON values for plain data; bytes go to `add_blob`, which gives their [offset, size].

    `path` is what messages call the value. Raises a PlanError with the `path` of what is not plain.
    """
    return _encode(value, path, add_blob, 0)


def decode_plain(entry: Any, blob: Callable[[Any], bytes]) -> Any:
    """What `encode_plain` was given; `blob` finds bytes by [offset, size]."""
    if entry is None or type(entry) in (bool, int, float, str):
        return entry
    kind, *items = as_list(entry)
    decode = _DECODE.get(as_text(kind))
    if decode is None:
        raise GraphError("decode", f"plain data must be of a known kind, got {kind!r:.40}.")
    return decode(items, blob)


# ---------------------------------------------------------------- writing


def _encode(value: Any, path: str, add_blob: Callable[[bytes], list[int]], depth: int) -> Any:
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if -_INT_LIMIT <= value < _INT_LIMIT else ["int", hex(value)]
    if kind is float:
        return value if math.isfinite(value) else ["float", repr(value)]
    if kind is complex:
        return ["complex", repr(value.real), repr(value.imag)]
    if kind is bytes:
        return ["bytes", *add_blob(value)]
    if kind not in (list, tuple, dict) or depth == MAX_DEPTH:
        raise _not_plain(value, path, depth)
    if kind is dict:
        pairs = (
            [
                _encode(key, f"{path} key {key!r:.40}", add_blob, depth + 1),
                _encode(item, f"{path}[{key!r:.40}]", add_blob, depth + 1),
            ]
            for key, item in value.items()
        )
        return ["dict", *pairs]
    items = (_encode(v, f"{path}[{i}]", add_blob, depth + 1) for i, v in enumerate(value))
    return [kind.__name__, *items]


def _not_plain(value: Any, path: str, depth: int) -> PlanError:
    name = type(value).__name__
    if depth == MAX_DEPTH:
        message = f"{path} must be nested less than {MAX_DEPTH} deep."
    else:
        message = f"{path} must be plain data ({_KINDS}), got {name}."
    return PlanError("save", message, path=path, found=name)


# ---------------------------------------------------------------- reading


def _one(items: list[Any]) -> str:
    return as_text(as_list(items, 1)[0])


def _decode_dict(items: list[Any], blob: Callable[[Any], bytes]) -> dict[Any, Any]:
    pairs = (as_list(item, 2) for item in items)
    return {decode_plain(key, blob): decode_plain(value, blob) for key, value in pairs}


_DECODE: dict[str, Callable[[list[Any], Callable[[Any], bytes]], Any]] = {
    "int": lambda items, blob: int(_one(items), 16),
    "float": lambda items, blob: float(_one(items)),
    "complex": lambda items, blob: complex(*(float(as_text(i)) for i in as_list(items, 2))),
    "bytes": lambda items, blob: blob(items),
    "list": lambda items, blob: [decode_plain(item, blob) for item in items],
    "tuple": lambda items, blob: tuple(decode_plain(item, blob) for item in items),
    "dict": _decode_dict,
}
