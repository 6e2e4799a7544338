"""What a caller gives to a run: arrays by name, all checked before anything is written.

    run({"x": a}), run(a), run(x=a)  --given-->  {"x": a}  --arrays-->  {"x": array of its dtype}

Names, counts and dtypes are judged here; shapes are solved, all together, by the plan. Every
refusal names the tensor, what was expected and what came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from semel.errors import InputError
from semel.ir.fields import take_int
from semel.ir.types import DType, as_dtype
from semel.plan.table import Entry, Table
from semel.runtime.buffer import Array
from semel.runtime.casting import array_of_bytes, cast, cast_value, flat_bytes


def given(table: Table, args: Sequence[Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
    """Inputs by name, whichever way they were given."""
    if not args:
        return named
    first = args[0]
    is_mapping = len(args) == 1 and (type(first) is dict or isinstance(first, Mapping))
    found = first if is_mapping else by_position(table, args)
    return _together(found, named) if named else found


def by_position(table: Table, args: Sequence[Any]) -> dict[str, Any]:
    """Inputs in the order of the table."""
    names = list(table)
    if len(args) > len(names):
        raise InputError("run", f"takes {_count(len(names), 'input')} ({table}), got {len(args)}.")
    return dict(zip(names, args, strict=False))


def _together(first: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    twice = sorted(first.keys() & named.keys())
    if twice:
        raise InputError(f"input '{twice[0]}'", "must be given once, got it twice.", name=twice[0])
    return {**first, **named}


def unknown_input(table: Table, name: Any) -> InputError:
    """There is no such input."""
    known = ", ".join(table) or "none"
    return InputError("run", f"has no input {name!r}; known: {known}.", name=name)


def missing_inputs(table: Table, names: Iterable[str]) -> InputError:
    """These inputs were not given."""
    wanted = "; ".join(str(table[name]) for name in names)
    return InputError(
        "run",
        f"must be given {wanted}, got nothing.",
        hint="Pass it, bind a handle of its name, or declare the input with default=.",
    )


def as_input(entry: Entry, value: Any, casting: str) -> Array:
    """One value as an array of an input's dtype; numbers and lists become what they must."""
    return cast_value(value, entry.dtype, f"input '{entry.name}'", casting)


# ---------------------------------------------------------------- bytes


def from_bytes(entry: Entry, value: Any, casting: str) -> Array:
    """`(bytes, dtype)` or `(bytes, dtype, shape)` as an array: exactly these bytes."""
    where = f"input '{entry.name}'"
    if not isinstance(value, (tuple, list)) or len(value) not in (2, 3):
        raise InputError(
            where, f"must be (bytes, dtype) or (bytes, dtype, shape), got {value!r:.60}."
        )
    data, dtype = value[0], as_dtype(value[1], where)
    size = flat_bytes(data, where).size
    shape = _as_shape(value[2], where) if len(value) == 3 else _shape_of(entry, size, dtype, where)
    return cast(array_of_bytes(data, dtype, shape, where), entry.dtype, where, casting)


def _as_shape(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)):
        raise InputError(where, f"shape must be a tuple of sizes, got {value!r:.60}.")
    sizes = tuple(take_int(where, "a size", size) for size in value)
    if any(size < 0 for size in sizes):
        raise InputError(where, f"sizes must be at least 0, got {sizes}.")
    return sizes


def _shape_of(entry: Entry, num_bytes: int, dtype: DType, where: str) -> tuple[int, ...]:
    """The shape that so many bytes have: at most one dim may be a variable."""
    fixed = [dim for dim in entry.shape if isinstance(dim, int)]
    size = prod(fixed) * dtype.size_bytes
    if len(fixed) == len(entry.shape):
        return tuple(fixed)
    if len(fixed) < len(entry.shape) - 1 or not size or num_bytes % size:
        raise InputError(
            where,
            f"must come with a shape, or as whole rows of {size} bytes: it is {entry}, and got "
            f"{num_bytes} bytes.",
            hint="Pass (bytes, dtype, shape).",
        )
    return tuple(dim if isinstance(dim, int) else num_bytes // size for dim in entry.shape)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
