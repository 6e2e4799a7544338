"""Several sequences in one state, each with a length of its own.

    chats = graph.sequences("chats", 4, capacity=1024)
    keys = k.append(x, sequences=chats)     x [4, t, ...], k and keys [4, 1024, ...]
    scaled_dot_product_attention(q, keys, values, key_lengths=chats.lengths, is_causal=True)

How long they are is a state itself, int64[4]. New rows of a sequence are stored behind those it
has; whoever reads the state says how many count. A run that would make one longer than there is
room for fails before any length has changed, so that all sequences are as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.ir.expr import Dim
from semel.ir.graph import Node, make_node
from semel.ir.signature import ROOM
from semel.ir.types import INT64
from semel.ops.attrs import UpdateRowsAttrs
from semel.tensor.elementwise import choose
from semel.tensor.handle import TensorLike, convert, dim_value, lift
from semel.tensor.indexing import check_index, iota
from semel.tensor.origin import user_origin
from semel.tensor.tensor import Tensor

if TYPE_CHECKING:
    from semel.graph.state import State


class Sequences:
    """Sequences that grow in one run by as many rows, or by those that `counts` says of each."""

    def __init__(self, state: State, capacity: int, counts: TensorLike | None = None) -> None:
        self.name, self.capacity = state.name, capacity
        #: How long they were before the run.
        self.before: Tensor = state
        self._state = state
        self._counts = None if counts is None else _checked_counts(state, lift(counts))
        self._rows: Dim | None = None
        self._after: Tensor | None = None

    def __repr__(self) -> str:
        return f"Sequences({self.name!r}, {self.count}, capacity={self.capacity})"

    @property
    def count(self) -> int:
        """How many there are."""
        return self._state.room(0)

    @property
    def lengths(self) -> Tensor:
        """How long they are when this run's rows are there: int64[count]."""
        if self._after is None:
            raise GraphError(
                f"sequences '{self.name}'",
                "have these lengths when rows are appended: do that first.",
                hint="`before` are the lengths before the run.",
            )
        return self._after

    def mask(self) -> Tensor:
        """Which rows count, when this run's are there: bool[count, capacity]."""
        return iota((self.count, self.capacity), 1) < self.lengths.reshape(self.count, 1)

    def places(self, rows: Dim) -> Tensor:
        """Where in its sequence each of so many new rows lies: int64[count, rows], -1 nowhere."""
        after = self._grown(rows)
        number = iota((self.count, rows), 1)
        place = after.reshape(self.count, 1) - dim_value(rows) + number
        if self._counts is None:
            return place
        first = dim_value(rows) - self._counts.reshape(self.count, 1)
        return choose(number >= first, place, -1)

    def check_fits(self, state: State, axis: int) -> None:
        """Refuse a state that has no room for these sequences."""
        if type(self) is not Sequences:
            raise GraphError(
                f"state '{state.name}'",
                f"is not one of the pools of '{self.name}'.",
                hint="pages.pool(name, row_shape) makes one.",
            )
        if axis < 1 or state.room(0) != self.count or state.room(axis) != self.capacity:
            raise GraphError(
                f"state '{state.name}'",
                f"must have the {self.count} sequences of '{self.name}' along its first axis and "
                f"{self.capacity} rows along axis {axis}, it is {state.type}.",
            )

    def update(self, old: Node, rows: Tensor, axis: int) -> Node:
        """The next value of a state that these rows are appended to."""
        count = rows.shape[axis]
        return self._placed(old, rows, self.places(count), UpdateRowsAttrs(axis, self.name, count))

    def _placed(self, old: Node, rows: Tensor, places: Tensor, attrs: UpdateRowsAttrs) -> Node:
        inputs = (old, rows.node, places.node)
        return make_node("update_rows", inputs, attrs, origin=user_origin())

    def _grown(self, rows: Dim) -> Tensor:
        """The lengths after this run, checked; what all states of the sequences have in common."""
        if self._after is None:
            if self._counts is not None:
                where, most = f"sequences '{self.name}'", rows + 1
                self._counts = check_index(self._counts, most, where, "number of new rows")
            more = dim_value(rows) if self._counts is None else self._counts
            where = f"sequences '{self.name}'"
            self._after = check_index(self.before + more, self.capacity + 1, where, ROOM)
            self._rows = rows
            self._state.replace(self._after)
        elif self._rows != rows:
            raise GraphError(
                f"sequences '{self.name}'",
                f"must grow by as many rows in all states, got {self._rows} and {rows}.",
            )
        return self._after


def _checked_counts(state: State, counts: Tensor) -> Tensor:
    if counts.shape != state.shape or not counts.dtype.is_integer:
        raise GraphError(
            f"sequences '{state.name}'",
            f"counts must be an integer for each of the {state.shape[0]}, got {counts.type}.",
        )
    return convert(counts, INT64)


def check_sequences(given: Any, where: str) -> Sequences:
    """What was given as sequences, if that is what it is."""
    if not isinstance(given, Sequences):
        raise GraphError(where, f"sequences must be made by graph.sequences(), got {given!r}.")
    return given
