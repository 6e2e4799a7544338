"""The ways in which a compiled graph gives back what it computed.

    Wanted (which outputs)  x  copies | written to arrays | borrowed | places | bytes  -->  Reader

Each is a `plan.readers.Reader`: asked once for the shortest way, used after every run like it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

import numpy as np

from semel.errors import InputError
from semel.ir.types import DType
from semel.plan.engine import Engine
from semel.plan.readers import (
    Reader,
    has_late_shape,
    is_settled,
    output_copier,
    output_view,
)
from semel.plan.table import Entry, Table
from semel.runtime.buffer import Array, BorrowedArray, Buffer
from semel.session.outputs import Outputs


class Typed(NamedTuple):
    """An output as bytes, little-endian and in row-major order."""

    data: bytes
    dtype: DType
    shape: tuple[int, ...]


class Wanted:
    """Outputs that are wanted: all, or those of a `fetch`, in the order asked for."""

    def __init__(self, table: Table, fetch: Sequence[str] | None = None) -> None:
        self.names = list(table) if fetch is None else _checked(table, fetch)
        self.is_all = fetch is None
        self.positions = [table[name].index for name in self.names]
        self.make = Outputs.of(self.names)
        self.copies = Copies(self)
        self.borrowed = Borrowed(self)
        self.slots = Slots(self)
        self.bytes = Bytes(self)

    def indices(self, engine: Engine) -> list[int]:
        """The buffers of these outputs; raises if the last run did not write one."""
        found = [engine.parts.outputs[position] for position in self.positions]
        for index in found:
            engine.parts.buffers[index].readable_shape()
        return found


def _checked(table: Table, names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in table:
            known = ", ".join(table)
            raise InputError("fetch", f"has no output {name!r}; known: {known}.", name=name)
    return names


@dataclass(frozen=True, eq=False)
class Copies(Reader[Outputs]):
    """Fresh arrays."""

    wanted: Wanted

    def prepare(self, engine: Engine) -> Callable[[], Outputs]:
        make = self.wanted.make
        copies = [output_copier(engine, index) for index in self.wanted.indices(engine)]
        if len(copies) == 1:
            (only,) = copies
            return lambda: make((only(),))
        return lambda: make([copy() for copy in copies])


@dataclass(frozen=True, eq=False)
class Borrowed(Reader[Outputs]):
    """Views of the outputs where they lie, which raise when they are stale."""

    wanted: Wanted

    def prepare(self, engine: Engine) -> Callable[[], Outputs]:
        make = self.wanted.make
        buffers = [engine.parts.buffers[index] for index in self.wanted.indices(engine)]
        return lambda: make([BorrowedArray(buffer) for buffer in buffers])


@dataclass(frozen=True, eq=False)
class Slots(Reader[tuple[tuple[int, int], ...]]):
    """Where the outputs lie: (bytes behind `arena_ptr`, bytes)."""

    wanted: Wanted

    def prepare(self, engine: Engine) -> Callable[[], tuple[tuple[int, int], ...]]:
        found = self.wanted.indices(engine)
        buffers = [engine.parts.buffers[index] for index in found]

        def read() -> tuple[tuple[int, int], ...]:
            base = engine.io_address
            return tuple((buffer.address - base, _nbytes(buffer)) for buffer in buffers)

        if all(is_settled(engine, index) for index in found):
            places = read()
            return lambda: places
        return read


def _nbytes(buffer: Buffer) -> int:
    return prod(buffer.readable_shape()) * buffer.dtype.size_bytes


@dataclass(frozen=True, eq=False)
class Bytes(Reader[Outputs]):
    """The outputs as bytes."""

    wanted: Wanted

    def prepare(self, engine: Engine) -> Callable[[], Outputs]:
        make = self.wanted.make
        found = self.wanted.indices(engine)
        views = [output_view(engine, index) for index in found]
        dtypes = [engine.parts.buffers[index].dtype for index in found]

        def read() -> Outputs:
            arrays = [view() for view in views]
            return make(
                [Typed(a.tobytes(), d, a.shape) for a, d in zip(arrays, dtypes, strict=True)]
            )

        return read


class Into(Reader[Outputs]):
    """Arrays of the caller, by name or in order; checked before the run, written after it."""

    is_for_one_run = True

    def __init__(self, wanted: Wanted, table: Table, out: Any) -> None:
        self.wanted = wanted
        self.arrays = _targets(wanted, table, out)

    def check(self, engine: Engine) -> None:
        outputs = [engine.parts.outputs[position] for position in self.wanted.positions]
        self._check(engine, [i for i in outputs if not has_late_shape(engine, i)])

    def _check(self, engine: Engine, indices: Sequence[int]) -> None:
        numbered = zip(self.wanted.positions, self.wanted.names, self.arrays, strict=True)
        for position, name, array in numbered:
            index = engine.parts.outputs[position]
            shape = engine.parts.buffers[index].shape
            if array is not None and index in indices and array.shape != shape:
                raise InputError(
                    f"out '{name}'", f"must have shape {shape}, got {array.shape}.", name=name
                )

    def prepare(self, engine: Engine) -> Callable[[], Outputs]:
        arrays, found = self.arrays, self.wanted.indices(engine)
        self._check(engine, found)
        views = [output_view(engine, index) for index in found]

        def read() -> Outputs:
            result = []
            for view, array in zip(views, arrays, strict=True):
                if array is None:
                    result.append(view().copy())
                else:
                    array[...] = view()
                    result.append(array)
            return self.wanted.make(result)

        return read


def _targets(wanted: Wanted, table: Table, out: Any) -> list[Array | None]:
    """The array of each output, or none; dtypes fit, and shapes where they are fixed."""
    if isinstance(out, np.ndarray):
        out = [out]
    if isinstance(out, Mapping):
        for name in out:
            if name not in wanted.names:
                known = ", ".join(wanted.names)
                raise InputError("out", f"has no output {name!r}; known: {known}.", name=name)
        arrays = [out.get(name) for name in wanted.names]
    elif isinstance(out, Sequence) and not isinstance(out, (str, bytes)):
        if len(out) != len(wanted.names):
            raise InputError("out", f"must have {len(wanted.names)} arrays, got {len(out)}.")
        arrays = list(out)
    else:
        raise InputError("out", f"must be arrays by name or in order, got {type(out).__name__}.")
    targets = [
        None if array is None else _target(table[name], array)
        for name, array in zip(wanted.names, arrays, strict=True)
    ]
    _check_apart(wanted.names, targets)
    return targets


def _check_apart(names: Sequence[str], arrays: Sequence[Array | None]) -> None:
    """Refuse arrays that share memory: the one written last would win."""
    given = [(name, array) for name, array in zip(names, arrays, strict=True) if array is not None]
    for (one, a), (other, b) in combinations(given, 2):
        if np.may_share_memory(a, b) and np.shares_memory(a, b):
            raise InputError(
                f"out '{other}'", f"must have memory of its own, it is that of '{one}'.", name=other
            )


def _target(entry: Entry, array: Any) -> Array:
    where = f"out '{entry.name}'"
    if not isinstance(array, np.ndarray):
        raise InputError(where, f"must be a NumPy array, got {type(array).__name__}.")
    if not array.flags.writeable:
        raise InputError(where, "must be writeable.")
    if array.dtype != entry.dtype.numpy:
        raise InputError(where, f"dtype must be {entry.dtype}, got {array.dtype}.")
    if any(stride == 0 < size - 1 for stride, size in zip(array.strides, array.shape, strict=True)):
        raise InputError(where, "must have memory for each element, this one is broadcast.")
    fits = len(array.shape) == len(entry.shape) and all(
        a == b for a, b in zip(array.shape, entry.shape, strict=True) if isinstance(b, int)
    )
    if not fits:
        raise InputError(where, f"must have shape {entry.shape}, got {array.shape}.")
    return array
