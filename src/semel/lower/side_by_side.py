"""Short rows, sorted side by side: rows in the lanes of vectors, a network of exchanges for all.

    rows [lanes, n]  --turn, key-->  scratch [n, lanes]  --sweeps-->  sorted  --turn-->  out

Counting 256 digits costs more than this for short rows. What is exchanged is one number wherever
that can be: of values the key, of an order the key with the place below it, so that no two are
equal and any network is stable; keys of 64 bits have their places beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from semel.ir.expr import (
    Dim,
    Index,
    ceildiv,
    linear_coefficient,
    lower_bound,
    minimum,
    product,
    upper_bound,
)
from semel.ir.target import Target
from semel.ir.types import INT32, INT64, DType
from semel.kernel import ir
from semel.kernel.ir import Buffer, Local, Statement, Value
from semel.kernel.rewrite import substitute_indices
from semel.lower.lowered import Names, split_rows
from semel.lower.network import Element, sweep_loops, sweeps_of
from semel.lower.sort_keys import (
    Row,
    as_signed,
    as_unsigned,
    is_stray,
    key_element,
    key_form,
    stray_elements,
)

#: Vectors of elements that a sweep holds, of 16 registers, and of 32 where they are this wide.
HELD, HELD_IF_WIDE = 8, 16
WIDE_BITS = 512
_PLACE_BITS = 32

Parts = tuple[Index, list[Buffer], tuple[Statement, ...]]


def lower_side_by_side(row: Row, loops: list[Index], names: Names, target: Target) -> Parts:
    """A tile is as many rows as a vector has lanes; the last one fewer."""
    form = _Form(row, key_form(row.source.dtype)[0])
    lanes = target.vector_bits // max(form.kinds[0].bits, 32)
    count = product(i.extent for i in loops)
    most = upper_bound(count)
    if most is not None:  # lanes without a row are no use
        lanes = min(lanes, 1 << (max(most, 1) - 1).bit_length())
    if isinstance(row.length, int):  # nor are squares of which a row fills a part
        lanes = min(lanes, 1 << max(row.length, 4).bit_length() - 1)
    return _Rows(form, loops, count, lanes, names, target).parts()


@dataclass(frozen=True, slots=True)
class _Form:
    """How elements stand in the scratch of a network."""

    row: Row
    key: DType

    @property
    def kinds(self) -> tuple[DType, ...]:
        own = as_signed(ir.const(self.key, 0)).dtype
        if self.row.is_values:
            return (own,)
        return (INT64,) if self.is_packed else (own, INT32)

    @property
    def is_packed(self) -> bool:
        """Whether a key and its place are one number."""
        return not self.row.is_values and self.key.bits <= 64 - _PLACE_BITS

    def made(self, value: Value, place: Dim) -> Element:
        key = as_signed(self.row.sort_key(value))
        if self.row.is_values:
            return (key,)
        if not self.is_packed:
            return key, ir.cast(ir.index(place), INT32)
        return ((ir.cast(key, INT64) << _PLACE_BITS) | ir.index(place),)

    def found(self, element: Element) -> Value:
        """What is stored for it."""
        if self.row.is_values:
            dtype = self.row.source.dtype
            return key_element(as_unsigned(element[0]), dtype, self.row.descending)
        if self.is_packed:
            return element[0] & ((1 << _PLACE_BITS) - 1)
        return ir.cast(element[1], INT64)


@dataclass(frozen=True)
class _Rows:
    """The statements of a tile of `lanes` rows."""

    form: _Form
    loops: list[Index]
    count: Dim
    lanes: int
    names: Names
    target: Target

    def parts(self) -> Parts:
        tile = Index("tile", ceildiv(self.count, self.lanes))
        longest = upper_bound(self.form.row.length)
        assert longest is not None
        size = 1 << (max(longest, 1) - 1).bit_length()
        kinds = self.form.kinds
        held = HELD_IF_WIDE if self.target.vector_bits >= WIDE_BITS else HELD
        room = size * self.lanes
        own = [Buffer(f"s{i}", kind, room, "s") for i, kind in enumerate(kinds)]
        raw = Buffer(f"s{len(own)}", self.form.row.source.dtype, room, "s")
        sweeps = sweeps_of(size, held // len(own))
        stray = Local(self.names("f"), INT32)
        body = [
            ir.Declare(stray, ir.const(INT32, 0)),
            *self._of_tile(tile, lambda lane: self._filled(own, raw, size, lane, stray)),
            *(sweep_loops(sweep, size, own, self.lanes, self.names) for sweep in sweeps),
            *self._of_tile(tile, lambda lane: self._stored(own, lane)),
        ]
        if self.form.row.has_strays:
            body.append(ir.If(ir.local(stray).ne(0), self._put_back(tile)))
        return tile, [*own, raw], tuple(body)

    # ------------------------------------------------------------ the rows of a tile

    def _of_tile(
        self, tile: Index, body_of: Callable[[Index], Sequence[Statement]]
    ) -> list[Statement]:
        """What is done for lanes: all of them, or as many as the last tile has rows."""
        whole = Index(self.names("r"), self.lanes)
        all_lanes = self._at_rows(body_of(whole), tile, whole)
        if isinstance(self.count, int) and self.count % self.lanes == 0:
            return list(all_lanes)
        some = Index(self.names("r"), minimum(self.lanes, self.count - tile * self.lanes))
        some_lanes = self._at_rows(body_of(some), tile, some)
        least = lower_bound(self.count)
        if least is not None and upper_bound(self.count) == least < self.lanes:
            return list(some_lanes)
        is_whole = ir.index((tile + 1) * self.lanes) <= ir.index(self.count)
        return [ir.If(is_whole, all_lanes), ir.If(ir.op("not", is_whole), some_lanes)]

    def _at_rows(
        self, body: Sequence[Statement], tile: Index, lane: Index
    ) -> tuple[Statement, ...]:
        if not self.loops:
            return tuple(body)
        return substitute_indices(body, split_rows(tile * self.lanes + lane, self.loops))

    def _put_back(self, tile: Index) -> tuple[Statement, ...]:
        some = Index(self.names("r"), minimum(self.lanes, self.count - tile * self.lanes))
        body = stray_elements(self.form.row, self.names)
        return (ir.Loop(some, 0, some.extent, self._at_rows(body, tile, some)),)

    # ------------------------------------------------------------ in and out

    def _filled(
        self, own: Sequence[Buffer], raw: Buffer, size: int, lane: Index, stray: Local
    ) -> list[Statement]:
        """Rows as they lie into `raw`, their keys from there; what is not there comes last."""
        row = self.form.row

        def copied(t: Dim) -> Statement:
            return ir.Store(raw, t * self.lanes + lane, row.element(t))

        t = Index(self.names("t"), row.length)
        value = ir.load(raw, t * self.lanes + lane)
        keyed = self._put(own, t, lane, self.form.made(value, t))
        if row.has_strays:
            found = ir.cast(is_stray(value), INT32)
            keyed.append(ir.Reduce((stray,), "or", (found,)))
        body = [
            self._by_squares(lane, copied),
            ir.Loop(t, 0, t.extent, (ir.Loop(lane, 0, lane.extent, tuple(keyed), self.lanes),)),
        ]
        most = tuple(ir.const(b.dtype, b.dtype.highest) for b in own)
        if lane.extent != self.lanes:
            return [self._filled_with(most, own, 0, size), *body]
        return [*body, self._filled_with(most, own, row.length, size)]

    def _filled_with(
        self, value: Element, own: Sequence[Buffer], start: Dim, size: int
    ) -> Statement:
        t, every = Index(self.names("t"), size), Index(self.names("r"), self.lanes)
        stores = tuple(self._put(own, t, every, value))
        return ir.Loop(t, start, size, (ir.Loop(every, 0, self.lanes, stores, self.lanes),))

    def _put(self, own: Sequence[Buffer], t: Dim, lane: Index, element: Element) -> list[Statement]:
        at = t * self.lanes + lane
        return [ir.Store(b, at, v) for b, v in zip(own, element, strict=True)]

    def _stored(self, own: Sequence[Buffer], lane: Index) -> list[Statement]:
        row = self.form.row

        def stored(t: Dim) -> Statement:
            element = tuple(ir.load(b, t * self.lanes + lane) for b in own)
            return ir.Store(row.out, row.place(t), self.form.found(element))

        return [self._by_squares(lane, stored)]

    def _by_squares(self, lane: Index, step: Callable[[Dim], Statement]) -> Statement:
        """`step` for every element of the rows, as many at once as there are lanes where rows
        lie straight: squares that are turned in registers."""
        length = self.form.row.length
        t = Index(self.names("t"), length)
        probe = Index(self.names("t"), length)
        is_straight = linear_coefficient(self.form.row.place(probe), probe) == 1
        if not is_straight or self.lanes == 1:
            return ir.Loop(t, 0, length, (ir.Loop(lane, 0, lane.extent, (step(t),), self.lanes),))
        whole = length // self.lanes
        number, k = Index(self.names("k"), whole), Index(self.names("u"), self.lanes)
        square = ir.Loop(k, 0, self.lanes, (step(number * self.lanes + k),), unroll=True)
        body = (
            ir.Loop(number, 0, whole, (square,)),
            ir.Loop(t, whole * self.lanes, length, (step(t),)),
        )
        return ir.Loop(lane, 0, lane.extent, body, self.lanes)
