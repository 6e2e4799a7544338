"""A tensor that is kept between runs, and how a graph says what becomes of it.

    cache = graph.state("k", (1024, 64), "float32")
    keys = cache.append(x)          the valid rows, the new ones included

A state is a Tensor: its value is what the run before has left. It has its largest shape; rows that
are appended are valid up to a *cursor*, which moves on when a run succeeds. States that rows are
appended to in step share one: then `cursor + t` is the same size for all, and nothing has to be
compared. Everything here is functional: what is made from a state keeps its meaning whatever is
appended later, and the order that memory needs is the compiler's to find.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.graph.sequences import check_sequences
from semel.ir.expr import Dim, Variable
from semel.ir.graph import Node, is_from_outside, make_node
from semel.ir.types import as_shape
from semel.ops.attrs import SliceAttrs, UpdateAttrs
from semel.tensor.handle import TensorLike, lift, normalize_axis, wrap
from semel.tensor.origin import user_origin
from semel.tensor.tensor import Tensor

if TYPE_CHECKING:
    from semel.graph.builder import Graph
    from semel.graph.sequences import Sequences


class Cursor:
    """Where rows are appended: the number of valid ones, at most `capacity`."""

    def __init__(self, name: str, capacity: int) -> None:
        self.variable = Variable(name, 0, capacity)
        self.capacity = capacity
        #: How many rows have been appended to each state in this graph, by its name.
        self.appended: dict[str, Dim] = {}

    def __repr__(self) -> str:
        return f"Cursor({self.name!r}, {self.capacity})"

    @property
    def name(self) -> str:
        return self.variable.name

    @property
    def next(self) -> Dim:
        """What it is after a run, for which all its states must agree."""
        (first, rows), *others = self.appended.items() or [("", 0)]
        for name, found in others:
            if found != rows:
                raise GraphError(
                    f"cursor '{self.name}'",
                    f"its states must grow by the same number of rows, '{first}' does by {rows} "
                    f"and '{name}' by {found}.",
                    hint="Give one a cursor of its own: append(x, cursor=graph.cursor(...)).",
                )
        return self.variable + rows


class State(Tensor):
    """A tensor of a graph that is kept between runs. Made by `Graph.state`."""

    __slots__ = ("_graph", "_latest", "cursor")

    _graph: Graph
    _latest: Node
    cursor: Cursor | None

    @classmethod
    def of(cls, graph: Graph, leaf: Node) -> State:
        """The state behind a leaf."""
        made = object.__new__(cls)
        made._node = made._latest = leaf
        made._value = None
        made._graph, made.cursor = graph, None
        return made

    def __setitem__(self, key: Any, value: Any) -> None:
        raise GraphError(
            f"state '{self.name}'",
            "must not be assigned to: it is what the run before has left.",
            hint="update(x, starts) gives it other elements for the next run.",
        )

    @property
    def name(self) -> str:
        return str(self._node.attrs.name)

    def room(self, axis: int) -> int:
        """How many rows there can be along an axis."""
        size = self.shape[axis]
        assert isinstance(size, int)  # as the shape of a state is
        return size

    @property
    def latest(self) -> Node:
        """What the state becomes, as far as was said by now; the state itself at first."""
        return self._latest

    # ------------------------------------------------------------ what becomes of it

    def append(
        self,
        rows: TensorLike,
        axis: int | None = None,
        *,
        cursor: Cursor | None = None,
        sequences: Sequences | None = None,
    ) -> Tensor:
        """Put rows behind the valid ones; all that are valid then, the new ones included.

        The rows are like the state but for their number along `axis`, the first one unless said
        otherwise. Without a `cursor`, states of one graph with as much room along their axes share
        one. Those of several `sequences`, which stand along the first axis, each go behind those of
        their sequence, along axis 1 unless said otherwise; then all of the state is returned, of
        which `sequences.lengths` says how much is valid.
        """
        new, first = lift(rows), 0 if sequences is None else 1
        along = normalize_axis(first if axis is None else axis, self.ndim, "append")
        self._check_rows(new, along)
        if sequences is not None:
            return self._append_to(sequences, new, along, cursor)
        at = self._cursor_for(along, cursor)
        before = at.appended.get(self.name, 0)
        starts = [0] * self.ndim
        end = at.variable + before + new.shape[along]
        updated = self._update(new, (*starts[:along], at.variable + before, *starts[along + 1 :]))
        # Only now, when nothing can be refused any more.
        self.cursor, self._graph.axes[self.name] = at, along
        self._graph.cursors[at.name] = at
        at.appended[self.name] = before + new.shape[along]
        sizes = (*self.shape[:along], end, *self.shape[along + 1 :])
        attrs = SliceAttrs(tuple(starts), sizes, (1,) * self.ndim)
        return wrap(make_node("slice", (updated,), attrs, origin=user_origin()))

    def _append_to(self, given: Sequences, new: Tensor, axis: int, cursor: Cursor | None) -> Tensor:
        sequences = check_sequences(given, f"state '{self.name}'")
        if cursor is not None or self.cursor is not None:
            raise GraphError(
                f"state '{self.name}'", "rows of sequences are appended without a cursor."
            )
        self._graph.check_owns(sequences)
        sequences.check_fits(self, axis)
        self.check_untouched()
        self.take_update(sequences.update(self._latest, new, axis))
        return wrap(self._latest)

    def check_untouched(self) -> None:
        """Refuse a second update where there can be one."""
        self._check_outside_of_bodies()
        if self._latest is not self._node:
            raise GraphError(
                f"state '{self.name}'", "rows of sequences are appended once in a run."
            )

    def take_update(self, update: Node) -> None:
        """Become this."""
        self._latest = update

    def valid(self) -> Tensor:
        """The rows that were valid before this run; nothing if none were ever appended."""
        if self.cursor is None:
            raise GraphError(f"state '{self.name}'", "has no cursor: append to it first.")
        key = [slice(None)] * self._graph.axis_of(self) + [slice(0, self.cursor.variable)]
        return wrap(self._node)[tuple(key)]

    def update(self, new: TensorLike, starts: Sequence[Dim]) -> Tensor:
        """Replace the elements from `starts` on; all of the state as it is then."""
        places = as_shape(starts, "update")
        if len(places) != self.ndim:
            raise GraphError("update", f"starts must be {self.ndim}, one per axis, got {starts!r}.")
        return wrap(self._update(lift(new), places))

    def replace(self, new: TensorLike) -> Tensor:
        """Let the next run find these elements in the place of all old ones."""
        value = lift(new)
        if value.type != self.type:
            raise GraphError(
                f"state '{self.name}'", f"its next value must be {self.type}, got {value.type}."
            )
        self._update(value, (0,) * self.ndim)
        return value

    # ------------------------------------------------------------ inside

    def _check_outside_of_bodies(self) -> None:
        if is_from_outside(self._node):
            raise GraphError(
                f"state '{self.name}'",
                "must not be updated inside the body of a loop or a branch: a run does it once.",
                hint="Compute the new elements there, and update the state with the result.",
            )

    def _update(self, new: Tensor, starts: tuple[Dim, ...]) -> Node:
        self._check_outside_of_bodies()
        if self._latest.op.name == "update_rows":
            raise GraphError(
                f"state '{self.name}'", "has rows of sequences, appended once in a run."
            )
        is_whole = all(s == 0 for s in starts) and new.shape == self.shape
        if self._latest is not self._node and (is_whole or self._graph.is_replaced(self)):
            raise GraphError(
                f"state '{self.name}'",
                "is either replaced, once, or updated in parts.",
            )
        inputs = (self._latest, new.node)
        self._latest = make_node("update", inputs, UpdateAttrs(starts), origin=user_origin())
        return self._latest

    def _check_rows(self, rows: Tensor, axis: int) -> None:
        if rows.ndim != self.ndim or rows.dtype != self.dtype:
            raise GraphError(
                f"state '{self.name}'",
                f"rows must have its dtype and rank ({self.type}), got {rows.type}.",
            )
        if any(
            a != b for k, (a, b) in enumerate(zip(rows.shape, self.shape, strict=True)) if k != axis
        ):
            raise GraphError(
                f"state '{self.name}'",
                f"rows must be like it along all axes but {axis} ({self.type}), got {rows.type}: "
                "elements beside them would not be new.",
            )

    def _cursor_for(self, axis: int, given: Cursor | None) -> Cursor:
        """The cursor that rows are appended at; nothing is changed yet."""
        if given is not None and self._graph.cursors.get(getattr(given, "name", "")) is not given:
            raise GraphError(
                f"state '{self.name}'",
                f"cursor must be one of graph '{self._graph.name}', got {given!r}.",
                hint="Make it with graph.cursor(name, capacity).",
            )
        cursor = given or self.cursor or self._graph.shared_cursor(self.room(axis))
        if self.cursor not in (None, cursor) or self._graph.axes.get(self.name, axis) != axis:
            raise GraphError(
                f"state '{self.name}'", "has one cursor, along one axis, and got another."
            )
        if cursor.capacity > self.room(axis):
            raise GraphError(
                f"state '{self.name}'",
                f"must have room for {cursor.capacity} rows along axis {axis}, as its cursor "
                f"'{cursor.name}' goes, it is {self.type}.",
            )
        return cursor
