"""Params from elsewhere: a mapping, a file, bytes. All is checked, and all that is wrong is said.

    {name: array} | "weights.safetensors"  --read_source-->    {name: array}
    {name: array}                          --choose_params-->  those of params, of their types

Reading files is the work of a layer above, so that it is named as text and imported by whoever
loads one. Arrays of a file are mapped and cannot be written, so that nobody copies them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from semel.errors import InputError, ParamError
from semel.ir.fields import take_path
from semel.ir.types import as_dtype
from semel.plan.table import Entry, Table, few
from semel.runtime.buffer import Array, read_arrays
from semel.runtime.casting import array_of_bytes, cast, cast_value

_READER = "semel.frontends.safetensors"
_MOST_NAMES = 12  #: of one sort in a message; the error has them all


def choose_params(
    table: Table, given: Mapping[str, Any], strict: bool, casting: str
) -> dict[str, Array]:
    """The arrays for params by name; ParamError says all that is missing, unexpected or wrong."""
    missing = [name for name in table if name not in given] if strict else []
    unexpected = [name for name in given if name not in table] if strict else []
    found: dict[str, Array] = {}
    wrong: dict[str, str] = {}
    for name in (name for name in table if name in given):
        try:
            found[name] = _checked(table[name], given[name], casting)
        except InputError as error:
            wrong[name] = str(error)
    if missing or unexpected or wrong:
        raise _refusal(missing, unexpected, wrong)
    return found


def read_source(source: Mapping[str, Any] | str | os.PathLike[str]) -> Mapping[str, Any]:
    """The arrays of a mapping, or of a file."""
    if isinstance(source, Mapping):
        return read_arrays("load_params", source)
    path = take_path("load_params", source)
    reader: Any = import_module(_READER)
    try:
        read: Mapping[str, Any] = reader.load_safetensors(path)
    except OSError as error:
        raise InputError("load_params", f"{path} must be readable: {error}.") from error
    return read


def _checked(entry: Entry, value: Any, casting: str) -> Array:
    where = f"param '{entry.name}'"
    array = cast_value(value, entry.dtype, where, casting)
    if array.shape != entry.shape:
        raise InputError(where, f"shape must be {entry.shape}, got {array.shape}.")
    return array


def _refusal(missing: list[str], unexpected: list[str], wrong: dict[str, str]) -> ParamError:
    parts = [
        f"{what}: {few(names, _MOST_NAMES)}"
        for what, names in (("missing", missing), ("unexpected", unexpected))
        if names
    ]
    parts += list(wrong.values())[:_MOST_NAMES]
    if len(wrong) > _MOST_NAMES:
        parts.append(f"and {len(wrong) - _MOST_NAMES} more that do not fit")
    return ParamError(
        "load_params",
        f"arrays must be those of the params; {'; '.join(part.rstrip('.') for part in parts)}.",
        hint="" if wrong else "strict=False takes what is there and leaves the rest.",
        missing=missing,
        unexpected=unexpected,
        wrong=wrong,
    )


def param_of_bytes(entry: Entry, data: Any, dtype: Any, casting: str) -> Array:
    """The value of a param from bytes of a dtype."""
    where = f"param '{entry.name}'"
    given = as_dtype(dtype, where)
    shape = tuple(dim for dim in entry.shape if isinstance(dim, int))
    return cast(array_of_bytes(data, given, shape, where), entry.dtype, where, casting)
