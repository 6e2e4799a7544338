"""Loops with lanes: vectors with a masked rest, and accumulators that the lanes share.

    Loop with lanes --> counted loops; vector accumulators folded by halves

A vector loop is a main loop over `lanes` elements, which LLVM splits into independent
registers, and a masked loop of one register's width for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from semel.codegen.scalar.counted_loops import CountedLoops
from semel.codegen.scalar.frame import Frame, LocalKey, Ref, constants
from semel.codegen.scalar.indices import Indices
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import element_type, iota, vector_of
from semel.codegen.scalar.reductions import Reductions, identity
from semel.codegen.vector.vector_lanes import Vector, VectorLanes
from semel.errors import InternalError
from semel.kernel import ir
from semel.kernel.ir import Local, Statement, walk_statements


@dataclass(frozen=True, slots=True)
class _Reduction:
    """How a vector accumulator is folded; the second local of argmax is its position."""

    combine: str
    locals: tuple[Local, ...]
    is_position: bool

    @property
    def fold(self) -> str:
        """What combines two partial results: sums of products are sums."""
        return "add" if self.combine in ("fma", "dot") else self.combine


class VectorLoops:
    """Loop statements of an emitter with lanes; `width` is how many float32 a register has."""

    def __init__(
        self,
        frame: Frame,
        out: Instructions,
        indices: Indices,
        lanes: VectorLanes,
        loops: CountedLoops,
        reductions: Reductions,
        width: int,
    ) -> None:
        self.frame, self.out, self.indices, self.lanes = frame, out, indices, lanes
        self.loops, self.reductions, self.width = loops, reductions, width

    def loop(self, loop: ir.Loop) -> None:
        if loop.unroll or loop.lanes <= 1:
            self.loops.loop(loop)
        else:
            self._vector_loop(loop)

    def _vector_loop(self, loop: ir.Loop) -> None:
        if self.lanes.vector is not None:
            raise InternalError("emit", f"vector loop {loop.index} inside another.")
        narrow = min(self.width, loop.lanes)
        wide = loop.lanes
        start, stop = self.indices.dim(loop.start), self.indices.dim(loop.stop)
        count = loop.stop - loop.start
        middle: str
        if isinstance(count, int):
            if count <= 0:
                return
            if count < wide:
                wide = narrow
            main = count // wide * wide
            middle = self.indices.dim(loop.start + main).text
            rest = count - main
        else:
            main = rest = -1
            lines = self.frame.lines
            length = self.out.emit(lines, f"sub nsw i64 {stop.text}, {start.text}")
            whole = self.out.emit(lines, f"and i64 {length}, {-wide}")
            middle = self.out.emit(lines, f"add nsw i64 {start.text}, {whole}")
        totals = self._totals(loop.body)
        scalars = {key: self.frame.locals[key] for key in totals}
        lanes = wide if main else narrow
        self.lanes.totals = frozenset(totals)
        for key, kind in totals.items():
            self.frame.locals[key] = self._start(key[0], kind, lanes)
        counted = self.loops.counted
        if main:
            enter = self._whole(loop, wide)
            counted(loop.index, start.text, middle, wide, loop.body, runs=main > 0, enter=enter)
            self.lanes.close()
            self._narrow(totals, wide, narrow if rest else 1)
        if rest:
            enter = self._masked(loop, stop.text, narrow)
            counted(loop.index, middle, stop.text, narrow, loop.body, runs=rest > 0, enter=enter)
            self.lanes.close()
            self._narrow(totals, narrow, 1)
        self._finish(totals, scalars)

    def _whole(self, loop: ir.Loop, lanes: int) -> Callable[[str], None]:
        """What opens all lanes at the start of an iteration."""
        return lambda _: self.lanes.open(Vector(loop.index, lanes, None, self.frame.level))

    def _masked(self, loop: ir.Loop, stop: str, lanes: int) -> Callable[[str], None]:
        """What opens the lanes that lie before `stop`."""

        def enter(index: str) -> None:
            mask = self._mask(index, stop, lanes)
            known = index.isdecimal() and stop.isdecimal()
            single = known and int(stop) - int(index) == 1
            self.lanes.open(Vector(loop.index, lanes, mask, self.frame.level, single))

        return enter

    def _mask(self, index: str, stop: str, lanes: int) -> str:
        """Lanes whose element lies before `stop`."""
        lines = self.frame.lines
        left = self.out.emit(lines, f"sub nsw i64 {stop}, {index}")
        small = self.out.call(lines, "i64", "llvm.smin.i64", ("i64", left), ("i64", str(lanes)))
        word = self.out.emit(lines, f"trunc i64 {small} to i32")
        limit = self.out.splat(lines, "i32", word, lanes)
        return self.out.emit(lines, f"icmp slt <{lanes} x i32> {iota('i32', lanes)}, {limit}")

    # ------------------------------------------------------------ accumulators

    def _totals(self, body: Sequence[Statement]) -> dict[LocalKey, _Reduction]:
        """Outer locals that the vector loop reduces into."""
        locals_ = self.frame.locals
        outer = {key[0] for key in locals_}
        found: dict[LocalKey, _Reduction] = {}
        for statement in walk_statements(body):
            match statement:
                case ir.Reduce(locals=several, combine=combine, at=at):
                    for i, local in enumerate(several):
                        if local in outer and not locals_[local, constants(at)].is_vector:
                            found[local, constants(at)] = _Reduction(combine, several, i == 1)
                case ir.Assign(local=local) if local in outer:
                    raise InternalError("emit", f"{local.name} is assigned in a vector loop.")
        return found

    def _start(self, local: Local, kind: _Reduction, lanes: int) -> Ref:
        value = (1 << 63) - 1 if kind.is_position else identity(kind.combine, local.dtype)
        return Ref(self.out.constant(local.dtype, value, lanes), True, 0)

    def _narrow(self, totals: dict[LocalKey, _Reduction], lanes: int, to: int) -> None:
        """Fold vector accumulators by halves until `to` lanes are left; 1 means a scalar."""
        lines = self.frame.lines
        for key, kind in totals.items():
            if kind.is_position:
                continue
            group = [(local, key[1]) for local in kind.locals]
            dtypes = [local.dtype for local in kind.locals]
            width = lanes
            parts = [self.frame.locals[k].text for k in group]
            while width > to:
                half = width // 2
                lows: list[str] = []
                highs: list[str] = []
                for dtype, text in zip(dtypes, parts, strict=True):
                    element = element_type(dtype)
                    lows.append(self.out.part(lines, element, text, width, 0, half))
                    highs.append(self.out.part(lines, element, text, width, half, half))
                parts = self.reductions.combine(lines, kind.fold, dtypes, lows, highs, half)
                width = half
            for k, part in zip(group, parts, strict=True):
                text = part
                if to == 1:
                    vector = vector_of(element_type(k[0].dtype), 1)
                    text = self.out.emit(lines, f"extractelement {vector} {part}, i32 0")
                self.frame.locals[k] = Ref(text, to > 1, self.frame.level)

    def _finish(self, totals: dict[LocalKey, _Reduction], scalars: dict[LocalKey, Ref]) -> None:
        """Combine what the lanes found with what the accumulator held before the loop."""
        for key, kind in totals.items():
            if kind.is_position:
                continue
            group = [(local, key[1]) for local in kind.locals]
            dtypes = [local.dtype for local in kind.locals]
            olds = [scalars[k].text for k in group]
            news = [self.frame.locals[k].text for k in group]
            lines = self.frame.lines
            texts = self.reductions.combine(lines, kind.fold, dtypes, olds, news, None)
            for k, text in zip(group, texts, strict=True):
                self.frame.locals[k] = Ref(text, False, self.frame.level)
