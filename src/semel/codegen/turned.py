"""Stores that turn a block around: lanes that lie apart, copies that lie side by side.

    for i in copies unrolled, lanes along r:  b[.. + r*pitch + i] = value(i, r)
    -->  one vector per copy, turned in registers, one straight store per lane

A transposing copy reads along one axis and writes along another. Its lanes would be scattered
one by one; as many copies as a register has lanes make a square of values that shuffles turn
around, log2(n) of them a vector. Where the pitch is the number of copies (three channels of an
image) the block is one run of memory, and shuffles interleave it.
"""

from __future__ import annotations

from semel.codegen.memory import Memory
from semel.codegen.scalars import memory_type, vector_of
from semel.ir.expr import Dim, atoms, linear_coefficient, substitute
from semel.kernel import ir
from semel.kernel.ir import Buffer
from semel.kernel.rewrite import substitute_indices


class Turned(Memory):
    """Unrolled stores with the lanes in another order than memory has them."""

    def _store_turned(self, loop: ir.Loop) -> bool:
        """Store all copies of an unrolled loop at once, if they form a block; else False."""
        store = self._block_store(loop)
        if store is None or self.vector is None:
            return False
        copies, lanes = int(loop.stop) - int(loop.start), self.vector.lanes  # type: ignore[arg-type]
        pitch = linear_coefficient(store.at, self.vector.index)
        assert pitch is not None
        is_square = copies & (copies - 1) == 0 and lanes % copies == 0
        if pitch != copies and not is_square:
            return False
        buffer = store.buffer
        vectors = []
        for i in range(int(loop.start), int(loop.stop)):  # type: ignore[arg-type]
            (copy,) = substitute_indices([store], {loop.index: i})
            assert isinstance(copy, ir.Store)
            value = self._as_vector(self._value(copy.value), buffer.dtype)
            vectors.append(self.scalars.to_memory(self.scope.lines, buffer.dtype, value, lanes))
        self._touch(buffer)
        first = substitute(store.at, {loop.index: loop.start})
        if pitch == copies:
            self._store_interleaved(buffer, first, vectors, lanes)
        else:
            self._store_rows(buffer, first, pitch, vectors, lanes)
        return True

    def _block_store(self, loop: ir.Loop) -> ir.Store | None:
        """The one store of a loop whose copies lie side by side and whose lanes lie apart."""
        if self.vector is None or self.vector.mask is not None or len(loop.body) != 1:
            return None
        store = loop.body[0]
        if not isinstance(store, ir.Store) or store.guard is not None:
            return None
        if store.buffer.access != "w" or linear_coefficient(store.at, loop.index) != 1:
            return None
        varies = any(self.env[a].is_vector for a in atoms(store.at) if a != loop.index)
        pitch = linear_coefficient(store.at, self.vector.index)
        return None if varies or pitch in (None, 0, 1, -1) else store

    def _store_rows(
        self, buffer: Buffer, first: Dim, pitch: Dim, vectors: list[str], lanes: int
    ) -> None:
        """Squares of as many lanes as there are vectors, turned, a store for every lane."""
        count = len(vectors)
        kind = memory_type(buffer.dtype)
        for start in range(0, lanes, count):
            picks = range(start, start + count)
            square = [self._picked(kind, lanes, v, v, list(picks)) for v in vectors]
            for row, text in enumerate(self._turn(kind, square)):
                at = self._pointer_past(buffer, first, pitch, start + row)
                self._store_run(kind, count, text, at, buffer.dtype.size_bytes)

    def _turn(self, kind: str, rows: list[str]) -> list[str]:
        """The transpose of a square: blocks off the diagonal change places, size by size."""
        count, step = len(rows), 1
        while step < count:
            low = [c if not c & step else count + c - step for c in range(count)]
            high = [c + step if not c & step else count + c for c in range(count)]
            turned = list(rows)
            for i in range(count):
                if i & step:
                    continue
                pair = rows[i], rows[i + step]
                turned[i] = self._picked(kind, count, *pair, low)
                turned[i + step] = self._picked(kind, count, *pair, high)
            rows, step = turned, step * 2
        return rows

    def _store_interleaved(
        self, buffer: Buffer, first: Dim, vectors: list[str], lanes: int
    ) -> None:
        """One run of memory: lane 0 of every vector, lane 1 of every vector, ..."""
        kind, count = memory_type(buffer.dtype), len(vectors)
        for part in range(count):
            places = range(part * lanes, (part + 1) * lanes)
            text = vectors[0]
            for which in range(count):
                # Lanes that are not there yet may hold anything: `-1` is poison.
                picks = [
                    p // count if p % count == 0 else -1
                    for p in places
                ] if which == 0 else [
                    lanes + p // count if p % count == which else (j if p % count < which else -1)
                    for j, p in enumerate(places)
                ]  # fmt: skip
                text = self._picked(kind, lanes, text, vectors[which], picks)
            at = self._pointer_past(buffer, first, 1, part * lanes)
            self._store_run(kind, lanes, text, at, buffer.dtype.size_bytes)

    def _picked(self, kind: str, lanes: int, a: str, b: str, picks: list[int]) -> str:
        """Lanes of two vectors by number, those of the second counted on from the first's."""
        if a == b and picks == list(range(lanes)):
            return a
        vector = vector_of(kind, lanes)
        mask = ", ".join("i32 poison" if p < 0 else f"i32 {p}" for p in picks)
        return self.sink.emit(
            self.scope.lines,
            f"shufflevector {vector} {a}, {vector} {b}, <{len(picks)} x i32> <{mask}>",
        )

    def _pointer_past(self, buffer: Buffer, first: Dim, pitch: Dim, count: int) -> str:
        base = self._pointer(buffer, first, self.level)
        if count == 0:
            return base
        offset = self._dim(pitch * count)
        return self.sink.emit(
            self.scope.lines,
            f"getelementptr {memory_type(buffer.dtype)}, ptr {base}, i64 {offset.text}",
        )

    def _store_run(self, kind: str, lanes: int, text: str, pointer: str, align: int) -> None:
        vector = vector_of(kind, lanes)
        self.scope.lines.append(f"  store {vector} {text}, ptr {pointer}, align {align}")
