"""Where an attention reads its keys and values.

    Group --Operands--> statements that stage a block of keys; values of elements

Keys are wanted lane by lane as neighbours, values row by row. What lies that way is read
where it lies; keys that lie in rows are turned in registers on their way to scratch; rows
that lie anywhere (behind a table of blocks, behind conversions that would repeat) are copied
to scratch first. Keys and values that are concatenated (a cache and a new token) are
taken part by part, so that no element asks which part it comes from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semel.ir.expr import Dim, Index, linear_coefficient, maximum, minimum
from semel.ir.graph import Node
from semel.ir.signature import CheckInfo
from semel.ir.types import DType
from semel.kernel import ir
from semel.kernel.ir import Buffer, Local, Statement, Value
from semel.kernel.rewrite import substitute_indices
from semel.lower.evaluate import Evaluator
from semel.lower.lowered import Names
from semel.lower.split_concat import spans_of
from semel.ops.index_maps import Indices, operand_index

#: Keys of one block: with their values they stay in the first-level cache.
KEYS = 64
#: Rows that lie a multiple of this apart compete for the same sets of the cache.
ALIASING_BYTES = 2048

#: An element, and the statements that must stand before it.
Element = tuple[list[Statement], Value]


@dataclass(frozen=True, slots=True)
class Block:
    """A block of keys: its first, and how many of them are seen (from `low` on)."""

    first: Dim
    low: Dim
    count: Dim


@dataclass(frozen=True, slots=True)
class Part:
    """Keys [start, start + size), which all come from one tensor."""

    start: Dim
    size: Dim


@dataclass(frozen=True, slots=True)
class Shared:
    """What the parts of an attention's lowering have in common."""

    buffers: dict[Node, Buffer]
    checks: list[CheckInfo]
    names: Names
    dtype: DType
    lanes: int
    panel: int
    scratch: Callable[[Dim], Buffer]

    def over(self, size: Dim, body: Callable[[Dim], list[Statement]]) -> list[Statement]:
        """A vector loop over a contiguous axis."""
        if size == 1:
            return body(0)
        column = Index(self.names("e"), size)
        return [ir.Loop(column, 0, size, tuple(body(column)), self.panel)]

    def element(self, node: Node, at: Indices) -> Element:
        """An element where it lies, in the accumulators' dtype."""
        evaluate = Evaluator(self.buffers, {}, self.checks, self.names)
        value = ir.cast(evaluate(node, at), self.dtype)
        return evaluate.prelude, value

    def probe(self, node: Node, at: Indices) -> Value | None:
        """The load that an element is, under casts; None if it is anything else."""
        evaluate = Evaluator(self.buffers, {}, [], Names())
        value = evaluate(node, at)
        while value.op == "cast":
            value = value.args[0]
        is_plain = value.op == "load" and not value.args and not evaluate.prelude
        return value if is_plain else None


@dataclass(frozen=True, slots=True)
class _Steps:
    """How far apart neighbouring keys, and neighbours within a row, lie; None: irregularly."""

    key: Dim | None
    inner: Dim | None
    dtype: DType


