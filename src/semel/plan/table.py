"""What goes into a plan, what comes out, and what it keeps: tables for people and for code.

    plan.inputs, plan.outputs, plan.params  -->  Table of Entry, by name and by position
    plan.signature  -->  encoder(ids: int64[batch, seq]) -> (hidden: float32[batch, seq, 384])

A table says how a plan is at the moment it is asked for: its order is that of the graph as it was
written, and a plan file keeps names and order. Inputs and outputs lie `offset` bytes behind one
address, `plan.arena_ptr`. Memory that grows moves, and then `plan.growths` has counted on; an array
that is bound lies where it lies. Why one address: docs/decisions/0071-tables.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.errors import InputError, UserError
from semel.ir.expr import evaluate
from semel.ir.types import DType, Shape, TensorType
from semel.plan.program import PlanIO
from semel.plan.report.html import html_table
from semel.plan.weights import Param
from semel.runtime.buffer import Buffer

if TYPE_CHECKING:
    from semel.plan.engine import Engine


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor, number `index` of its table.

    `nbytes` is what it takes at the current variables; as long as one of them is not bound, what
    there is room for. `offset` counts from `plan.arena_ptr`; None for what lies elsewhere, as
    params and states do. `version` counts how often a param was replaced.
    """

    name: str
    index: int
    dtype: DType
    shape: Shape
    offset: int | None
    nbytes: int
    version: int = 0

    @property
    def type(self) -> TensorType:
        """Its dtype and shape in one."""
        return TensorType(self.shape, self.dtype)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype.name}{show_shape(self.shape)}"


def show_shape(shape: Shape) -> str:
    """`[batch, 384]`."""
    return f"[{', '.join(map(str, shape))}]"


class Table(Mapping[str, Entry]):
    """Entries by name, in order; `table[0]` is the first. Immutable."""

    __slots__ = ("_entries", "_error", "_order", "what")

    def __init__(
        self, what: str, entries: Iterable[Entry], error: type[UserError] = InputError
    ) -> None:
        """`what` one entry is called, and how a name that is none is refused."""
        self.what = what
        self._order = tuple(entries)
        self._entries = {entry.name: entry for entry in self._order}
        self._error = error

    def __getitem__(self, key: Any) -> Entry:
        if isinstance(key, str):
            found = self._entries.get(key)
            if found is not None:
                return found
        elif isinstance(key, int) and -len(self._order) <= key < len(self._order):
            return self._order[key]
        known = ", ".join(self._entries) or "none"
        raise self._error("plan", f"has no {self.what} {key!r}; known: {known}.", name=key)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def get(self, name: str, default: Any = None) -> Any:
        """The entry of that name, or `default`."""
        return self._entries.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __str__(self) -> str:
        return ", ".join(map(str, self._order))

    def __repr__(self) -> str:
        return f"Table({self.what}s: {self or 'none'})"

    def _repr_html_(self) -> str:
        return html_table(f"{self.what}s", _HEAD, [_cells(entry) for entry in self._order])


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """What goes in and what comes out, in order; `str()` is one line.

    Two are equal if they look equal: where things lie, and how large they are now, is not part of
    it.
    """

    name: str
    inputs: Table
    outputs: Table

    def __str__(self) -> str:
        return f"{self.name}({self.inputs}) -> ({self.outputs})"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, Signature) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))

    def shortened(self, most: int = 4) -> str:
        """The line with so many inputs and outputs at most."""
        given, made = (few(list(t.values()), most) for t in (self.inputs, self.outputs))
        return f"{self.name}({given}) -> ({made})"


def few(items: Sequence[object], most: int = 4) -> str:
    """So many of them, and how many there are besides."""
    more = [f"{len(items) - most} more"] if len(items) > most else []
    return ", ".join([*map(str, items[:most]), *more])


# ---------------------------------------------------------------- tables of a plan


def table_now(what: str, ios: Iterable[PlanIO], engine: Engine) -> Table:
    """Inputs, or outputs, of a plan as it is now."""
    with engine.lock:
        base = None if engine.state.is_released else engine.io_address
        return io_table(what, ios, engine.parts.buffers, engine.state.values_now(), base)


def io_table(
    what: str,
    ios: Iterable[PlanIO],
    buffers: Sequence[Buffer],
    values: Mapping[str, int],
    base: int | None,
) -> Table:
    """Inputs, or outputs, as they lie now behind `base`; nowhere, if there is none."""
    return Table(
        what,
        (
            Entry(
                io.name,
                number,
                io.type.dtype,
                io.type.shape,
                None if base is None else buffers[io.index].address - base,
                _nbytes(io.type, values, buffers[io.index].capacity_bytes),
            )
            for number, io in enumerate(ios)
        ),
    )


def _nbytes(kind: TensorType, values: Mapping[str, int], room: int) -> int:
    try:
        return evaluate(kind.num_bytes, values)
    except KeyError:
        return room


def param_table(params: Iterable[Param]) -> Table:
    """The params of a program; their data lies outside, in as many forms as are read."""
    return Table(
        "param",
        (
            Entry(
                param.name,
                number,
                param.type.dtype,
                param.type.shape,
                None,
                evaluate(param.type.num_bytes, {}),
                param.version,
            )
            for number, param in enumerate(params)
        ),
    )


def named_outputs(
    declared: Sequence[PlanIO], results: Sequence[int], buffers: Sequence[Buffer]
) -> list[PlanIO]:
    """All outputs in order; those of a plan built by hand that have no name are numbered.

    The declared ones are some of the results, in the same order.
    """
    taken = {io.name for io in declared}
    following = iter(declared)
    upcoming = next(following, None)
    found: list[PlanIO] = []
    for number, index in enumerate(results):
        if upcoming is not None and upcoming.index == index:
            found.append(upcoming)
            upcoming = next(following, None)
            continue
        name = f"output{number}"
        while name in taken:
            name += "_"
        taken.add(name)
        found.append(PlanIO(name, index, buffers[index].type))
    return found


# ---------------------------------------------------------------- for notebooks

_HEAD = ("", "name", "dtype", "shape", "offset", "bytes", "version")


def _cells(entry: Entry) -> tuple[str, ...]:
    offset = "" if entry.offset is None else str(entry.offset)
    version = str(entry.version or "")
    return (
        str(entry.index),
        entry.name,
        entry.dtype.name,
        show_shape(entry.shape),
        offset,
        f"{entry.nbytes:,}",
        version,
    )
