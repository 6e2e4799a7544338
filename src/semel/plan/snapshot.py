"""States at one moment, and their files.

    plan.states.snapshot()  -->  Snapshot  --save-->  file  --Snapshot.load-->  Snapshot
                                           --plan.states.restore-->  the plan goes on from there

A file has what plan files have (`semel.plan.file.whole`): a version, checksums, arrays from a page
boundary on. Its header says which states these are, and a hash of that: a snapshot is restored in
plans of the same states alone, whatever room they have. Files are data; nothing in one is trusted.
Why this way: docs/decisions/0066-snapshots-in-files.md.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from semel.errors import GraphError, SemelError, StateError, StateFileError
from semel.ir.encode import as_int, as_int64, as_known_dtype, as_list, as_text
from semel.ir.fields import take_int, take_path
from semel.ir.types import DType, as_dtype
from semel.plan.file.format import place_constants
from semel.plan.file.whole import FileKind, read_parts, write_file, write_parts
from semel.runtime.buffer import Array
from semel.runtime.memory import Bytes

FORMAT = 1
MAGIC = b"\x89SEMEL\rS"
#: What a hash of states begins with, so that it is no other thing's hash.
_HASHED = b"semel states 1\n"


@dataclass(frozen=True, slots=True)
class StateKind:
    """What a state is in every plan that can go on with it: the size of `axis` is None there.

    `lengths` is the state that says how long the sequences in it are, if it holds several, and
    `block_rows` how many rows a block has, if they lie in blocks.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    axis: int | None
    cursor: str | None
    lengths: str | None
    block_rows: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """States as they were at one moment: their valid elements, and the cursors.

    It holds copies that nobody can change, and can be pickled and saved: a session that goes on
    elsewhere. `kinds` says of which states, if it was taken of a plan.
    """

    arrays: Mapping[str, Array] = field(repr=False)  #: what was valid of each state, sealed
    cursors: Mapping[str, int]  #: how many rows were valid, by the name of the cursor
    kinds: tuple[StateKind, ...] = field(default=(), repr=False)  #: the type of each state by name

    def __post_init__(self) -> None:
        sealed = {name: _sealed(name, array) for name, array in self.arrays.items()}
        cursors = {name: take_int("Snapshot", name, rows) for name, rows in self.cursors.items()}
        object.__setattr__(self, "arrays", MappingProxyType(sealed))
        object.__setattr__(self, "cursors", MappingProxyType(cursors))

    def __reduce__(self) -> tuple[Any, ...]:
        return Snapshot, (dict(self.arrays), dict(self.cursors), self.kinds)

    @property
    def digest(self) -> str:
        """A hash of which states these are: names, types, axes, cursors."""
        return hash_kinds(self.kinds)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file for `Snapshot.load`, which appears whole or not at all."""
        place = take_path("save", path)
        arrays = dict(enumerate(self.arrays.values()))
        places, arrays_bytes = place_constants(arrays)
        header = {
            "digest": self.digest,
            "kinds": [astuple(kind) for kind in self.kinds],
            "cursors": dict(self.cursors),
            "states": [
                [name, as_dtype(array.dtype, "save").name, array.shape, places[i]]
                for i, (name, array) in enumerate(self.arrays.items())
            ],
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        try:
            write_file(
                place,
                lambda file: write_parts(file, _FILE, 0, text, b"", arrays, places, arrays_bytes),
            )
        except OSError as error:
            message = f"{place} must be writable: {error}."
            raise StateFileError("save", message, path=str(place)) from error

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Snapshot:
        """What a file holds; StateFileError if it is not what `save` writes."""
        place = take_path("load", path)
        name, data = str(place), _map_file(place)
        parts = read_parts(data, name, _FILE)
        parts.check()
        with _reading(name):
            header = json.loads(bytes(parts.front[: parts.prefix.header_bytes]))
            found = _decode(header, parts.arrays)
            if header["digest"] != found.digest:
                raise ValueError(f"the hash of its states must be {found.digest}")
        return found


def hash_kinds(kinds: tuple[StateKind, ...]) -> str:
    """The same for the same states, in whatever order."""
    ordered = sorted(map(astuple, kinds), key=lambda record: str(record[0]))
    return hashlib.sha256(_HASHED + json.dumps(ordered).encode()).hexdigest()


def _sealed(name: str, array: Any) -> Array:
    """The array, for reading; whoever made it may go on writing to it."""
    if not isinstance(array, np.ndarray):
        raise StateError("Snapshot", f"'{name}' must be an array, got {type(array).__name__}.")
    view: Array = array.view()
    view.flags.writeable = False
    return view


# ---------------------------------------------------------------- reading


def _refuse(name: str, message: str, hint: str = "") -> SemelError:
    return StateFileError("Snapshot.load", f"{name}: {message}", hint=hint, path=name)


_FILE = FileKind(
    MAGIC, FORMAT, "snapshots", "header", "arrays", "save the snapshot with this one", _refuse
)
_MALFORMED = (GraphError, LookupError, TypeError, ValueError, OverflowError, RecursionError)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except _MALFORMED as error:
        raise _refuse(name, f"its records must be those of a snapshot: {error!r:.200}.") from error


def _map_file(path: Path) -> Bytes:
    """Its bytes where they lie: arrays are copied out, so that a snapshot stays as it is."""
    try:
        if not path.is_file():  # what is none may never end
            raise FileNotFoundError("there is no such file")
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return np.empty(0, np.uint8)
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError) as error:
        raise _refuse(str(path), f"must be readable: {error}.") from error


def _decode(header: Any, arrays: Bytes) -> Snapshot:
    places = {as_text(n): _Place.of(*rest) for n, *rest in _records(header["states"], 4)}
    kinds = {as_text(record[0]): _kind(record) for record in _records(header["kinds"], 7)}
    cursors = {as_text(name): as_int64(value) for name, value in dict(header["cursors"]).items()}
    if (len(places), len(kinds)) != (len(header["states"]), len(header["kinds"])):
        raise ValueError("each state must have a name of its own")
    # Together too, so that a small file stands for no more than it holds.
    if sum(place.nbytes for place in places.values()) > arrays.size:
        raise ValueError("arrays must lie beside each other")
    found = {name: place.read(arrays) for name, place in places.items()}
    return Snapshot(found, cursors, tuple(kinds.values()))


def _records(value: Any, length: int) -> list[list[Any]]:
    return [as_list(record, length) for record in as_list(value)]


def _kind(record: list[Any]) -> StateKind:
    name, dtype, shape, axis, cursor, lengths, block_rows = record
    return StateKind(
        as_text(name),
        as_known_dtype(dtype).name,
        tuple(None if size is None else as_int(size) for size in as_list(shape)),
        None if axis is None else as_int(axis),
        None if cursor is None else as_text(cursor),
        None if lengths is None else as_text(lengths),
        as_int64(block_rows),
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an array lies in a file, as its header says."""

    dtype: DType
    shape: tuple[int, ...]
    start: int

    @staticmethod
    def of(dtype: Any, shape: Any, start: Any) -> _Place:
        place = _Place(
            as_known_dtype(dtype), tuple(as_int64(n) for n in as_list(shape)), as_int64(start)
        )
        if min((place.start, *place.shape)) < 0:
            raise ValueError(f"sizes and places must not be negative, got {shape} at {start}")
        return place

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.size_bytes

    def read(self, arrays: Bytes) -> Array:
        """A copy of it, if it lies inside."""
        end = self.start + self.nbytes
        if end > arrays.size:
            raise ValueError(f"an array must end before byte {arrays.size}, got {end}")
        data = arrays[self.start : end]
        if self.dtype.numpy == np.bool_ and (data > 1).any():
            raise ValueError("a bool must be 0 or 1")
        return np.ndarray(self.shape, self.dtype.numpy, data.tobytes())
