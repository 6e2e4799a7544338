"""Loops: counted, unrolled, or their body alone where they run once.

    Loop --> blocks with phis for what the body changes

A part that opens a loop of its own, with lanes or with another step, says so by what it gives
`counted`: the step, what an iteration is, and what one hands on to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from semel.codegen.scalar.branches import branch, jump, phi
from semel.codegen.scalar.frame import Frame, LocalKey, Ref, Scope
from semel.codegen.scalar.indices import Indices
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.single_lane import Lanes
from semel.errors import InternalError
from semel.ir.expr import Dim, Index
from semel.kernel import ir
from semel.kernel.ir import Local, Statement, walk_statements
from semel.kernel.rewrite import IndexMap, substitute_indices

#: Emits an unrolled loop in a better way and says True, or does nothing and says False.
LoopRule: TypeAlias = Callable[[ir.Loop], bool]


class Body(Protocol):
    """What emits the statements of a loop."""

    def run(self, body: Sequence[Statement]) -> None: ...


class CountedLoops:
    """Loop statements; `rules` are tried before a loop is unrolled."""

    def __init__(
        self,
        frame: Frame,
        out: Instructions,
        indices: Indices,
        lanes: Lanes,
        body: Body,
        rules: Sequence[LoopRule] = (),
    ) -> None:
        self.frame, self.out, self.indices, self.lanes = frame, out, indices, lanes
        self.body, self.rules = body, rules
        #: What became of values for each number of an unrolled index: other loops repeat them.
        self._copies: dict[tuple[Index, int], IndexMap] = {}
        #: Indices that were a number: what was computed with it is known everywhere since.
        self._numbers: set[Index] = set()

    def loop(self, loop: ir.Loop) -> None:
        """A loop that takes one element at a time, whatever its lanes."""
        if loop.unroll:
            self._unrolled(loop)
            return
        loop = self.with_own_index(loop)
        start, stop = self.indices.dim(loop.start), self.indices.dim(loop.stop)
        known = isinstance(loop.start, int) and isinstance(loop.stop, int)
        if known and loop.start >= loop.stop:  # type: ignore[operator]
            return
        self.counted(loop.index, start.text, stop.text, 1, loop.body, runs=known)

    def with_own_index(self, loop: ir.Loop) -> ir.Loop:
        """The loop with another index, if there was one with this index that ran once."""
        if loop.index not in self._numbers:
            return loop
        own = Index(self.out.name(loop.index.name), loop.index.extent)
        return replace(loop, index=own, body=substitute_indices(loop.body, {loop.index: own}))

    def _unrolled(self, loop: ir.Loop) -> None:
        if not (isinstance(loop.start, int) and isinstance(loop.stop, int)):
            raise InternalError("emit", f"unrolled loop {loop.index} has symbolic bounds.")
        if any(rule(loop) for rule in self.rules):
            return
        binds = any(isinstance(s, ir.Bind) for s in walk_statements(loop.body))
        for i in range(loop.start, loop.stop):
            self.body.run(copy_of(loop.body, {loop.index: i}, i) if binds else self._copy(loop, i))

    def _copy(self, loop: ir.Loop, number: int) -> tuple[Statement, ...]:
        found = self._copies.get((loop.index, number))
        if found is None:
            found = self._copies[loop.index, number] = IndexMap({loop.index: number})
        return found(loop.body)

    def changed(self, body: Sequence[Statement]) -> list[LocalKey]:
        """The locals of outer scopes that the body assigns, in a fixed order."""
        names: dict[Local, None] = {}
        for statement in walk_statements(body):
            match statement:
                case ir.Assign(local=local):
                    names[local] = None
                case ir.Reduce(locals=several):
                    names.update(dict.fromkeys(several))
        return [key for key in self.frame.locals if key[0] in names]

    def counted(
        self,
        index: Index,
        start: str,
        stop: str,
        step: int,
        body: Sequence[Statement],
        *,
        runs: bool = False,
        emit: Callable[[str], None] | None = None,
        carried: Sequence[LocalKey] | None = None,
    ) -> None:
        """for index in range(start, stop, step); `runs` says that it runs at least once.

        `emit` emits an iteration, given the index as text, where that is more than the statements
        of the body. `carried` are the locals that iterations hand on, if not those it assigns.
        """
        is_scalar = emit is None
        emit = emit or (lambda _: self.body.run(body))
        if runs and start.isdecimal() and stop.isdecimal() and int(stop) - int(start) <= step:
            if is_scalar:
                self._numbers.add(index)
            self._once(index, start, emit)
            return
        frame, out = self.frame, self.out
        parent = frame.scope
        head, after = out.name("loop"), out.name("after")
        counter = f"%{out.name(index.name.replace('.', '_'))}"
        changed = self.changed(body) if carried is None else carried
        before = {key: frame.locals[key] for key in changed}
        self._touch_stored(body)
        outer = set(frame.locals)
        child = Scope(head)
        frame.scopes.append(child)
        seen = self._hidden(counter)
        frame.env[index] = Ref(seen, False, frame.level)
        phis: dict[LocalKey, str] = {}
        for key in changed:
            phis[key] = f"%{out.name('acc')}"
            frame.locals[key] = Ref(phis[key], before[key].is_vector, frame.level)
        emit(seen)
        following = out.emit(child.lines, f"add nsw i64 {counter}, {step}")
        again = out.emit(child.lines, f"icmp slt i64 {following}, {stop}")
        frame.scopes.pop()

        entry, lines = parent.label, parent.lines
        if runs:
            lines.append(jump(head))
        else:
            inside = out.emit(lines, f"icmp slt i64 {start}, {stop}")
            lines.append(branch(inside, head, after))
        lines.append(f"{head}:")
        lines.append(f"  {counter} = {phi('i64', (start, entry), (following, child.label))}")
        finals = {key: frame.locals[key] for key in changed}
        ways = {
            key: phi(
                self.lanes.kind(key[0], before[key]),
                (before[key].text, entry),
                (finals[key].text, child.label),
            )
            for key in changed
        }
        lines += [f"  {phis[key]} = {ways[key]}" for key in changed]
        lines += child.lines
        lines.append(branch(again, head, after))
        frame.label(after)
        for key in changed:
            text = finals[key].text if runs else out.emit(lines, ways[key])
            frame.locals[key] = Ref(text, before[key].is_vector, frame.level)
        frame.forget_locals(outer)

    def _hidden(self, counter: str) -> str:
        """The counter as a body knows it: frozen, LLVM takes it for any number.

        LLVM would look for pointers to step in the place of addresses to compute, for half of the
        time of a compile. Addresses are hoisted here already, and it finds nothing better.
        docs/decisions/0117-what-a-compile-spends-its-time-on.md
        """
        lines = self.frame.lines
        # A frozen counter would be taken apart again: that of a sum stays.
        return self.out.emit(lines, f"freeze i64 {self.out.emit(lines, f'add i64 {counter}, 0')}")

    def _touch_stored(self, body: Sequence[Statement]) -> None:
        """What the body reads may have been written by an earlier iteration."""
        for statement in walk_statements(body):
            if isinstance(statement, ir.Store):
                self.frame.touch(statement.buffer)
            elif isinstance(statement, ir.BlockDot):
                self.frame.touch(statement.into.buffer)

    def _once(self, index: Index, start: str, emit: Callable[[str], None]) -> None:
        """A loop of one iteration is its body, in a scope of its own for names and memory."""
        frame = self.frame
        parent, outer = frame.scope, set(frame.locals)
        child = Scope(parent.label)
        frame.scopes.append(child)
        # A number is known everywhere: another index with this value finds the same address.
        frame.env[index] = Ref(start, False, 0)
        emit(start)
        frame.scopes.pop()
        parent.lines += child.lines
        parent.label = child.label
        frame.forget_locals(outer)
        for key, ref in frame.locals.items():
            frame.locals[key] = Ref(ref.text, ref.is_vector, min(ref.level, frame.level))


def copy_of(
    body: Sequence[Statement], to: Mapping[Index, Dim], number: int
) -> tuple[Statement, ...]:
    """The body at another place.

    Every copy binds indices of its own: values of one must not serve another.
    """
    bound = [s.index for s in walk_statements(body) if isinstance(s, ir.Bind)]
    own: dict[Index, Dim] = {b: Index(f"{b.name}_{number}", b.extent) for b in bound}
    return substitute_indices(body, {**own, **to})
