"""The order of the elements of each row: the kernels of `argsort`.

    x [..., n]  -->  int64 [..., n]: stable, NaN last, ascending or descending

A tile is a row. Long rows are sorted digit by digit, the lowest first (a radix sort): a key is an
unsigned number that stands in the order wanted, and a digit eight bits of it. One look at the row
counts all digits; each pass then deals keys and their places to where their digit begins, in
the order in which it finds them, so that equal ones keep theirs. Short rows are sorted side by
side, in the lanes of vectors, by a network of exchanges: counting 256 digits would cost more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semel.ir.expr import (
    Dim,
    Index,
    ceildiv,
    lower_bound,
    minimum,
    product,
    upper_bound,
)
from semel.ir.graph import Node
from semel.ir.target import Target
from semel.ir.types import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)
from semel.kernel import ir
from semel.kernel.ir import Buffer, Local, Statement, Value
from semel.kernel.rewrite import substitute_indices
from semel.lower.lowered import Names, merge_loops, split_rows
from semel.ops.index_maps import flat_index

#: Rows up to this length are sorted side by side; where there are many, up to the other.
SHORT, SHORT_OF_MANY = 64, 512
MANY_ROWS = 8
DIGIT_BITS = 8
_DIGITS = 1 << DIGIT_BITS
_UNSIGNED = {8: UINT8, 16: UINT16, 32: UINT32, 64: UINT64}
#: Bits of a half that are there in the float32 of the same number, from the top.
_USED_BITS = {BFLOAT16: 16, FLOAT16: 24}

_Parts = tuple[Index, list[Buffer], tuple[Statement, ...]]


@dataclass(frozen=True, slots=True)
class _Row:
    """The row of a tile: its length, where its elements lie, and where their order goes."""

    length: Dim
    place: Callable[[Dim], Dim]
    source: Buffer
    order: Buffer
    descending: bool

    def element(self, position: Dim) -> Value:
        return ir.load(self.source, self.place(position))


def lower_argsort(node: Node, buffers: dict[Node, Buffer], names: Names, target: Target) -> _Parts:
    """The tile's index, scratch and body."""
    axis, shape = node.attrs.axis, node.type.shape
    rows = [names.index("i", d) if k != axis else 0 for k, d in enumerate(shape)]

    def place(position: Dim) -> Dim:
        return flat_index(tuple(position if k == axis else i for k, i in enumerate(rows)), shape)

    row = _Row(shape[axis], place, buffers[node.inputs[0]], buffers[node], node.attrs.descending)
    loops = [i for i in rows if isinstance(i, Index)]
    if _is_short(row.length, product(i.extent for i in loops)):
        return _side_by_side(row, loops, names, target)
    scratch, body = _dealt(row, names, target)
    if not loops:
        return Index("tile", 1), scratch, body
    loops, body = merge_loops(loops, body, names)
    tile = Index("tile", product(i.extent for i in loops))
    return tile, scratch, substitute_indices(body, split_rows(tile, loops))


def _is_short(length: Dim, rows: Dim) -> bool:
    """Whether a network is worth it: with few rows its lanes are idle."""
    longest, fewest = upper_bound(length), lower_bound(rows)
    if longest is None or fewest is None:
        return longest is not None and longest <= SHORT
    return longest <= (SHORT if fewest < MANY_ROWS else SHORT_OF_MANY)


def _side_by_side(row: _Row, loops: list[Index], names: Names, target: Target) -> _Parts:
    """A tile is as many rows as a vector has lanes; the last one fewer."""
    lanes = target.vector_bits // 32 if loops else 1
    count = product(i.extent for i in loops)
    tile = Index("tile", ceildiv(count, lanes))
    inside = Index(names("r"), minimum(lanes, count - tile * lanes))
    scratch, body = _exchanged(row, names, inside, lanes)
    if loops:
        body = substitute_indices(body, split_rows(tile * lanes + inside, loops))
    return tile, scratch, body


# ---------------------------------------------------------------- digit by digit


