"""Loads and stores with lanes: contiguous vectors, gathers and scatters, guards and masks.

    (Buffer, Dim) --> instructions that touch memory

Neighbouring lanes one element apart are one vector access; lanes past the end of a
loop, or where a guard is false, touch no memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from semel.codegen.scalar.conversions import Conversions
from semel.codegen.scalar.frame import Frame, Ref
from semel.codegen.scalar.indices import Indices
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import mangle, memory_type, vector_of
from semel.codegen.scalar.scalar_memory import ScalarMemory
from semel.codegen.vector.vector_lanes import VectorLanes
from semel.errors import InternalError
from semel.ir.expr import Dim, lower_bound
from semel.kernel.ir import Buffer, Value

#: Elements from one lane to the next up to which vectors are loaded whole and lanes are picked.
MAX_SPACING = 4


class LaneMemory:
    """`Memory` for loops with lanes; what has none goes to the scalar part."""

    def __init__(
        self,
        frame: Frame,
        out: Instructions,
        conversions: Conversions,
        indices: Indices,
        lanes: VectorLanes,
        plain: ScalarMemory,
    ) -> None:
        self.frame, self.out, self.conversions = frame, out, conversions
        self.indices, self.lanes, self.plain = indices, lanes, plain

    # ------------------------------------------------------------ loads

    def load(self, value: Value, guard: Ref | None, other: Ref | None) -> Ref:
        if self.lanes.is_varying(value.data[1]) or (guard is not None and guard.is_vector):
            return self._vector_load(value, guard, other)
        return self.plain.load(value, guard, other)

    def word(self, value: Value) -> Ref:
        if self.lanes.is_varying(value.data[1]):
            raise InternalError("emit", f"lanes of {self.frame.name} read different words.")
        return self.plain.word(value)

    def _vector_load(self, value: Value, guard: Ref | None, other: Ref | None) -> Ref:
        buffer, at = value.data
        lanes, lines = self.lanes.opened.lanes, self.frame.lines
        element, align = memory_type(buffer.dtype), buffer.dtype.size_bytes
        stride = self.lanes.stride(at)
        if stride in (1, -1):
            mask = self._load_mask(buffer, guard)
            first = at if stride == 1 else at - (lanes - 1)
            if guard is None:
                pointer = self.indices.pointer(buffer, first)
            else:
                pointer = self.inside(buffer, first, self._is_any(guard))
            if stride == -1:
                mask = self._reverse(mask, "i1") if mask else None
            raw = self.contiguous_load(element, lanes, pointer, align, mask)
            if stride == -1:
                raw = self._reverse(raw, element)
        elif self._is_whole(guard) and stride is not None and 1 < stride <= MAX_SPACING:
            raw = self._spaced_load(buffer, at, stride, guard)
        elif self._is_whole(guard) and (repeats := self.lanes.repeats(at)) is not None:
            raw = self._repeated_load(buffer, at, *repeats, guard)
        elif guard is None and (switch := self.lanes.switch(at)) is not None:
            raw = self._switched_load(buffer, at, switch)
        else:
            raw = self._gather(buffer, at, self.lanes.mask(guard), lanes)
        text = self.conversions.from_memory(lines, buffer.dtype, raw, lanes)
        if guard is not None and other is not None:
            found = Ref(text, True, self.frame.level)
            text = self.lanes.choose(lines, value.dtype, guard, found, other)
        return Ref(text, True, self.frame.level)

    def _is_whole(self, guard: Ref | None) -> bool:
        """Whether all lanes are loaded, or none."""
        return self.lanes.opened.mask is None and (guard is None or not guard.is_vector)

    def _spaced_load(self, buffer: Buffer, at: Dim, stride: int, guard: Ref | None) -> str:
        """Every `stride`-th element, picked from vectors that cover them all.

        The last of these ends with the last element wanted: what lies behind may be no memory.
        """
        lanes = self.lanes.opened.lanes
        starts = [*(k * lanes for k in range(stride - 1)), (stride - 1) * (lanes - 1)]
        wanted = [lane * stride for lane in range(lanes)]
        return self._picked(buffer, at, starts, lanes, wanted, guard)

    def _repeated_load(
        self, buffer: Buffer, at: Dim, count: int, before: int, guard: Ref | None
    ) -> str:
        """Every element `count` times; that of lane 0 has had `before` of them already."""
        lanes = self.lanes.opened.lanes
        starts = [0, 1] if before else [0]
        wanted = [(before + lane) // count for lane in range(lanes)]
        return self._picked(buffer, at, starts, lanes // count, wanted, guard)

    def _picked(
        self,
        buffer: Buffer,
        at: Dim,
        starts: Sequence[int],
        size: int,
        wanted: Sequence[int],
        guard: Ref | None,
    ) -> str:
        """One element for every lane, so many behind `at`, from vectors of `size` elements.

        These begin at `starts`, the first of them at 0; more than two are as long as the result.
        """
        lines, element, align = self.frame.lines, memory_type(buffer.dtype), buffer.dtype.size_bytes
        kind = vector_of(element, size)
        mask = None if guard is None else self.out.splat(lines, "i1", guard.text, size)
        parts = []
        for start in starts:
            if guard is None:
                pointer = self.indices.pointer(buffer, at + start)
            else:
                pointer = self.inside(buffer, at + start, guard.text)
            parts.append(self.contiguous_load(element, size, pointer, align, mask))
        found = parts[0]
        places = {lane: place for lane, place in enumerate(wanted) if place < size}
        for start, text in list(zip(starts, parts, strict=True))[1:] or [(0, found)]:
            for lane, place in enumerate(wanted):
                if lane not in places and start <= place < start + size:
                    places[lane] = size + place - start
            picks = ", ".join(
                f"i32 {places[lane]}" if lane in places else "i32 poison"
                for lane in range(len(wanted))
            )
            found = self.out.emit(
                lines,
                f"shufflevector {kind} {found}, {kind} {text}, <{len(wanted)} x i32> <{picks}>",
            )
            places = {lane: lane for lane in places}
        return found

    def _switched_load(self, buffer: Buffer, at: Dim, switch: Dim) -> str:
        """Lanes side by side where the switch is 1; where it is 0 the first one, for all.

        One masked load does both: of the first lane alone, which then is repeated.
        """
        lanes, lines = self.lanes.opened.lanes, self.frame.lines
        element, align = memory_type(buffer.dtype), buffer.dtype.size_bytes
        kind, bits = vector_of(element, lanes), f"<{lanes} x i1>"
        every = self.lanes.mask(None) or self.out.raw("i1", "true", lanes)
        first = "<" + ", ".join(["i1 true", *["i1 false"] * (lanes - 1)]) + ">"
        apart = self.out.emit(lines, f"icmp ne i64 {self.indices.dim(switch).text}, 0")
        mask = self.out.emit(lines, f"select i1 {apart}, {bits} {every}, {bits} {first}")
        raw = self.contiguous_load(element, lanes, self.indices.pointer(buffer, at), align, mask)
        repeated = self.out.emit(
            lines,
            f"shufflevector {kind} {raw}, {kind} poison, <{lanes} x i32> zeroinitializer",
        )
        return self.out.emit(lines, f"select i1 {apart}, {kind} {raw}, {kind} {repeated}")

    def _load_mask(self, buffer: Buffer, guard: Ref | None) -> str | None:
        """The lanes to load. Where the guard is false for all of them it may be any vector."""
        size = lower_bound(buffer.size)
        if guard is None or guard.is_vector or size is None or size < self.lanes.opened.lanes:
            return self.lanes.mask(guard)
        return self.lanes.mask(None)

    def _is_any(self, guard: Ref) -> str:
        """Whether some lane is to be loaded, as far as the guard says."""
        if not guard.is_vector:
            return guard.text
        lanes, lines = self.lanes.opened.lanes, self.frame.lines
        bits = self.out.emit(lines, f"bitcast <{lanes} x i1> {guard.text} to i{lanes}")
        return self.out.emit(lines, f"icmp ne i{lanes} {bits}, 0")

    def inside(self, buffer: Buffer, at: Dim, is_any: str) -> str:
        """The address of an element, or that of the buffer where no lane is to be loaded.

        A masked load that touches a page which is not there costs hundreds of cycles, though it
        loads nothing; with one lane to load its address is at most a vector away from the buffer.
        (LLVM 22.1 fails an assertion of its own where the pointers themselves are selected.)
        """
        lines, kind = self.frame.lines, memory_type(buffer.dtype)
        offset = self.indices.dim(at).text
        safe = self.out.emit(lines, f"select i1 {is_any}, i64 {offset}, i64 0")
        base = self.frame.pointers[buffer]
        return self.out.emit(lines, f"getelementptr {kind}, ptr {base}, i64 {safe}")

    def contiguous_load(
        self, element: str, lanes: int, pointer: str, align: int, mask: str | None
    ) -> str:
        """Load one vector side by side; lanes that the mask drops are zero."""
        lines, kind = self.frame.lines, vector_of(element, lanes)
        if mask is None:
            return self.out.emit(lines, f"load {kind}, ptr {pointer}, align {align}")
        name = f"llvm.masked.load.{mangle(element, lanes)}.p0"
        self.out.declarations[name] = f"declare {kind} @{name}(ptr, <{lanes} x i1>, {kind})"
        return self.out.emit(
            lines,
            f"call {kind} @{name}(ptr align {align} {pointer}, <{lanes} x i1> {mask}, "
            f"{kind} zeroinitializer)",
        )

    def _gather(self, buffer: Buffer, at: Dim, mask: str | None, lanes: int) -> str:
        element = memory_type(buffer.dtype)
        kind = vector_of(element, lanes)
        pointers = self._pointers(buffer, at, lanes)
        everywhere = self.out.raw("i1", "true", lanes)
        name = f"llvm.masked.gather.{mangle(element, lanes)}.v{lanes}p0"
        self.out.declarations[name] = (
            f"declare {kind} @{name}(<{lanes} x ptr>, <{lanes} x i1>, {kind})"
        )
        return self.out.emit(
            self.frame.lines,
            f"call {kind} @{name}(<{lanes} x ptr> align {buffer.dtype.size_bytes} {pointers}, "
            f"<{lanes} x i1> {mask or everywhere}, {kind} zeroinitializer)",
        )

    # ------------------------------------------------------------ stores

    def store(self, buffer: Buffer, at: Dim, ref: Ref, guard: Ref | None) -> None:
        vector = self.lanes.vector
        if vector is None:
            self.plain.store(buffer, at, ref, guard)
            return
        lines, lanes = self.frame.lines, vector.lanes
        if not self.lanes.is_varying(at):
            raise InternalError("emit", f"lanes of {self.frame.name} store to one address.")
        value = self.lanes.spread(ref, buffer.dtype)
        text = self.conversions.to_memory(lines, buffer.dtype, value, lanes)
        element, align = memory_type(buffer.dtype), buffer.dtype.size_bytes
        if vector.is_single and guard is None:
            # LLVM (22.1) turns a masked, truncating store of one known lane into a store of
            # the wide element, which overwrites the neighbour.
            kind = vector_of(element, lanes)
            first = self.out.emit(lines, f"extractelement {kind} {text}, i32 0")
            pointer = self.indices.pointer(buffer, at)
            lines.append(f"  store {element} {first}, ptr {pointer}, align {align}")
            return
        mask = self.lanes.mask(guard)
        stride = self.lanes.stride(at)
        if stride in (1, -1):
            pointer = self.indices.pointer(buffer, at)
            if stride == -1:
                pointer = self._back(buffer, pointer)
                text = self._reverse(text, element)
                mask = self._reverse(mask, "i1") if mask else None
            self.contiguous_store(element, lanes, text, pointer, align, mask)
        else:
            self._scatter(buffer, at, text, mask, lanes)

    def contiguous_store(
        self, element: str, lanes: int, text: str, pointer: str, align: int, mask: str | None
    ) -> None:
        """Store one vector side by side, or the lanes of it that the mask keeps."""
        lines, kind = self.frame.lines, vector_of(element, lanes)
        if mask is None:
            lines.append(f"  store {kind} {text}, ptr {pointer}, align {align}")
            return
        name = f"llvm.masked.store.{mangle(element, lanes)}.p0"
        self.out.declarations[name] = f"declare void @{name}({kind}, ptr, <{lanes} x i1>)"
        lines.append(
            f"  call void @{name}({kind} {text}, ptr align {align} {pointer}, "
            f"<{lanes} x i1> {mask})"
        )

    def _scatter(self, buffer: Buffer, at: Dim, text: str, mask: str | None, lanes: int) -> None:
        element, align = memory_type(buffer.dtype), buffer.dtype.size_bytes
        kind = vector_of(element, lanes)
        pointers = self._pointers(buffer, at, lanes)
        everywhere = self.out.raw("i1", "true", lanes)
        name = f"llvm.masked.scatter.{mangle(element, lanes)}.v{lanes}p0"
        types = f"{kind}, <{lanes} x ptr>, <{lanes} x i1>"
        self.out.declarations[name] = f"declare void @{name}({types})"
        self.frame.lines.append(
            f"  call void @{name}({kind} {text}, <{lanes} x ptr> align {align} {pointers}, "
            f"<{lanes} x i1> {mask or everywhere})"
        )

    # ------------------------------------------------------------ addresses

    def _pointers(self, buffer: Buffer, at: Dim, lanes: int) -> str:
        offsets = self.lanes.index(at)
        return self.out.emit(
            self.frame.lines,
            f"getelementptr {memory_type(buffer.dtype)}, ptr {self.frame.pointers[buffer]}, "
            f"<{lanes} x i64> {offsets}",
        )

    def _back(self, buffer: Buffer, pointer: str) -> str:
        """The address of the last lane of a vector that runs backwards."""
        kind, last = memory_type(buffer.dtype), 1 - self.lanes.opened.lanes
        return self.out.emit(self.frame.lines, f"getelementptr {kind}, ptr {pointer}, i64 {last}")

    def _reverse(self, text: str, element: str) -> str:
        lanes = self.lanes.opened.lanes
        vector = vector_of(element, lanes)
        picks = ", ".join(f"i32 {lanes - 1 - i}" for i in range(lanes))
        return self.out.emit(
            self.frame.lines,
            f"shufflevector {vector} {text}, {vector} poison, <{lanes} x i32> <{picks}>",
        )
