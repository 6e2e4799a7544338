"""The order of the elements of each row, and the rows in it: the kernels of `argsort` and `sort`.

    x [..., n]  --argsort-->  int64 [..., n]     --sort-->  x in order
    stable, NaN last, ascending or descending

A tile is a row. Long rows are sorted digit by digit, the lowest first (a radix sort): a key is an
unsigned number that stands in the order wanted, and a digit eight bits of it. One look at the row
counts all digits; each pass then deals keys, with their places where an order is asked for, to
where their digit begins, in the order in which it finds them, so that equal ones keep theirs.
Short rows are sorted side by side (`semel.lower.side_by_side`).
"""

from __future__ import annotations

from semel.ir.expr import Dim, Index, lower_bound, product, upper_bound
from semel.ir.graph import Node
from semel.ir.target import Target
from semel.ir.types import INT32, INT64, DType
from semel.kernel import ir
from semel.kernel.ir import Buffer, Local, Statement, Value
from semel.kernel.rewrite import substitute_indices
from semel.lower.lowered import Names, merge_loops, split_rows
from semel.lower.side_by_side import WIDE_BITS, Parts, lower_side_by_side
from semel.lower.sort_keys import Row, is_stray, key_element, key_form, stray_elements
from semel.ops.index_maps import flat_index

#: Rows up to this length are sorted side by side; where there may be many, and where there are.
SHORT, SHORT_IF_MANY, SHORT_OF_MANY = 128, 512, 4096
MANY_ROWS = 8
#: A network is as long as a row may be; for long ones a row has to be a part of that in every run.
MOST_PADDING = 4
#: The longest row of keys that have their places beside them, without a minimum of 64 bits.
SHORT_OF_PAIRS = 256
DIGIT_BITS = 8
_DIGITS = 1 << DIGIT_BITS


def lower_sort(node: Node, buffers: dict[Node, Buffer], names: Names, target: Target) -> Parts:
    """The tile's index, scratch and body."""
    axis, shape = node.attrs.axis, node.type.shape
    rows = [names.index("i", d) if k != axis else 0 for k, d in enumerate(shape)]

    def place(position: Dim) -> Dim:
        return flat_index(tuple(position if k == axis else i for k, i in enumerate(rows)), shape)

    is_values, is_descending = node.op.name == "sort", node.attrs.descending
    source, out = buffers[node.inputs[0]], buffers[node]
    row = Row(shape[axis], place, source, out, is_descending, is_values)
    loops = [i for i in rows if isinstance(i, Index)]
    if _is_short(row, product(i.extent for i in loops), target):
        return lower_side_by_side(row, loops, names, target)
    scratch, body = _dealt(row, names, target)
    if not loops:
        return Index("tile", 1), scratch, body
    loops, body = merge_loops(loops, body, names)
    tile = Index("tile", product(i.extent for i in loops))
    return tile, scratch, substitute_indices(body, split_rows(tile, loops))


def _is_short(row: Row, rows: Dim, target: Target) -> bool:
    """Whether a network is worth it: with few rows its lanes are idle."""
    longest, fewest, most = upper_bound(row.length), lower_bound(rows), upper_bound(rows)
    if longest is None:
        return False
    limit = SHORT_IF_MANY if most is None or most >= MANY_ROWS else SHORT
    is_as_long = (lower_bound(row.length) or 0) * MOST_PADDING >= longest
    if fewest is not None and fewest >= MANY_ROWS and is_as_long:
        limit = SHORT_OF_MANY
    has_pairs = not row.is_values and key_form(row.source.dtype)[0].bits == 64
    if has_pairs and target.vector_bits < WIDE_BITS:
        limit = min(limit, SHORT_OF_PAIRS)
    return longest <= limit


# ---------------------------------------------------------------- digit by digit


def _dealt(row: Row, names: Names, target: Target) -> tuple[list[Buffer], tuple[Statement, ...]]:
    """Keys and places go back and forth between two pairs of buffers, the last places out.

    Of a row whose values alone are asked for there are no places, and the last keys go out.
    """
    kind, first_bit = key_form(row.source.dtype)
    passes = -(-(kind.bits - first_bit) // DIGIT_BITS)
    longest = upper_bound(row.length)
    place_kind = INT32 if longest is not None and longest < 1 << 31 else INT64
    keys = [Buffer(f"s{i}", kind, row.length, "s") for i in range(2)]
    counts = Buffer("s2", place_kind, passes * _DIGITS, "s")
    places = [
        Buffer(f"s{i + 3}", place_kind, row.length, "s") for i in range(0 if row.is_values else 2)
    ]

    def digit(key: Value, number: int) -> Value:
        shifted = key >> (first_bit + number * DIGIT_BITS)
        return ir.cast(shifted & (_DIGITS - 1), INT64)

    def counted(number: int, at: Index) -> Dim:
        return number * _DIGITS + at

    one = ir.const(place_kind, 1)
    t, stray, lanes = (
        Index(names("t"), row.length),
        Local(names("f"), INT32),
        target.vector_bits // 32,
    )
    made: list[Statement] = [ir.Store(keys[0], t, row.sort_key(row.element(t)))]
    if row.has_strays:
        made.append(ir.Reduce((stray,), "or", (ir.cast(is_stray(row.element(t)), INT32),)))
    keyed = ir.Loop(t, 0, row.length, tuple(made), lanes)
    t, key = Index(names("t"), row.length), Local(names("k"), kind)
    look: list[Statement] = [ir.Declare(key, ir.load(keys[0], t))]
    for number in range(passes):
        at = Index(names("d"), _DIGITS)
        slot = counted(number, at)
        look.append(ir.Bind(at, digit(ir.local(key), number)))
        look.append(ir.Store(counts, slot, ir.load(counts, slot) + one))
    zero = Index(names("z"), passes * _DIGITS)
    clear = ir.Store(counts, zero, ir.const(place_kind, 0))
    body: list[Statement] = [
        ir.Declare(stray, ir.const(INT32, 0)),
        ir.Loop(zero, 0, passes * _DIGITS, (clear,), lanes),
        keyed,
        ir.Loop(t, 0, row.length, tuple(look)),
    ]
    for number in range(passes):
        body += _begins(counts, number, names, place_kind)
        t, at = Index(names("t"), row.length), Index(names("d"), _DIGITS)
        to, key = Index(names("x"), row.length), Local(names("k"), kind)
        old, new = number % 2, 1 - number % 2
        slot = counted(number, at)
        deal: list[Statement] = [
            ir.Declare(key, ir.load(keys[old], t)),
            ir.Bind(at, digit(ir.local(key), number)),
            ir.Bind(to, ir.cast(ir.load(counts, slot), INT64)),
            ir.Store(counts, slot, ir.load(counts, slot) + one),
        ]
        is_last = number == passes - 1
        if row.is_values and is_last:
            element = key_element(ir.local(key), row.source.dtype, row.descending)
            deal.append(ir.Store(row.out, row.place(to), element))
        elif not is_last:
            deal.append(ir.Store(keys[new], to, ir.local(key)))
        if not row.is_values:
            found = ir.index(t) if number == 0 else ir.cast(ir.load(places[old], t), INT64)
            deal.append(
                ir.Store(row.out, row.place(to), found)
                if is_last
                else ir.Store(places[new], to, ir.cast(found, place_kind))
            )
        body.append(ir.Loop(t, 0, row.length, tuple(deal)))
    if row.has_strays:
        body.append(ir.If(ir.local(stray).ne(0), stray_elements(row, names)))
    return [*keys, counts, *places], tuple(body)


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
