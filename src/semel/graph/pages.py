"""Sequences in a pool of blocks, found through a table: room for all, reserved by none.

    pages = graph.paged("kv", blocks=64, block_rows=16, sequences=4)
    keys = pages.pool("k", (8, 64)).append(x)      x [4, t, 8, 64], keys [64, 16, 8, 64]
    scaled_dot_product_attention(q, keys, values, block_table=pages.table,
                                 key_lengths=pages.lengths, is_causal=True)

A pool is a state of rows, `block_rows` of them a block. Row r of sequence s lies in block
table[s, r // block_rows]. The table is a state too, which runs only read: who has which block is
the plan's to say, before a run (semel.plan.pages).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.graph.sequences import Sequences
from semel.ir.expr import Dim
from semel.ir.signature import BLOCK
from semel.ir.types import INT64, as_shape
from semel.ops.attrs import UpdateRowsAttrs
from semel.tensor.elementwise import choose
from semel.tensor.handle import DTypeLike, TensorLike, convert, lift, wrap
from semel.tensor.indexing import check_index, iota
from semel.tensor.tensor import Tensor

if TYPE_CHECKING:
    from semel.graph.builder import Graph
    from semel.graph.state import State


class Pages(Sequences):
    """Sequences whose rows lie in blocks. Made by `Graph.paged`."""

    def __init__(
        self,
        graph: Graph,
        lengths: State,
        table: State,
        blocks: int,
        block_rows: int,
        counts: Tensor | None,
    ) -> None:
        super().__init__(lengths, table.room(1) * block_rows, counts)
        if counts is not None and counts.node.op.name != "input":
            raise GraphError(
                f"pages '{self.name}'",
                "counts must be an input of the graph: blocks are handed out before a run.",
            )
        self._graph, self._counts_name = graph, "" if counts is None else counts.node.attrs.name
        self.blocks, self.block_rows = blocks, block_rows
        #: Which block each part of each sequence lies in, -1 for none: int32[count, max_blocks].
        self.table: Tensor = table

    def __repr__(self) -> str:
        return f"Pages({self.name!r}, {self.count}, {self.blocks} blocks of {self.block_rows})"

    def pool(self, name: str, row_shape: Any, dtype: DTypeLike = "float32") -> Pool:
        """Rows of this shape for all sequences, in a state of that name."""
        shape = (self.blocks * self.block_rows, *as_shape(row_shape, "pool"))
        return Pool(self, self._graph.state(name, shape, dtype))

    def gather(self, pool: Tensor) -> Tensor:
        """The rows of each sequence, one after the other: [count, capacity, ...].

        Of those behind a length nothing is known; `mask()` says which count.
        """
        table = convert(self.table, INT64).maximum(0)
        return pool.take(table, 0).reshape(self.count, self.capacity, *pool.shape[2:])

    def places_in_pool(self, rows: Dim) -> Tensor:
        """Where in the pool each of so many new rows lies: int64[count * rows], -1 nowhere."""
        size, where = self.block_rows, f"pages '{self.name}'"
        place = self.places(rows)
        is_new, inside = place >= 0, place.maximum(0)
        entry = iota((self.count, rows), 0) * self.table.shape[1] + inside // size
        block = convert(self.table, INT64).flatten().take(entry)
        known = check_index(choose(is_new, block, 0), self.blocks, where, BLOCK)
        return choose(is_new, known * size + inside % size, -1).flatten()

    def append(self, state: State, rows: Tensor) -> Tensor:
        """All blocks of a pool, with these rows in them."""
        state.check_untouched()
        count = rows.shape[1]
        attrs = UpdateRowsAttrs(
            0,
            self.name,
            count,
            self._counts_name,
            str(self.table.node.attrs.name),
            self.block_rows,
        )
        flat = rows.reshape(self.count * count, *state.shape[1:])
        places = self.places_in_pool(count)
        state.take_update(self._placed(state.latest, flat, places, attrs))
        return wrap(state.latest).reshape(self.blocks, self.block_rows, *state.shape[1:])


class Pool:
    """Rows of all sequences of some pages, in blocks."""

    def __init__(self, pages: Pages, state: State) -> None:
        self.pages, self.state = pages, state

    def __repr__(self) -> str:
        return f"Pool({self.state.name!r} of {self.pages!r})"

    def append(self, rows: TensorLike) -> Tensor:
        """Put rows [count, t, ...] behind those of their sequences: [blocks, block_rows, ...].

        The result is the pool as it is then; `pages.table` and `pages.lengths` say what is where.
        """
        new, state = lift(rows), self.state
        wanted = (self.pages.count, *state.shape[1:])
        if new.ndim != len(wanted) + 1 or (new.shape[0], *new.shape[2:]) != wanted:
            shape = ", ".join(map(str, (self.pages.count, "t", *state.shape[1:])))
            raise GraphError(
                f"pool '{state.name}'", f"rows must be of shape ({shape}), got {new.type}."
            )
        if new.dtype != state.dtype:
            raise GraphError(f"pool '{state.name}'", f"rows must be {state.dtype}, got {new.type}.")
        return self.pages.append(state, new)