class Operands:
    """The keys (None if the scores come from elsewhere) and values of one batch entry."""

    def __init__(
        self, shared: Shared, keys: Node | None, values: Node, batch: Indices, *, is_tall: bool
    ) -> None:
        self.shared, self.keys, self.values, self.batch = shared, keys, values, batch
        self.count, self.width = values.type.shape[-2:]
        self.depth: Dim = keys.type.shape[-2] if keys else 0
        self.parts = self._find_parts()
        self.turned: Buffer | None = None
        self.key_rows: Buffer | None = None
        self.value_rows: Buffer | None = None
        self._choose_keys()
        self._choose_values(is_tall)

    def _choose_keys(self) -> None:
        """Read keys where they lie only if neighbours are contiguous."""
        if self.keys is None:
            return
        steps = [self._steps(self._key_at, part) for part in self.parts]
        if any(s is None or s.key is None or s.inner is None for s in steps):
            self.key_rows = self.shared.scratch(KEYS * self.depth)
        if len(steps) > 1 or steps[0] is None or steps[0].key != 1:
            self.turned = self.shared.scratch(self.depth * KEYS)

    def _choose_values(self, is_tall: bool) -> None:
        """Read values where they lie if rows are contiguous, and not converted again and again."""
        for part in self.parts:
            steps = self._steps(self._value_at, part)
            is_straight = steps is not None and steps.key is not None
            if steps is not None and is_straight:
                is_dense = self.width == 1 or steps.inner == 1
                if is_dense and not (is_tall and steps.dtype.bits < self.shared.dtype.bits):
                    continue
            self.value_rows = self.shared.scratch(KEYS * self.width)
            return

    # ------------------------------------------------------------ parts

    def _find_parts(self) -> list[Part]:
        """The parts that keys and values are concatenated of; one if they differ."""
        whole = [Part(0, self.count)]
        key, inner = Index("key", self.count), Index("inner", 2)
        found = [self._parts_of(self.values, (*self.batch, key, inner), key)]
        if self.keys is not None:
            found.append(self._parts_of(self.keys, (*self.batch, inner, key), key))
        return found[0] or whole if all(f == found[0] for f in found) else whole

    def _parts_of(self, node: Node, at: Indices, key: Index) -> list[Part] | None:
        while node not in self.shared.buffers:
            if node.op.parts is not None and at[node.op.parts(node)[0]] == key:
                return [Part(start, size) for start, size in spans_of(node)]
            if not node.op.is_view and not node.op.converts:
                return None
            at, node = operand_index(node, 0, at, _never), node.inputs[0]
        return None

    def _steps(self, at: Callable[[Dim, Dim], tuple[Node, Indices]], part: Part) -> _Steps | None:
        key, inner = Index("key", part.size), Index("inner", 2)
        value = self.shared.probe(*at(part.start + key, inner))
        if value is None:
            return None
        flat = value.data[1]
        return _Steps(linear_coefficient(flat, key), linear_coefficient(flat, inner), value.dtype)

    def _key_at(self, key: Dim, k: Dim) -> tuple[Node, Indices]:
        assert self.keys is not None
        return self.keys, (*self.batch, k, key)

    def _value_at(self, key: Dim, column: Dim) -> tuple[Node, Indices]:
        return self.values, (*self.batch, key, column)

    def _element(
        self, at: Callable[[Dim, Dim], tuple[Node, Indices]], key: Dim, inner: Dim, part: Part
    ) -> Element:
        """An element of row `key`, which is known to lie in `part`."""
        if len(self.parts) == 1:
            return self.shared.element(*at(key, inner))
        inside = Index(self.shared.names("y"), part.size)
        prelude, value = self.shared.element(*at(part.start + inside, inner))
        # A statement for the value to travel in: indices are replaced in statements.
        carrier = ir.Assign(Local("carrier", value.dtype), value)
        moved = substitute_indices([*prelude, carrier], {inside: key - part.start})
        last = moved[-1]
        assert isinstance(last, ir.Assign)
        return list(moved[:-1]), last.value

    # ------------------------------------------------------------ keys

    def stage(self, block: Block) -> list[Statement]:
        """What a block of keys needs in scratch before its scores are made."""
        return [*self._stage_keys(block), *self._stage_values(block)]

    def _stage_keys(self, block: Block) -> list[Statement]:
        """The block's keys, turned: lane by lane neighbouring keys."""
        turned, rows = self.turned, self.key_rows
        if turned is None:
            return []
        if rows is not None:
            lane = Index(self.shared.names("n"), KEYS)

            def from_rows(k: Dim) -> list[Statement]:
                return [ir.Store(turned, k * KEYS + lane, ir.load(rows, lane * self.depth + k))]

            copy = self._stage_rows(rows, self.depth, block, self._key_at)
            return [*copy, self._turn(lane, 0, block.count, from_rows)]
        return [self._turn_part(turned, block, part) for part in self.parts]

    def _turn_part(self, turned: Buffer, block: Block, part: Part) -> Statement:
        lane = Index(self.shared.names("n"), KEYS)

        def copy(k: Dim) -> list[Statement]:
            prelude, value = self._element(self._key_at, block.first + lane, k, part)
            return [*prelude, ir.Store(turned, k * KEYS + lane, value)]

        return self._turn(lane, *self._span(block, part), copy)

    def _span(self, block: Block, part: Part) -> tuple[Dim, Dim]:
        """The part's keys within the block."""
        if len(self.parts) == 1:
            return 0, block.count
        low = minimum(maximum(part.start - block.first, 0), block.count)
        high = minimum(maximum(part.start + part.size - block.first, 0), block.count)
        return low, high

    def _turn(
        self, lane: Index, start: Dim, stop: Dim, copy: Callable[[Dim], list[Statement]]
    ) -> Statement:
        """`copy` for every k, as many at once as there are lanes: a square to turn."""
        names, lanes = self.shared.names, self.shared.lanes
        whole = self.depth // lanes
        number, k = Index(names("k"), whole), Index(names("u"), lanes)
        square = ir.Loop(k, 0, lanes, tuple(copy(number * lanes + k)), unroll=True)
        rest = Index(names("k"), self.depth)
        body = (
            ir.Loop(number, 0, whole, (square,)),
            ir.Loop(rest, whole * lanes, self.depth, tuple(copy(rest))),
        )
        return ir.Loop(lane, start, stop, body, lanes)

    def key(self, block: Block, lane: Dim, k: Dim) -> Element:
        """Element k of the block's key number `lane`."""
        if self.turned is not None:
            return [], ir.load(self.turned, k * KEYS + lane)
        return self.shared.element(*self._key_at(block.first + lane, k))

    # ------------------------------------------------------------ values

    def _stage_values(self, block: Block) -> list[Statement]:
        if self.value_rows is None:
            return []
        return self._stage_rows(self.value_rows, self.width, block, self._value_at)

    def _stage_rows(
        self,
        buffer: Buffer,
        width: Dim,
        block: Block,
        at: Callable[[Dim, Dim], tuple[Node, Indices]],
    ) -> list[Statement]:
        """Rows of keys or values, from wherever they lie, one after the other in scratch."""
        return [self._stage_part(buffer, width, block, at, part) for part in self.parts]

    def _stage_part(
        self,
        buffer: Buffer,
        width: Dim,
        block: Block,
        at: Callable[[Dim, Dim], tuple[Node, Indices]],
        part: Part,
    ) -> Statement:
        key = Index(self.shared.names("t"), KEYS)

        def copy(e: Dim) -> list[Statement]:
            prelude, value = self._element(at, block.first + key, e, part)
            return [*prelude, ir.Store(buffer, key * width + e, value)]

        return ir.Loop(key, *self._span(block, part), tuple(self.shared.over(width, copy)))

    def over_values(
        self, block: Block, column: Dim, body: Callable[[Dim, Value], tuple[Statement, ...]]
    ) -> list[Statement]:
        """`body` for every key of the block that is seen, in order, with its value."""
        if self.value_rows is not None:
            key = Index(self.shared.names("t"), KEYS)
            value = ir.load(self.value_rows, key * self.width + column)
            return [ir.Loop(key, block.low, block.count, body(key, value))]
        result: list[Statement] = []
        for part in self.parts:
            key = Index(self.shared.names("t"), KEYS)
            low, high = self._span(block, part)
            prelude, value = self._element(self._value_at, block.first + key, column, part)
            inner = (*prelude, *body(key, value))
            result.append(ir.Loop(key, maximum(low, block.low), high, inner))
        return result


def _never(node: Node, at: Indices) -> Dim:
    raise AssertionError(f"{node!r} does not read indices from memory")
