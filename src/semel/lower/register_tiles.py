"""How much of a contraction's result lives in registers, and how its rows and columns are cut.

    (Target, columns) --register_tile--> RegisterTile
    rows --cut_rows--> RowBlocks        columns of a panel --cut_columns--> Spans

Nothing here changes a result: each element adds over k in order, whatever block it falls
into, so that all cuts agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from semel.ir.expr import Dim, ceildiv, maximum, minimum
from semel.ir.target import Target
from semel.ops.contract import PanelWidth

#: Sums that are under way at once where multiply-adds are to follow each other without a wait.
_CHAINS = 8
#: Rows of a block at most: each of a convolution has an address, and these need registers, too;
#: and a variable number of them has code for all heights below.
_TALLEST = 6
#: What a panel of one vector takes longer: an element of the left operand is read for it alone.
_LONE = 1.2
#: What a last panel that is not full takes besides: loops of its own.
_OWN_LOOPS = 0.25
#: A panel that is liked better may take so much longer than the fastest one.
_CLOSE = 1.03


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """How much of the result lives in registers, and how much one tile covers.

    `height` are the rows of a block, `lanes` the columns of one panel; `rows` and `panels` what
    a tile of the kernel covers.
    """

    height: int
    lanes: int
    rows: int
    panels: int


def register_tile(target: Target, bits: int = 32, columns: Dim | None = None) -> RegisterTile:
    """The tile that fills the registers without spilling, for accumulators of `bits`.

    Wide and low beats narrow and tall: a row's element is brought into a register once for
    all vectors of the block, and instructions other than fma are what a busy core lacks
    slots for. With 16 registers three vectors leave room for four rows, which read their panel
    half as often again as six do: they are taken where two would leave a lone vector.
    """
    lane = target.lanes(max(bits, 32))
    widths: Sequence[int] = (4, 3, 2, 1) if target.vector_registers == 32 else (2, 3, 1)
    vectors = widths[0]
    if isinstance(columns, int):
        panels = {v: -(-columns // (lane * v)) for v in widths}
        # A wider panel that makes no fewer of them is more padding.
        widths = [v for v in widths if all(panels[n] > panels[v] for n in widths if n < v)]
        times = {v: _time(target, v, columns, lane) for v in widths}
        vectors = next(v for v in widths if times[v] <= _CLOSE * min(times.values()))
    lanes = lane * vectors
    return RegisterTile(_height(target, vectors), lanes, 24, max(1, 64 // lanes))


def _height(target: Target, vectors: int) -> int:
    """Rows whose sums, of so many vectors, leave room for a panel's vectors and an element."""
    sums = 24 if target.vector_registers == 32 else 12
    return min(sums // vectors, max(_TALLEST, _CHAINS // vectors))


def _time(target: Target, vectors: int, columns: int, lane: int) -> float:
    """What a row takes that passes panels of so many vectors, in vectors of multiply-adds."""
    height = _height(target, vectors)

    def side_by_side(count: int) -> float:
        return max(count, _CHAINS / height) * (_LONE if count == 1 else 1)

    whole, rest = divmod(columns, lane * vectors)
    ends = [n for n in (rest // lane, int(rest % lane > 0)) if n]
    parts = [vectors] * whole + ([sum(ends)] if _joins_rest(target) and rest else ends)
    return sum(map(side_by_side, parts)) + (_OWN_LOOPS if rest else 0)


def panel_width(target: Target) -> PanelWidth:
    """How wide the panels of a contraction are, for packing and scheduling to agree with.

    Products of bytes (8 bits) have panels of words.
    """

    def width(columns: Dim, bits: int) -> int:
        return target.word_lanes if bits == 8 else register_tile(target, bits, columns).lanes

    return width


# ---------------------------------------------------------------- columns


@dataclass(frozen=True, slots=True)
class Span:
    """Columns of a panel from `start` on: `count` in vectors of `lanes`, all `beside` at once.

    The last of those beside each other may be cut: then some of its lanes have no column.
    """

    start: int
    count: int
    lanes: int
    beside: int = 1
    is_cut: bool = False


def cut_panels(columns: int, lanes: int, first: Dim, last: Dim) -> Iterator[tuple[int, Dim, Dim]]:
    """Panels [first, last) of so many lanes: columns of each, and which have as many."""
    whole, rest = divmod(columns, lanes)
    yield lanes, first, minimum(last, whole)
    if rest:
        yield rest, maximum(first, whole), last


def _joins_rest(target: Target) -> bool:
    """Whether a vector without all of its lanes may be beside whole ones: masks cost nothing."""
    return target.vector_bits == 512


def cut_columns(
    target: Target, bits: int, panel: int, count: int, *, joined: bool = False
) -> list[Span]:
    """How the first `count` columns of a panel of so many lanes are cut.

    All whole vectors at once, beside them what is left of one if it may be `joined`, else behind
    them, in half a register if that is enough.
    """
    lane = target.lanes(max(bits, 32))
    if count == panel and panel.bit_count() == 1:
        return [Span(0, panel, panel)]
    whole, rest = divmod(count, lane)
    if whole and rest and joined and _joins_rest(target):
        return [Span(0, lane, lane, whole + 1, is_cut=True)]
    spans = [Span(0, lane, lane, whole)] if whole else []
    if rest:
        halves = target.vector_bits == 512 and rest <= lane // 2
        spans.append(Span(whole * lane, rest, lane // 2 if halves else lane))
    return spans


# ---------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class Level:
    """Blocks [first, last) of a tile, of one height; block b begins at row b * height + offset."""

    height: int
    first: Dim
    last: Dim
    offset: Dim


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """Rows cut into `count` blocks of nearly one height, tallest first, and these into tiles.

    A last block of a row or two could not keep the arithmetic units busy: what is missing to whole
    blocks of `height` is taken from all of them, one row at a time from the last ones on. Many rows
    have blocks of two neighbouring heights; those that lack `depth` rows exist where there may
    be few.
    """

    rows: Dim
    height: int
    count: Dim
    per_tile: int
    depth: int

    @property
    def tiles(self) -> Dim:
        """How many tiles there are."""
        return ceildiv(self.count, self.per_tile)

    def first_row(self, tile: Dim) -> Dim:
        """Where a tile's rows begin; behind the last tile, at the end of the rows or later."""
        block = tile * self.per_tile
        lost: Dim = 0
        for missing in range(1, self.depth + 1):
            lost = lost + maximum(block - self._lacking(missing), 0)
        return block * self.height - lost

    def of_tile(self, tile: Dim) -> Iterator[Level]:
        """The blocks of a tile, height by height."""
        first, last = tile * self.per_tile, minimum((tile + 1) * self.per_tile, self.count)
        offset: Dim = 0
        for missing in range(self.depth + 1):
            begin = self._lacking(missing)
            offset = offset + begin
            end = self._lacking(missing + 1) if missing < self.depth else self.count
            if begin != end:
                start, stop = maximum(first, begin), minimum(last, end)
                yield Level(self.height - missing, start, stop, offset)

    def _lacking(self, missing: int) -> Dim:
        """The first block that lacks so many rows."""
        if missing == 0:
            return 0
        short = self.height * self.count - self.rows - (missing - 1) * self.count
        return maximum(self.count - maximum(short, 0), 0)  # no row number looks negative


def cut_rows(shape: RegisterTile, rows: Dim, least: int = 1) -> RowBlocks:
    """How a product of so many rows is cut, of which there are at least `least`."""
    height, most = shape.height, max(1, shape.rows // shape.height)
    if not isinstance(rows, int):
        few = range(max(least, 1), max(least, height * height) + 1)
        depth = max(height - n // -(-n // height) for n in few)
        return RowBlocks(rows, height, ceildiv(rows, height), most, depth)
    count = max(1, -(-rows // height))
    per_tile = -(-count // -(-count // most))
    tallest = -(-rows // count)
    return RowBlocks(rows, tallest, count, per_tile, int(tallest * count > rows))
