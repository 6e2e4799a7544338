"""How much of a contraction's result lives in registers, and how its rows are cut.

    (Target, columns) --register_tile--> RegisterTile        rows --cut_rows--> RowBlocks

Nothing here changes a result: each element adds over k in order, whatever block it falls
into, so that all cuts agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from semel.ir.expr import Dim, ceildiv, maximum, minimum
from semel.ir.target import Target
from semel.ops.contract import PanelWidth


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """How much of the result lives in registers, and how much one tile covers.

    `heights` are the row blocks, tallest first; `lanes` the columns of one panel; `rows` and
    `panels` what a tile of the kernel covers.
    """

    heights: tuple[int, ...]
    lanes: int
    rows: int
    panels: int


def register_tile(target: Target, bits: int = 32, columns: Dim | None = None) -> RegisterTile:
    """The tile that fills the registers without spilling, for accumulators of `bits`.

    Wide and low beats narrow and tall: a row's element is brought into a register once for
    all vectors of the block, and instructions other than fma are what a busy core lacks
    slots for. A narrower tile is taken where panels of the wide one would be mostly padding.
    """
    lane = target.lanes(max(bits, 32))
    vectors = 4 if target.vector_registers == 32 else 2
    while isinstance(columns, int) and vectors > 1:
        padded = -(-columns // (lane * vectors)) * lane * vectors
        if padded - columns <= columns // 8:
            break
        vectors //= 2
    tallest = (24 if target.vector_registers == 32 else 12) // vectors
    heights = (tallest, *(h for h in (4, 2, 1) if h < tallest))
    return RegisterTile(heights, lane * vectors, 24, max(1, 64 // (lane * vectors)))


def panel_width(target: Target) -> PanelWidth:
    """How wide the panels of a contraction are, for packing and scheduling to agree with.

    Products of bytes (8 bits) have panels of words.
    """

    def width(columns: Dim, bits: int) -> int:
        return target.word_lanes if bits == 8 else register_tile(target, bits, columns).lanes

    return width


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """Rows cut into blocks, and blocks into tiles.

    A known number of rows is cut evenly, into blocks of two neighbouring heights of which
    the first `taller` have one row more: a last block of a row or two could not keep the
    arithmetic units busy. An unknown number of rows is cut into tiles of `per_tile` rows,
    and those into blocks of falling `heights`.
    """

    rows: Dim
    heights: tuple[int, ...]
    per_tile: int
    count: int = 0
    taller: int = 0

    @property
    def tiles(self) -> Dim:
        """How many tiles there are."""
        return ceildiv(self.count or self.rows, self.per_tile)

    def first_row(self, tile: Dim) -> Dim:
        """Where a tile's rows begin."""
        first = tile * self.per_tile
        return first * self.heights[-1] + minimum(first, self.taller) if self.count else first

    def of_tile(self, tile: Dim) -> Iterator[tuple[int, Dim, Dim, Callable[[Dim], Dim]]]:
        """Height, first and last block, and the first row of a block, for each height."""
        first, last = tile * self.per_tile, minimum((tile + 1) * self.per_tile, self.count)
        if self.count:
            low, taller = self.heights[-1], self.taller
            if taller:
                yield low + 1, first, minimum(last, taller), lambda block: block * (low + 1)
            if taller < self.count:
                yield low, maximum(first, taller), last, lambda block: block * low + taller
            return
        start, left = first, minimum(first + self.per_tile, self.rows) - first
        for height in self.heights:
            begin, size = start, height
            yield height, 0, left // height, lambda block, b=begin, h=size: b + block * h  # type: ignore[misc]
            start, left = start + left // height * height, left % height


def cut_rows(shape: RegisterTile, rows: Dim) -> RowBlocks:
    """How a product of so many rows is cut."""
    if not isinstance(rows, int):
        return RowBlocks(rows, shape.heights, shape.rows)
    count = max(1, -(-rows // shape.heights[0]))
    low, taller = divmod(rows, count)
    most = max(1, shape.rows // shape.heights[0])
    per_tile = -(-count // -(-count // most))
    return RowBlocks(rows, (low,), per_tile, count, taller)
