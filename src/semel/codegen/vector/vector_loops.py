"""Loops with lanes: vectors with a masked rest, and accumulators that the lanes share.

    Loop with lanes --> counted loops; vector accumulators joined by halves

A vector loop is a main loop over `lanes` elements, which LLVM splits into independent
registers, and a loop of fewer lanes for the rest, masked in the end. Lanes that share a sum are
those of the kernel's text (`semel.kernel.shared_lanes`), on every machine: where its registers are
too few for the body on all of them at once, the body runs part by part, on accumulators that stay
in registers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from semel.codegen.scalar.counted_loops import CountedLoops, copy_of
from semel.codegen.scalar.frame import Frame, LocalKey, Ref, constants
from semel.codegen.scalar.indices import Indices
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import element_type, iota, vector_of
from semel.codegen.scalar.reductions import Reductions
from semel.codegen.vector.vector_lanes import Vector, VectorLanes
from semel.errors import InternalError
from semel.ir.expr import upper_bound
from semel.ir.types import DType
from semel.kernel import ir
from semel.kernel.ir import Local, Statement, walk_statements
from semel.kernel.shared_lanes import (
    elements_at_once,
    joining,
    registers_at_once,
    rest_lanes,
    widest_total,
)

#: Half a register takes what is left of a known number of elements, if it has so many lanes.
LEAST_LANES = 8


def _goes_in_halves(loop: ir.Loop, rest: int) -> bool:
    """Whether the last lanes are taken by halves of a register: not if loops run for each half."""
    return rest <= LEAST_LANES or not any(
        isinstance(s, ir.Loop) and not s.unroll for s in walk_statements(loop.body)
    )


@dataclass(frozen=True, slots=True)
class _Reduction:
    """How a vector accumulator is folded; the second local of argmax is its position."""

    combine: str
    locals: tuple[Local, ...]
    is_position: bool


@dataclass(frozen=True, slots=True)
class _Step:
    """The lanes of one iteration, and how many of them run side by side."""

    lanes: int
    at_once: int
    is_masked: bool = False


@dataclass(frozen=True, slots=True)
class _Span:
    """Elements [start, stop) of a loop, as SSA text; `runs` says that there are some."""

    step: _Step
    start: str
    stop: str
    runs: bool = False


class LoopConstants(Protocol):
    """Where a machine with few registers has the constants of a loop."""

    def open(self, loop: ir.Loop) -> None:
        """Begin a loop."""

    def next_part(self, totals: Sequence[tuple[DType, int, str]]) -> list[str]:
        """After a part of its body: the vectors, (dtype, lanes, text), that it has added to."""

    def close(self) -> None:
        """After the loop."""


class VectorLoops:
    """Loop statements of an emitter with lanes; `bits` is the width of a register."""

    def __init__(
        self,
        frame: Frame,
        out: Instructions,
        indices: Indices,
        lanes: VectorLanes,
        loops: CountedLoops,
        reductions: Reductions,
        bits: int,
        constants: LoopConstants | None = None,
    ) -> None:
        self.frame, self.out, self.indices, self.lanes = frame, out, indices, lanes
        self.loops, self.reductions, self.bits = loops, reductions, bits
        self.constants = constants

    def loop(self, loop: ir.Loop) -> None:
        if loop.unroll or loop.lanes <= 1:
            self.loops.loop(loop)
        else:
            self._vector_loop(loop)

    def _vector_loop(self, loop: ir.Loop) -> None:
        if self.lanes.vector is not None:
            raise InternalError("emit", f"vector loop {loop.index} inside another.")
        loop = self.loops.with_own_index(loop)
        if self.constants is not None:
            self.constants.open(loop)
        self._run_spans(loop, self._spans(loop))
        if self.constants is not None:
            self.constants.close()

    def _run_spans(self, loop: ir.Loop, spans: Sequence[_Span]) -> None:
        if not spans:
            return
        totals = self._totals(loop.body)
        scalars = {key: self.frame.locals[key] for key in totals}
        self._begin(totals, spans[0].step)
        for span, following in zip(spans, [*(s.step for s in spans[1:]), None], strict=True):
            self.loops.counted(
                loop.index,
                span.start,
                span.stop,
                span.step.lanes,
                loop.body,
                runs=span.runs,
                emit=partial(self._iteration, loop, span),
                carried=self._carried(loop.body),
            )
            self.lanes.close()
            self._narrow(totals, span.step, following)
        self._finish(totals, scalars)

    def _spans(self, loop: ir.Loop) -> list[_Span]:
        """The loop's elements: all lanes at a time, then fewer, the last of them masked."""
        *whole, masked = self._steps(loop)
        start, stop = self.indices.dim(loop.start).text, self.indices.dim(loop.stop).text
        count = loop.stop - loop.start
        if not isinstance(count, int):
            most = upper_bound(count)
            if most is not None and widest_total(loop) is None:
                whole = [step for step in whole if step.lanes < most]
            return self._open_spans(whole, masked, start, stop)
        found: list[_Span] = []
        done = 0
        steps = [*whole, replace(masked, is_masked=False)]
        is_wide = widest_total(loop) is None and masked.lanes >= 2 * LEAST_LANES
        if is_wide and _goes_in_halves(loop, count % masked.lanes):
            masked = _Step(masked.lanes // 2, masked.at_once // 2, is_masked=True)
            steps.append(replace(masked, is_masked=False))
        for step in (*steps, masked):
            end = count if step.is_masked else done + (count - done) // step.lanes * step.lanes
            if end > done:
                first, last = (self.indices.dim(loop.start + at).text for at in (done, end))
                found.append(_Span(step, first, last, runs=True))
                done = end
        return found

    def _open_spans(
        self, steps: Sequence[_Step], masked: _Step, start: str, stop: str
    ) -> list[_Span]:
        """The same of a number of elements that the run knows."""
        lines, found = self.frame.lines, []
        for step in steps:
            length = self.out.emit(lines, f"sub nsw i64 {stop}, {start}")
            whole = self.out.emit(lines, f"and i64 {length}, {-step.lanes}")
            middle = self.out.emit(lines, f"add nsw i64 {start}, {whole}")
            found.append(_Span(step, start, middle))
            start = middle
        return [*found, _Span(masked, start, stop)]

    def _steps(self, loop: ir.Loop) -> list[_Step]:
        """What iterations take: of the loop, and of what is left of it, the last of it masked.

        Lanes that share a sum are those of the text; the machine decides how many of them run
        side by side. Other loops end with one register's width; of narrow elements, where masks of
        such are bit by bit, with whole registers, halves of them and few lanes.
        """
        wide, bits = loop.lanes, widest_total(loop)
        if bits is not None:
            register, rest = self.bits // bits, rest_lanes(wide, bits)
            at_once = min(registers_at_once(loop) * register, wide)
            return [_Step(wide, at_once), _Step(rest, min(register, rest), is_masked=True)]
        few, register = self.bits // 32, self.bits // 32 * elements_at_once(loop)
        masked = min(register if self.bits == 512 else few, wide)
        found = [_Step(wide, wide)]
        while masked < register < wide:
            found.append(_Step(register, register))
            register //= 2
        return [*found, _Step(masked, masked, is_masked=True)]

    def _iteration(self, loop: ir.Loop, span: _Span, index: str) -> None:
        """The body for the lanes of one iteration, those that run side by side after the other.

        Each part has accumulators of its own, which the body knows as the whole loop's. With a
        mask, lanes past the end are idle; what is known to be full has none, and what is known
        to be empty is left out.
        """
        width, stop = span.step.at_once, span.stop
        known = int(stop) - int(index) if stop.isdecimal() and index.isdecimal() else None
        for part, offset in enumerate(range(0, span.step.lanes, width)):
            left = width if known is None else known - offset
            if left <= 0:
                break
            mask = None
            if span.step.is_masked and (known is None or left < width):
                mask = self._mask(index, offset, stop, width)
            is_single = mask is not None and left == 1
            start = int(span.start) if span.start.isdecimal() else None
            steps = math.gcd(span.step.lanes, width) if offset else span.step.lanes
            self.lanes.open(
                Vector(loop.index, width, mask, self.frame.level, is_single, start, steps)
            )
            to = {loop.index: loop.index + offset}
            for key, parts in self.lanes.totals.items():
                self.frame.locals[key] = self.frame.locals[parts[part]]
            self.loops.body.run(copy_of(loop.body, to, part) if part else loop.body)
            for key, parts in self.lanes.totals.items():
                self.frame.locals[parts[part]] = self.frame.locals[key]
            self._end_part([parts[part] for parts in self.lanes.totals.values()])

    def _end_part(self, totals: Sequence[LocalKey]) -> None:
        """What a part has added up is there before the next part begins, and not later."""
        if self.constants is None:
            return
        refs = [self.frame.locals[key] for key in totals]
        count = self.lanes.opened.lanes
        found = self.constants.next_part(
            [(key[0].dtype, count, ref.text) for key, ref in zip(totals, refs, strict=True)]
        )
        for key, ref, text in zip(totals, refs, found, strict=True):
            self.frame.locals[key] = replace(ref, text=text)

    def _mask(self, index: str, offset: int, stop: str, lanes: int) -> str:
        """Lanes from `index` + `offset` on whose element lies before `stop`.

        A mask that is known is a constant: where the machine has none for bytes, LLVM writes out
        the lanes that are there, and not a branch for each.
        """
        lines = self.frame.lines
        if index.isdecimal() and stop.isdecimal() and self.bits != 512:
            count = int(stop) - int(index) - offset
            bits = ("true" if lane < count else "false" for lane in range(lanes))
            return f"<{', '.join(f'i1 {bit}' for bit in bits)}>"
        if offset:
            index = self.out.emit(lines, f"add nsw i64 {index}, {offset}")
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

    def _carried(self, body: Sequence[Statement]) -> list[LocalKey]:
        """What iterations hand on: the loop's accumulators are there part by part."""
        totals = self.lanes.totals
        parts = [part for several in totals.values() for part in several]
        return [*(key for key in self.loops.changed(body) if key not in totals), *parts]

    def _begin(self, totals: Mapping[LocalKey, _Reduction], step: _Step) -> None:
        """Accumulators for every lane, in as many parts as run one after the other."""
        for key, kind in totals.items():
            local = key[0]
            neutral = ir.COMBINES[kind.combine].neutral(local.dtype)
            value = local.dtype.highest if kind.is_position else neutral
            text = self.out.constant(local.dtype, value, step.at_once)
            self._set_parts(key, [text] * (step.lanes // step.at_once))

    def _set_parts(self, key: LocalKey, texts: Sequence[str]) -> None:
        """Let these vectors hold the partial results of a reduction, in the order of lanes."""
        self._drop_parts(key)
        parts = [(replace(key[0], name=f"{key[0].name}.{i}"), key[1]) for i in range(len(texts))]
        self.lanes.totals[key] = parts
        for part, text in zip(parts, texts, strict=True):
            self.frame.locals[part] = Ref(text, True, self.frame.level)

    def _drop_parts(self, key: LocalKey) -> None:
        for part in self.lanes.totals.pop(key, ()):
            del self.frame.locals[part]

    def _narrow(self, totals: Mapping[LocalKey, _Reduction], step: _Step, to: _Step | None) -> None:
        """Join the lanes of a step by halves until those of the next are left; None: a scalar."""
        for key, kind in totals.items():
            if kind.is_position:
                continue
            group = [(local, key[1]) for local in kind.locals]
            parts = [
                [self.frame.locals[self.lanes.totals[k][i]].text for k in group]
                for i in range(step.lanes // step.at_once)
            ]
            width, parts = self._join(kind, parts, step.at_once, to.lanes if to else 1)
            if to is None:
                for k, text in zip(group, parts[0], strict=True):
                    self._set_scalar(k, text)
                continue
            # No register is wider than what ran side by side: pieces only get smaller.
            pieces = [p for part in parts for p in self._cut(kind, part, width, to.at_once)]
            for i, k in enumerate(group):
                self._set_parts(k, [piece[i] for piece in pieces])

    def _join(
        self, kind: _Reduction, parts: list[list[str]], width: int, to: int
    ) -> tuple[int, list[list[str]]]:
        """Parts of `width` lanes joined until `to` lanes are left; a part has every local."""
        dtypes, combine = [local.dtype for local in kind.locals], joining(kind.combine)
        while width * len(parts) > to:
            if len(parts) == 1:
                width //= 2
                parts = self._cut(kind, parts[0], 2 * width, width)
            half = len(parts) // 2
            parts = [
                self.reductions.join(self.frame.lines, combine, dtypes, low, high, width)
                for low, high in zip(parts[:half], parts[half:], strict=True)
            ]
        return width, parts

    def _cut(self, kind: _Reduction, texts: list[str], width: int, to: int) -> list[list[str]]:
        """Vectors of `width` lanes in pieces of `to`: for each piece, one of every local."""
        types = [element_type(local.dtype) for local in kind.locals]
        return [
            [
                self.out.part(self.frame.lines, element, text, width, start, to)
                for element, text in zip(types, texts, strict=True)
            ]
            for start in range(0, width, to)
        ]

    def _set_scalar(self, key: LocalKey, text: str) -> None:
        """What all lanes have found together, in a vector of one."""
        vector = vector_of(element_type(key[0].dtype), 1)
        scalar = self.out.emit(self.frame.lines, f"extractelement {vector} {text}, i32 0")
        self._drop_parts(key)
        self.frame.locals[key] = Ref(scalar, False, self.frame.level)

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
            texts = self.reductions.join(lines, joining(kind.combine), dtypes, olds, news, None)
            for k, text in zip(group, texts, strict=True):
                self.frame.locals[k] = Ref(text, False, self.frame.level)
