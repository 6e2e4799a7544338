"""How a record takes what a caller hands in: checked, and copied into something frozen.

    any value  --take_int, take_ints, take_values, ...-->  what the field is declared to be

Records are checked once and believed afterwards, so nothing in them may be a list or a dict that
its owner can still change. NumPy's integers become Python's; bools are no integers here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import index
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from semel.config import MAX_THREADS
from semel.errors import InputError, PlanError, VariableError
from semel.ir.expr import Dim, Expr, Fn, Index, Variable

#: What a word can hold with room for arithmetic: values of variables lie within.
NO_LIMIT = (1 << 62) - 1

#: Bytes of all there is, or by device; None: as many as there are.
MemoryLimit: TypeAlias = "int | Mapping[str, int] | None"
Item = TypeVar("Item")
_NOTHING: Mapping[str, int] = MappingProxyType({})


def take_int(where: str, what: str, value: Any) -> int:
    """An int, of Python or NumPy."""
    if type(value) is int:
        return value
    found = as_index(value)
    if found is None:
        raise PlanError(where, f"{what} must be an int, got {_show(value)}.")
    return found


def take_ints(where: str, what: str, values: Any) -> tuple[int, ...]:
    """A tuple of ints, from anything that can be walked but text."""
    if type(values) is tuple and all(type(v) is int for v in values):
        return values
    found = [as_index(v) for v in _walk(where, f"{what} must be ints", values)]
    if any(v is None for v in found):
        raise PlanError(where, f"{what} must be ints, got {_show(values)}.")
    return tuple(v for v in found if v is not None)


def take_items(
    where: str, what: str, kind: Any, values: Any, name: str | None = None
) -> tuple[Any, ...]:
    """A tuple of records of one kind, or of several that have a `name` together."""
    wanted = f"{what} must be {name or kind.__name__} records"
    if name is None and isinstance(values, kind):
        found = f"got one by itself, {_show(values)}"
        raise PlanError(where, f"{what} must be a list of {kind.__name__} records, {found}.")
    items = tuple(_walk(where, wanted, values))
    for item in items:
        if name is None:
            take(where, what, kind, item)
        elif not isinstance(item, kind):
            raise PlanError(where, f"{wanted}, got {_show(item)}.")
    return items


def take(where: str, what: str, kind: type[Item], value: Any) -> Item:
    """A value of exactly the type that is declared."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "aeiou" else "a"
        raise PlanError(where, f"{what} must be {article} {kind.__name__}, got {_show(value)}.")
    return value


def take_path(where: str, value: Any) -> Path:
    """A name that a file can have."""
    try:
        path = Path(value)
    except TypeError:
        path = None
    if path is None or "\0" in str(path):
        raise PlanError(where, f"path must be a str or a path, got {_show(value)}.")
    return path


def take_callback(where: str, function: Any) -> None:
    """Something that can be called, or None."""
    if function is not None and not callable(function):
        raise PlanError(where, f"must be given a function, got {_show(function)}.")


def take_dim(where: str, what: str, value: Any) -> Dim:
    """An int or an expression over variables."""
    if isinstance(value, (Variable, Index, Fn, Expr)):
        return value
    found = as_index(value)
    if found is None:
        message = f"{what} must be an int or an expression over variables, got {_show(value)}."
        raise PlanError(where, message)
    return found


def take_value(where: str, what: str, value: Any, **fields: Any) -> int:
    """A value of a variable: an int that leaves room for arithmetic in a word."""
    found = as_index(value)
    if found is None:
        raise VariableError(where, f"{what} must be an int, got {_show(value)}.", **fields)
    if not -NO_LIMIT <= found <= NO_LIMIT:
        raise VariableError(where, f"{what} must be a 63-bit int, got {_show(value)}.", **fields)
    return found


def take_values(where: str, what: str, values: Any) -> Mapping[str, int]:
    """Values by name, as a mapping that nobody can change."""
    if isinstance(values, Mapping) and not values:
        return _NOTHING
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise PlanError(where, f"{what} must map names to ints, got {_show(values)}.")
    return MappingProxyType(
        {name: take_value(where, f"{what}['{name}']", value) for name, value in values.items()}
    )


def take_arrays(where: str, arrays: Any) -> dict[str, Any]:
    """Arrays by name, whatever they are: the one who takes one checks it."""
    if not isinstance(arrays, Mapping) or not all(isinstance(name, str) for name in arrays):
        message = f"must be given a mapping from names to arrays, got {_show(arrays)}."
        raise InputError(where, message)
    return dict(arrays)


def take_timeout(where: str, value: Any) -> float | None:
    """Seconds that something may take; None: as long as it likes."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (is_number and value >= 0):
        raise PlanError(where, f"timeout must be seconds >= 0, or None, got {_show(value)}.")
    return None if value is None else float(value)


# ---------------------------------------------------------------- options: None if not given


def take_threads(where: str, value: Any) -> int | None:
    """A number of participants."""
    return _take_option(where, "threads", value, 1, MAX_THREADS, "an int")


def take_memory_limit(where: str, value: Any) -> int | None:
    """A number of bytes."""
    return _take_option(where, "memory_limit", value, 0, NO_LIMIT, "a number of bytes, an int")


def take_memory_limits(where: str, value: Any) -> MemoryLimit:
    """A number of bytes, or several by device."""
    if not isinstance(value, Mapping):
        return take_memory_limit(where, value)
    return {str(device): take_memory_limit(where, each) or 0 for device, each in value.items()}


def take_switch(where: str, what: str, value: Any) -> bool | None:
    """On or off."""
    if value is None or isinstance(value, bool):
        return value
    raise PlanError(where, f"{what} must be True, False or None, got {_show(value)}.")


def _take_option(where: str, name: str, value: Any, low: int, high: int, kind: str) -> int | None:
    if value is None:
        return None
    found = as_index(value)
    if found is None or not low <= found <= high:
        raise PlanError(where, f"{name} must be {kind} in [{low}, {high}], got {_show(value)}.")
    return found


def set_fields(record: Any, **fields: Any) -> None:
    """For `__post_init__` of a frozen record: what the fields are to hold instead."""
    for name, value in fields.items():
        if getattr(record, name) is not value:
            object.__setattr__(record, name, value)


def _walk(where: str, wanted: str, values: Any) -> list[Any]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise PlanError(where, f"{wanted}, got {_show(values)}.")
    return list(values)


def as_index(value: Any) -> int | None:
    """An int of Python or NumPy; None for what is none."""
    try:
        return None if isinstance(value, bool) else index(value)
    except TypeError:
        return None


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
