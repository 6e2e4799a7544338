"""Windows over planes: rows come to scratch once, with their padding, and are read there.

    loops (plane..., y, x) around { acc = 0; for tap: acc += f(image[plane, y + dy, x + dx]) }
    -->
    for band: { scratch = the padded rows of one plane; blocks of 4 rows of places, from scratch }

Where channels come first, vectors run along the places of a row. Read from the image, every tap of
a row would be tested for padding at both ends, and with a stride the lanes of every tap be picked
from several vectors. In scratch each row lies with its padding, its places apart by their
remainder by the stride: a tap is one straight vector, at any of them. What comes before the
windows (an activation) is computed once an element instead of once a tap.

Of images of any size, a run names what it knows of a band once (`_Known`). Rows end with a whole
vector here, too, if they are as long as one (`any_places`), and a band has as many rows as its
places leave room for; in scratch they lie as far apart as the longest would, so that any tap of any
row is a constant away.

Only where elements are read from changes: no bit of the sums does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from semel.ir.expr import (
    Dim,
    Index,
    atoms,
    ceildiv,
    linear_coefficient,
    maximum,
    minimum,
    product,
    upper_bound,
)
from semel.ir.graph import Node
from semel.ir.target import Target
from semel.kernel import ir
from semel.kernel.ir import Buffer, Statement, Value, statement_values, walk_statements, walk_values
from semel.kernel.rewrite import substitute_indices
from semel.lower.evaluate import Evaluator
from semel.lower.lowered import Names, split_rows
from semel.lower.windows import (
    PLACES,
    Lines,
    any_places,
    bind,
    ending_whole,
    inside_and_ends,
    several_places,
)
from semel.ops.index_maps import Indices, flat_index, no_gather, operand_index

#: Bytes of a band in scratch: with its filters and results it stays in the first-level cache.
BAND_BYTES = 16384
#: Places of a row that one band takes at most.
LONG_BAND = 512
#: Places of a row of which no more is known that one band takes at most.
ANY_BAND = 64
#: Bytes of scratch that rows of unknown length are spread over; a band fills part of each line.
SCRATCH_BYTES = 4 * BAND_BYTES
#: Places of padding that are written at once.
FEW = 4
#: Room behind each line for what runs over it.
SLACK = 16
#: A stride up to which elements apart are picked from whole vectors.
MAX_STRIDE = 4
#: How often windows must read an element for a copy of it to pay.
OFTEN = 2
#: More taps of a row than this are not repeated in the code: where they look is not known there.
MAX_TAPS = 32


@dataclass(frozen=True)
class _Along:
    """An axis that windows slide along: element `stride * place + dilation * tap` is read."""

    axis: int
    place: Index
    tap: Index
    stride: int
    dilation: int

    @property
    def taps(self) -> int:
        assert isinstance(self.tap.extent, int)
        return self.tap.extent

    @property
    def span(self) -> int:
        """How far the last tap lies behind the first."""
        return (self.taps - 1) * self.dilation

    @property
    def phases(self) -> list[int]:
        """The remainders by the stride of what the taps ask for."""
        return sorted({tap * self.dilation % self.stride for tap in range(self.taps)})


@dataclass
class Planes:
    """The operand of a kernel's windows, and where its elements lie in scratch."""

    node: Node
    at: Indices
    across: _Along
    down: _Along | None
    rows: Dim
    most_rows: int
    columns: int
    pitch: int
    first_row: Dim
    first_column: Dim
    scratch: Buffer

    # ------------------------------------------------------------ what the kernel reads

    def element(self, node: Node, at: Indices) -> Value | None:
        """The element in scratch, if it is what the windows ask for: others may lie in no band."""
        if node is not self.node or at != self.at:
            return None
        across, rest = self.across, at[self.across.axis]
        rest = rest - across.stride * self.first_column
        column = (rest % across.stride) * self.pitch + rest // across.stride
        if self.down is None:
            return ir.load(self.scratch, column)
        row = at[self.down.axis] - self.down.stride * self.first_row
        return ir.load(self.scratch, row * (across.stride * self.pitch) + column)

    # ------------------------------------------------------------ the kernel

    def tiled(
        self,
        loops: Sequence[Index],
        body: tuple[Statement, ...],
        evaluate: Evaluator,
        names: Names,
        target: Target,
        tile_elements: int,
    ) -> tuple[Index, tuple[Statement, ...]]:
        """The tile and its statements: bands of one plane, or some small planes."""
        (place, down), lanes = (self.across.place, self.down), target.lanes(32)
        rest = [i for i in loops if i is not place and (down is None or i is not down.place)]
        vectors, parts = ceildiv(place.extent, lanes), ceildiv(place.extent, self.columns)
        bands = 1 if down is None else ceildiv(down.place.extent, self.rows)
        planes = product(i.extent for i in rest)
        count = planes * bands * parts
        work = self._work()
        several = max(tile_elements // max(work, 1), 1) if isinstance(work, int) else 1
        tile = Index("tile", ceildiv(count, several))
        band = tile if several == 1 else Index("band", count)
        known = _Known(names)
        rows = known(self.rows, self.most_rows + 1)
        bands, parts = (known(each, each + 1) for each in (bands, parts))
        part = known(band % parts, parts)
        left = known(vectors * part // parts * lanes, place.extent, self.first_column)
        right = minimum(vectors * (part + 1) // parts * lanes, place.extent)
        width = known(right - left, self.columns + 1)
        top: Dim = 0
        height: Dim = 1
        if down is not None:
            here = band // parts % bands * rows
            top = known(here, down.place.extent, self.first_row)
            height = known(minimum(rows, down.place.extent - top), self.most_rows + 1)
        plane = known(band // (parts * bands), planes)
        statements = (
            *self._staging(evaluate, known, target, height, width),
            *self._computing(body, names, target, (top, height), (left, width)),
        )
        statements = (*known.binds, *substitute_indices(statements, split_rows(plane, rest)))
        if several == 1:
            return tile, statements
        stop = minimum(tile * several + several, count)
        return tile, (ir.Loop(band, tile * several, stop, statements),)

    def _work(self) -> Dim:
        """Products of a band."""
        columns = minimum(self.columns, self.across.place.extent)
        if self.down is None:
            return columns * self.across.taps
        rows = minimum(self.rows, self.down.place.extent)
        return columns * rows * (self.across.taps * self.down.taps)

    def _staging(
        self, evaluate: Evaluator, known: _Known, target: Target, height: Dim, width: Dim
    ) -> Iterator[Statement]:
        """The band's rows with their padding, places apart by their remainder by the stride."""
        across, down, names = self.across, self.down, known.names
        stride, extent = across.stride, self.node.type.shape[across.axis]
        most = 1 if down is None else (self.most_rows - 1) * down.stride + down.span + 1
        row = Index(names("p"), most)
        lines: list[ir.Loop] = []
        for phase in across.phases:
            column = Index(names("c"), self.pitch)
            at = list(self.at)
            at[across.axis] = stride * (self.first_column + column) + phase
            if down is not None:
                at[down.axis] = down.stride * self.first_row + row
            start = len(evaluate.prelude)
            value = evaluate(self.node, tuple(at))
            there = (row * stride + phase) * self.pitch + column
            store = ir.Store(self.scratch, there, value)
            # No further than the last tap of the last place, nor than the operand goes.
            last = minimum(
                width + (across.span - phase) // stride,
                (extent - phase - 1) // stride + 1 - self.first_column,
            )
            last = known(last, self.pitch + 1)
            lines.append(ir.Loop(column, 0, last, (*evaluate.prelude[start:], store)))
        last = 1 if down is None else (height - 1) * down.stride + down.span + 1
        last = known(last, row.extent + 1)
        for begin, end, inner in inside_and_ends(row, 0, last, tuple(lines), self._fixed):
            here = known(begin, row.extent + 1), known(end, row.extent + 1)
            staged = [list(self._pieces(line, known, target)) for line in inner]
            rows = _Rows(row, Index(names("p"), row.extent), here)
            if all(isinstance(piece.count, int) for line in staged for piece in line):
                yield rows([s for line in staged for p in line for s in p.along(names, target)])
                continue
            for line in staged:
                yield from _line_in_rows(line, rows, names, target.lanes(32))

    @property
    def _fixed(self) -> list[Index]:
        """What is known before a band is staged."""
        return [i for i in (self.first_row, self.first_column) if isinstance(i, Index)]

    def _pieces(self, line: Statement, known: _Known, target: Target) -> Iterator[_Piece]:
        """What lies before the data of a line, the data, what lies behind it."""
        assert isinstance(line, ir.Loop)
        parts = inside_and_ends(line.index, line.start, line.stop, line.body, self._fixed)
        for begin, end, inner in parts:
            start, count = (known(each, self.pitch + 1) for each in (begin, end - begin))
            asks = len(parts) > 1 and inner is line.body
            lanes = FEW if len(parts) > 1 and not _loads(inner) else target.lanes(32)
            yield _Piece(line.index, start, count, inner, lanes, asks)

    def _computing(
        self,
        body: tuple[Statement, ...],
        names: Names,
        target: Target,
        rows: tuple[Dim, Dim],
        columns: tuple[Dim, Dim],
    ) -> Iterator[Statement]:
        """Blocks of rows, then those that are left, each along its places: a number of places that
        the run knows goes around the rows, a known one is straight code in them."""
        place, (left, width) = self.across.place, columns

        def vectors(*statements: Statement) -> tuple[Statement, ...]:
            return _along_places(place, left, width, statements, names, target)

        if self.down is None:
            yield from vectors(*body)
            return
        (top, height), down = rows, self.down.place
        lines = self._lines(body, target.vector_registers)
        block, single = Index(names("b"), down.extent // PLACES + 1), Index(names("w"), down.extent)
        several = several_places(body, down, top + block * PLACES, names, lines)
        blocks = height // PLACES
        loops = [ir.Loop(block, 0, blocks, several)]
        if height % PLACES != 0:
            singly = substitute_indices(body, {down: single})
            loops.append(ir.Loop(single, top + blocks * PLACES, top + height, singly))
        if isinstance(width, int):
            yield from (replace(loop, body=vectors(*loop.body)) for loop in loops)
        else:
            yield from vectors(*loops)

    def _lines(self, body: Sequence[Statement], registers: int) -> Lines | None:
        """The lines that rows of places share, if taps are repeated in the code and all of their
        filters, a line of elements and the sums fit the registers."""
        assert self.down is not None
        tap = self.down.tap
        needed = self.down.taps * self.across.taps + self.across.taps + PLACES
        is_unrolled = any(
            isinstance(s, ir.Loop) and s.index is tap and s.unroll for s in walk_statements(body)
        )
        if not is_unrolled or needed > registers:
            return None
        return Lines(tap, self.down.stride, self.down.dilation)


@dataclass
class _Known:
    """Names for what a run knows before a band is staged, and computes once."""

    names: Names
    binds: list[Statement] = field(default_factory=list)
    found: dict[Dim, Dim] = field(default_factory=dict)

    def __call__(self, value: Dim, extent: Dim, own: Dim = 0) -> Dim:
        """The value, by a name if it is not one already; by its `own` if it has got one."""
        if isinstance(own, Index):
            self.binds.append(ir.Bind(own, ir.index(value)))
            return own
        if isinstance(value, (int, Index)) or value in self.found:
            return self.found.get(value, value)
        most = upper_bound(value)
        extent = extent if most is None else minimum(extent, max(most, 0) + 1)
        self.found[value] = bind(self.names("e"), extent, ir.index(value), self.binds)
        return self.found[value]


def _along_places(
    loop: Index,
    start: Dim,
    count: Dim,
    body: tuple[Statement, ...],
    names: Names,
    target: Target,
) -> tuple[Statement, ...]:
    """The body for so many places, the last vector a whole one; few places take narrow ones."""
    lanes = target.lanes(32)
    if isinstance(count, int) and 1 < count < lanes:
        has_masks = target.vector_bits == 512
        lanes = 1 << ((count - 1).bit_length() if has_masks else count.bit_length() - 1)
    own = Index(names("v"), loop.extent)
    inner = substitute_indices(body, {loop: own})
    return tuple(ending_whole(ir.Loop(own, start, start + count, inner, lanes), names, lanes))


@dataclass(frozen=True)
class _Piece:
    """Places [start, start + count) of a line of scratch, and what each of them is given.

    `asks`: at every place, since nothing is known of all of them. Where nothing is read, so many
    `lanes` are written at once, the last of them over the end: there is room.
    """

    place: Index
    start: Dim
    count: Dim
    body: tuple[Statement, ...]
    lanes: int
    asks: bool

    def along(self, names: Names, target: Target) -> tuple[Statement, ...]:
        """A number of places that is known."""
        return _along_places(self.place, self.start, self.count, self.body, names, target)

    @property
    def loads(self) -> bool:
        return _loads(self.body)

    def in_rows(self, rows: _Rows, names: Names) -> tuple[Statement, ...]:
        """All of its places, in all of the rows, one vector of them after the other."""
        if self.asks:
            return (rows([ir.Loop(self.place, self.start, self.start + self.count, self.body)]),)
        if self.loads:
            body = (rows(self.body),)
            return any_places(self.place, self.start, self.count, body, names, self.lanes)
        return (self.running_over(rows, names),)

    def running_over(self, rows: _Rows, names: Names, first: int = 0) -> Statement:
        """From its vector number `first` on, all of whole vectors."""
        vectors = ceildiv(self.count, self.lanes)
        vector = Index(names("k"), vectors)
        inner = rows([self.vector(vector * self.lanes, names)])
        return ir.Loop(vector, first, vectors, (inner,))

    def _at(self, place: Dim) -> tuple[Statement, ...]:
        """A place so far behind the first."""
        return substitute_indices(self.body, {self.place: self.start + place})

    def vector(self, first: Dim, names: Names) -> Statement:
        """All lanes from a place on."""
        lane = Index(names("v"), self.lanes)
        return ir.Loop(lane, 0, self.lanes, self._at(first + lane), self.lanes)

    def masked(self, few: Index, rows: _Rows, names: Names) -> Statement:
        """Less than the lanes of a vector."""
        lane = Index(names("v"), self.lanes)
        return ir.Loop(lane, 0, few, (rows(self._at(lane)),), self.lanes)


@dataclass(frozen=True)
class _Rows:
    """Rows [begin, end) of scratch."""

    row: Index
    own: Index
    ends: tuple[Dim, Dim]

    def __call__(self, body: Sequence[Statement]) -> ir.Loop:
        return ir.Loop(self.own, *self.ends, substitute_indices(tuple(body), {self.row: self.own}))


def _line_in_rows(
    pieces: Sequence[_Piece], rows: _Rows, names: Names, lanes: int
) -> Iterator[Statement]:
    """The pieces of one line, in all rows.

    What is no data is written first and may run into the data, or over the line. Row by row the
    first vector of data and the last, which most often are all, then the others, each in all rows:
    a loop over more than a few addresses has some of them read back from the stack, and waits.
    """
    data = [piece for piece in pieces if piece.loads]
    if len(data) != 1 or data[0].asks:
        for piece in pieces:
            yield from piece.in_rows(rows, names)
        return
    (main,) = data
    fills = [piece for piece in pieces if piece is not main]
    for fill in fills:
        most = upper_bound(fill.count)
        if most is None or most > fill.lanes:
            yield fill.running_over(rows, names, 1)
    number, enough = ir.index(main.count), ir.index(lanes)
    begin: list[Statement] = []
    few = bind(names("n"), lanes, number, begin)
    ends = rows(
        [
            *(fill.vector(0, names) for fill in fills),
            *(main.vector(first, names) for first in (0, main.count - lanes)),
        ]
    )
    k = Index(names("k"), ceildiv(main.count, lanes))
    middle = rows([main.vector(k * lanes, names)])
    between = ir.Loop(k, 1, ceildiv(main.count, lanes) - 1, (middle,))
    yield ir.If(number >= enough, (ends, between))
    short = [rows([fill.vector(0, names)]) for fill in fills]
    yield ir.If(number < enough, (*short, *begin, main.masked(few, rows, names)))


def _loads(body: Sequence[Statement]) -> bool:
    values = [v for s in walk_statements(body) for v in statement_values(s)]
    return any(v.op == "load" for v in walk_values(values))


def find_planes(
    operand: Node,
    at: Indices,
    loops: Sequence[Index],
    taps: Sequence[Index],
    loadable: Collection[Node],
    names: Names,
) -> Planes | None:
    """The bands of what windows slide over, if vectors along the last loop run along its places.

    Windows ask for `operand[at]` at the places `loops`, in loops over `taps`.
    """
    along: list[_Along] = []
    for axis, index in enumerate(at):
        asking = [tap for tap in taps if tap in atoms(index)]
        if asking:
            found = _along(axis, index, asking, loops)
            if found is None:
                return None
            along.append(found)
    across = next((a for a in along if a.place is loops[-1]), None)
    others = [a for a in along if a is not across]
    if across is None or len(others) > 1 or len(along) != len(taps):
        return None
    if across.stride == 1 and _is_stored(operand, loadable):
        return None  # it is read straight as it lies
    if not _is_straight(operand, at, across, loadable):
        return None
    count, steps = prod(a.taps for a in along), prod(a.stride for a in along)
    if across.taps > MAX_TAPS or count < OFTEN * steps:
        return None
    return _cut(operand, at, across, others[0] if others else None, names)


def _along(axis: int, index: Dim, asking: Sequence[Index], loops: Sequence[Index]) -> _Along | None:
    """How windows slide along an axis, if they do so by one loop over places and one over taps."""
    places = [i for i in loops if i in atoms(index)]
    if len(asking) != 1 or len(places) != 1:
        return None
    (tap,), (place,) = asking, places
    stride, dilation = linear_coefficient(index, place), linear_coefficient(index, tap)
    if not isinstance(stride, int) or not isinstance(dilation, int):
        return None
    if index != stride * place + dilation * tap or min(stride, dilation) < 1:
        return None
    if not isinstance(tap.extent, int) or stride > MAX_STRIDE:
        return None
    return _Along(axis, place, tap, stride, dilation)


def _is_stored(node: Node, loadable: Collection[Node]) -> bool:
    """Whether the operand is in memory, or a view of what is."""
    while node not in loadable and node.op.is_view:
        node = node.inputs[0]
    return node in loadable


def _is_straight(node: Node, at: Indices, across: _Along, loadable: Collection[Node]) -> bool:
    """Whether all that the operand is made of lies along the places, or does not depend on them."""
    stack = [(node, at)]
    while stack:
        node, at = stack.pop()
        if node not in loadable and not node.op.is_literal:
            stack += [(n, operand_index(node, k, at, no_gather)) for k, n in enumerate(node.inputs)]
            continue
        step = linear_coefficient(flat_index(at, node.type.shape), across.place)
        if step not in (0, across.stride):
            return False
    return True


def _rows_in(room: int, line_bytes: Dim, down: _Along) -> Any:
    """How many rows of places have room for the lines that they read, one at least."""
    fitting = maximum(room // line_bytes - down.span, down.stride) // down.stride
    highest = upper_bound(down.place.extent)
    return fitting if highest is None else minimum(fitting, max(highest, 1))


def _cut(node: Node, at: Indices, across: _Along, down: _Along | None, names: Names) -> Planes:
    """Bands of as many rows and places as stay in the cache."""
    width = upper_bound(across.place.extent)
    columns = ANY_BAND if width is None or width > LONG_BAND else max(1, width)
    pitch = columns + across.span // across.stride + SLACK
    line_bytes = across.stride * node.type.dtype.size_bytes
    rows: Dim = 1
    most, height = 1, 1
    if down is not None:
        used = minimum(columns, across.place.extent) + across.span // across.stride
        rows = _rows_in(BAND_BYTES, maximum(used, 1) * line_bytes, down)
        most = _rows_in(SCRATCH_BYTES, pitch * line_bytes, down)
        if not isinstance(rows, int):
            rows = maximum(minimum(rows, most) // PLACES, 1) * PLACES
            most = max(most // PLACES, 1) * PLACES
        else:
            rows = most = rows if rows < PLACES else rows // PLACES * PLACES
        height = (most - 1) * down.stride + down.span + 1
    first_row: Dim = 0
    if down is not None and rows != down.place.extent:
        first_row = Index(names("f"), down.place.extent)
    first_column = 0 if columns == width else Index(names("f"), across.place.extent)
    scratch = Buffer("s0", node.type.dtype, height * across.stride * pitch, "s")
    return Planes(
        node, at, across, down, rows, most, columns, pitch, first_row, first_column, scratch
    )
