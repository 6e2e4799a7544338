"""Stores that turn a block around: lanes that lie apart, copies that lie side by side.

    for i in copies unrolled, lanes along r:  b[.. + r*pitch + i] = value(i, r)
    -->  one vector per copy, turned in registers, one straight store per lane

A transposing copy reads along one axis and writes along another. Its lanes would be scattered
one by one; as many copies as a register has lanes make a square of values that shuffles turn
around, log2(n) of them a vector. Fewer copies (the 6 rows of a block of a contraction) are the
first of the next larger square, of which those lanes are stored that are there. Where the pitch is
the number of copies (three channels of an image) the block is one run of memory, and shuffles
interleave it, a copy at a time, if it is no square: of that it would be n of them a vector.
"""

from __future__ import annotations

from semel.codegen.cpu.shuffles import Shuffles
from semel.codegen.scalar.conversions import Conversions
from semel.codegen.scalar.frame import Frame, Ref
from semel.codegen.scalar.indices import Indices
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import memory_type
from semel.codegen.scalar.values import Values
from semel.codegen.vector.lane_memory import LaneMemory
from semel.codegen.vector.vector_lanes import VectorLanes
from semel.ir.expr import Dim, Index, atoms, linear_coefficient, substitute
from semel.kernel import ir
from semel.kernel.ir import Buffer, Value, walk_values
from semel.kernel.rewrite import substitute_indices


class TurnedStores:
    """A `LoopRule`: unrolled stores with the lanes in another order than memory has them."""

    def __init__(
        self,
        frame: Frame,
        out: Instructions,
        conversions: Conversions,
        indices: Indices,
        lanes: VectorLanes,
        memory: LaneMemory,
        values: Values,
        shuffles: Shuffles,
    ) -> None:
        self.frame, self.out, self.conversions, self.indices = frame, out, conversions, indices
        self.lanes, self.memory, self.values, self.shuffles = lanes, memory, values, shuffles

    def rule(self, loop: ir.Loop) -> bool:
        """Store all copies of an unrolled loop at once, if they form a block; else False."""
        store = self._block_store(loop)
        if store is None:
            return False
        vector = self.lanes.opened
        start, stop = int(loop.start), int(loop.stop)  # type: ignore[arg-type]
        copies, lanes = stop - start, vector.lanes
        pitch = linear_coefficient(store.at, vector.index)
        assert pitch is not None
        kept = lanes if store.guard is None else self._first_lanes(store.guard)
        is_run = pitch == copies and store.guard is None
        if kept is None or (not is_run and lanes % _square(copies)):
            return False
        buffer = store.buffer
        vectors = []
        for i in range(start, stop):
            copy = self._copy(store, loop.index, i)
            value = self.lanes.spread(self.values.value(copy.value), buffer.dtype)
            lines = self.frame.lines
            vectors.append(self.conversions.to_memory(lines, buffer.dtype, value, lanes))
        self.frame.touch(buffer)
        first = substitute(store.at, {loop.index: loop.start})
        if is_run and copies != lanes:
            self._store_interleaved(buffer, first, vectors, lanes)
        else:
            self._store_rows(buffer, first, pitch, vectors, kept)
        return True

    def _copy(self, store: ir.Store, index: Index, number: int) -> ir.Store:
        """One of the copies.

        What it adds to addresses is added last, since a copy is known here and no sooner: there
        is one address for all of them, and not one for each in every loop around.
        """
        own: Dim = number
        if all(v.op != "local" or not v.data[1] for v in walk_values([store.value])):
            own = Index(f"{index.name}_{number}", index.extent)
            self.frame.env[own] = Ref(str(number), False, self.frame.level)
        (copy,) = substitute_indices([store], {index: own})
        assert isinstance(copy, ir.Store)
        return copy

    def _block_store(self, loop: ir.Loop) -> ir.Store | None:
        """The one store of a loop whose copies lie side by side and whose lanes lie apart."""
        vector = self.lanes.vector
        if vector is None or vector.mask is not None or len(loop.body) != 1:
            return None
        store = loop.body[0]
        if not isinstance(store, ir.Store):
            return None
        if store.buffer.access not in ("w", "s") or linear_coefficient(store.at, loop.index) != 1:
            return None
        env = self.frame.env
        varies = any(env[a].is_vector for a in atoms(store.at) if a != loop.index)
        pitch = linear_coefficient(store.at, vector.index)
        return None if varies or pitch in (None, 0, 1, -1) else store

    def _first_lanes(self, guard: Value) -> int | None:
        """How many lanes are stored where a guard is known to keep just the first of them."""
        vector = self.lanes.opened
        is_one = vector.start == 0 and vector.index.extent == vector.lanes
        is_known = all(v.op in ("index", "const") for v in guard.args)
        if guard.op != "lt" or not is_one or not is_known:
            return None
        least, limit = (v.data for v in guard.args)
        count = limit - least + vector.index
        return min(max(count, 0), vector.lanes) if isinstance(count, int) else None

    def _store_rows(
        self, buffer: Buffer, first: Dim, pitch: Dim, vectors: list[str], kept: int
    ) -> None:
        """Squares of as many lanes as there are vectors, turned; a store for each of the first."""
        count, element, lanes = len(vectors), memory_type(buffer.dtype), self.lanes.opened.lanes
        size = _square(count)
        for start in range(0, kept, size):
            picks = list(range(start, start + size))
            square = [self.shuffles.pick(element, lanes, v, v, picks) for v in vectors]
            square += ["poison"] * (size - count)
            for row, text in enumerate(self.shuffles.turn(element, square)[: kept - start]):
                own = self.shuffles.pick(element, size, text, text, list(range(count)))
                at = self._pointer_past(buffer, first, pitch, start + row)
                self._store_run(buffer, count, own, at)

    def _store_interleaved(
        self, buffer: Buffer, first: Dim, vectors: list[str], lanes: int
    ) -> None:
        """One run of memory: lane 0 of every vector, lane 1 of every vector, ..."""
        element, count = memory_type(buffer.dtype), len(vectors)
        for part in range(count):
            places = range(part * lanes, (part + 1) * lanes)
            text = vectors[0]
            for which in range(count):
                # Lanes that are not there yet may hold anything.
                picks = [
                    p // count if p % count == 0 else -1
                    for p in places
                ] if which == 0 else [
                    lanes + p // count if p % count == which else (j if p % count < which else -1)
                    for j, p in enumerate(places)
                ]  # fmt: skip
                text = self.shuffles.pick(element, lanes, text, vectors[which], picks)
            at = self._pointer_past(buffer, first, 1, part * lanes)
            self._store_run(buffer, lanes, text, at)

    def _pointer_past(self, buffer: Buffer, first: Dim, pitch: Dim, count: int) -> str:
        base = self.indices.pointer(buffer, first)
        if count == 0:
            return base
        offset = self.indices.dim(pitch * count)
        kind = memory_type(buffer.dtype)
        return self.out.emit(
            self.frame.lines, f"getelementptr {kind}, ptr {base}, i64 {offset.text}"
        )

    def _store_run(self, buffer: Buffer, lanes: int, text: str, pointer: str) -> None:
        element, align = memory_type(buffer.dtype), buffer.dtype.size_bytes
        self.memory.contiguous_store(element, lanes, text, pointer, align, None)


def _square(count: int) -> int:
    """The side of the smallest square that holds so many vectors and that halves can turn."""
    return 1 << (count - 1).bit_length()