def _dealt(row: _Row, names: Names, target: Target) -> tuple[list[Buffer], tuple[Statement, ...]]:
    """Keys and places go back and forth between two pairs of buffers, the last places out."""
    kind, first_bit = _key_form(row.source.dtype)
    passes = (kind.bits - first_bit) // DIGIT_BITS
    longest = upper_bound(row.length)
    place_kind = INT32 if longest is not None and longest < 1 << 31 else INT64
    keys = [Buffer(f"s{i}", kind, row.length, "s") for i in range(2)]
    places = [Buffer(f"s{i + 2}", place_kind, row.length, "s") for i in range(2)]
    counts = Buffer("s4", place_kind, passes * _DIGITS, "s")

    def digit(key: Value, number: int) -> Value:
        shifted = key >> (first_bit + number * DIGIT_BITS)
        return ir.cast(shifted & (_DIGITS - 1), INT64)

    def counted(number: int, at: Index) -> Dim:
        return number * _DIGITS + at

    one = ir.const(place_kind, 1)
    t, key = Index(names("t"), row.length), Local(names("k"), kind)
    look: list[Statement] = [
        ir.Declare(key, _sort_key(row.element(t), kind, row.descending)),
        ir.Store(keys[0], t, ir.local(key)),
    ]
    for number in range(passes):
        at = Index(names("d"), _DIGITS)
        slot = counted(number, at)
        look.append(ir.Bind(at, digit(ir.local(key), number)))
        look.append(ir.Store(counts, slot, ir.load(counts, slot) + one))
    zero = Index(names("z"), passes * _DIGITS)
    clear = ir.Store(counts, zero, ir.const(place_kind, 0))
    body: list[Statement] = [
        ir.Loop(zero, 0, passes * _DIGITS, (clear,), target.vector_bits // 32),
        ir.Loop(t, 0, row.length, tuple(look)),
    ]
    for number in range(passes):
        body += _begins(counts, number, names, place_kind)
        t, at = Index(names("t"), row.length), Index(names("d"), _DIGITS)
        to, key = Index(names("x"), row.length), Local(names("k"), kind)
        old, new = number % 2, 1 - number % 2
        slot = counted(number, at)
        found = ir.index(t) if number == 0 else ir.cast(ir.load(places[old], t), INT64)
        deal: list[Statement] = [
            ir.Declare(key, ir.load(keys[old], t)),
            ir.Bind(at, digit(ir.local(key), number)),
            ir.Bind(to, ir.cast(ir.load(counts, slot), INT64)),
            ir.Store(counts, slot, ir.load(counts, slot) + one),
        ]
        if number == passes - 1:
            deal.append(ir.Store(row.order, row.place(to), found))
        else:
            deal.append(ir.Store(keys[new], to, ir.local(key)))
            deal.append(ir.Store(places[new], to, ir.cast(found, place_kind)))
        body.append(ir.Loop(t, 0, row.length, tuple(deal)))
    return [*keys, *places, counts], tuple(body)


def _begins(counts: Buffer, number: int, names: Names, kind: DType) -> list[Statement]:
    """Let each count of a digit be where those with that digit begin."""
    total, count = Local(names("a"), kind), Local(names("c"), kind)
    d = Index(names("d"), _DIGITS)
    slot = number * _DIGITS + d
    steps: tuple[Statement, ...] = (
        ir.Declare(count, ir.load(counts, slot)),
        ir.Store(counts, slot, ir.local(total)),
        ir.Assign(total, ir.local(total) + ir.local(count)),
    )
    return [ir.Declare(total, ir.const(kind, 0)), ir.Loop(d, 0, _DIGITS, steps)]


def _key_form(dtype: DType) -> tuple[DType, int]:
    """The dtype of a key, and the first of its bits that is not always the same."""
    if dtype in _USED_BITS:
        return UINT32, 32 - _USED_BITS[dtype]
    return _UNSIGNED[max(dtype.bits, 8)], 0


def _sort_key(value: Value, kind: DType, descending: bool) -> Value:
    """An unsigned number that grows in the order wanted; the largest of all for NaN."""
    dtype = value.dtype
    every = ir.const(kind, -1)
    if not dtype.is_float:
        key = ir.cast(value, kind) if dtype == BOOL else ir.bitcast(value, kind)
        if dtype.kind == "i":
            key = key ^ (1 << (dtype.bits - 1))
        return key ^ every if descending else key
    if dtype.is_half:
        value = ir.cast(value, FLOAT32)
    # Zeros are equal, whatever their sign.
    bits = ir.bitcast(value + 0.0, kind)
    sign = ir.const(kind, 1 << (kind.bits - 1))
    key = bits ^ ir.select((bits & sign).ne(0), every, sign)
    key = key ^ every if descending else key
    return ir.select(value.ne(value), every, key)


# ---------------------------------------------------------------- rows side by side


def _exchanged(
    row: _Row, names: Names, inside: Index, lanes: int
) -> tuple[list[Buffer], tuple[Statement, ...]]:
    """A network of exchanges (a bitonic one), of `lanes` rows at once.

    It does not look at data to know what comes next, so that rows stand in the lanes of vectors.
    Of two equal keys the one that stood first is the smaller: any network is stable then. The
    length is a power of two; what is not there comes last. Each stage reads one pair of buffers and
    writes the other: where a value may stay in its place LLVM stores it under a mask, slowly.
    """
    longest = upper_bound(row.length)
    assert longest is not None
    size = 1 << (max(longest, 1) - 1).bit_length()
    unsigned, _ = _key_form(row.source.dtype)
    kind = _signed(unsigned)
    keys = [Buffer(f"s{i}", kind, size * lanes, "s") for i in range(2)]
    places = [Buffer(f"s{i + 2}", INT32, size * lanes, "s") for i in range(2)]
    every = Index(names("r"), lanes)  # idle ones, too

    def fill(t: Index, key: Value, lane: Index) -> Statement:
        at = t * lanes + lane
        stores = ir.Store(keys[0], at, key), ir.Store(places[0], at, ir.cast(ir.index(t), INT32))
        return ir.Loop(t, 0, t.extent, (ir.Loop(lane, 0, lane.extent, stores, lanes),))

    t, any_t, back = (Index(names("t"), n) for n in (row.length, size, row.length))
    key = _sort_key(row.element(t), unsigned, row.descending)
    largest = ir.const(kind, (1 << (kind.bits - 1)) - 1)
    body: list[Statement] = [
        fill(any_t, largest, every),
        fill(t, ir.bitcast(key ^ (1 << (kind.bits - 1)), kind), inside),
    ]
    stages = _bitonic(size)
    for number, (reach, is_turned) in enumerate(stages):
        old, new = number % 2, 1 - number % 2
        group, i = Index(names("g"), size // reach), Index(names("i"), reach // 2)
        low = group * reach + i
        high = group * reach + (reach - 1) - i if is_turned else low + reach // 2
        at = (low * lanes + every, high * lanes + every)
        steps = _exchange(at, (keys[old], places[old]), (keys[new], places[new]), names)
        inner = ir.Loop(i, 0, reach // 2, (ir.Loop(every, 0, lanes, steps, lanes),))
        body.append(ir.Loop(group, 0, size // reach, (inner,)))
    found = ir.load(places[len(stages) % 2], back * lanes + inside)
    store = ir.Store(row.order, row.place(back), ir.cast(found, INT64))
    out = ir.Loop(inside, 0, inside.extent, (store,), lanes)
    return [*keys, *places], (*body, ir.Loop(back, 0, row.length, (out,)))


def _bitonic(size: int) -> list[tuple[int, bool]]:
    """The stages that sort so many: in groups of how many, and whether the upper half is turned.

    Two sorted halves, one of them turned around, are merged by exchanges half of them apart, then a
    quarter, and so on.
    """
    found: list[tuple[int, bool]] = []
    for merged in range(1, size.bit_length()):
        found.append((1 << merged, True))
        found += [(1 << reach, False) for reach in range(merged - 1, 0, -1)]
    return found


def _exchange(
    at: tuple[Dim, Dim],
    old: tuple[Buffer, Buffer],
    new: tuple[Buffer, Buffer],
    names: Names,
) -> tuple[Statement, ...]:
    """Put the smaller key first, with its place."""
    (first, first_place), (second, second_place) = (
        [Local(names("x"), buffer.dtype) for buffer in old] for _ in at
    )
    pairs = ((first, second), (first_place, second_place))
    declares = [
        ir.Declare(each, ir.load(buffer, i))
        for buffer, pair in zip(old, pairs, strict=True)
        for each, i in zip(pair, at, strict=True)
    ]
    a, b = ir.local(first), ir.local(second)
    swaps = (b < a) | (a.eq(b) & (ir.local(second_place) < ir.local(first_place)))
    stores: list[Statement] = []
    for buffer, pair in zip(new, pairs, strict=True):
        one, two = (ir.local(each) for each in pair)
        stores.append(ir.Store(buffer, at[0], ir.select(swaps, two, one)))
        stores.append(ir.Store(buffer, at[1], ir.select(swaps, one, two)))
    return (*declares, *stores)


def _signed(kind: DType) -> DType:
    return {8: INT8, 16: INT16, 32: INT32, 64: INT64}[kind.bits]
