"""Statements that are no loops: locals, stores, conditions, checks.

    Statement --Body.run--> its rule

An emitter is a table of rules, one for each statement that it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from semel.codegen.scalar.branches import branch, jump, phi
from semel.codegen.scalar.counted_loops import Body, CountedLoops
from semel.codegen.scalar.entry import Entry
from semel.codegen.scalar.frame import Frame, Ref, Scope, constants
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.llvm_types import element_type
from semel.codegen.scalar.reductions import Reductions
from semel.codegen.scalar.scalar_memory import Memory
from semel.codegen.scalar.scalars import Scalars
from semel.codegen.scalar.single_lane import Lanes
from semel.codegen.scalar.values import Values
from semel.errors import InternalError
from semel.ir.types import BOOL
from semel.kernel import ir
from semel.kernel.ir import Statement


class Rules:
    """The rule of each kind of statement, filled in by whoever puts an emitter together."""

    def __init__(self) -> None:
        self.by_kind: dict[type[Statement], Callable[[Any], None]] = {}

    def run(self, body: Iterable[Statement]) -> None:
        rules = self.by_kind
        for statement in body:
            rule = rules.get(type(statement))
            if rule is None:
                raise InternalError("emit", f"has no rule for {type(statement).__name__}.")
            rule(statement)


class Dots(Protocol):
    """What adds the products of bytes."""

    def add(
        self,
        lines: list[str],
        total: str,
        words: Sequence[str],
        signs: Sequence[str],
        lanes: int | None,
        is_small: bool = False,
    ) -> str: ...

    def add_pairs(
        self, lines: list[str], total: str, words: Sequence[str], lanes: int | None
    ) -> str: ...


class Locals:
    """Declarations, assignments, reductions into locals, bound indices."""

    def __init__(
        self, frame: Frame, values: Values, lanes: Lanes, reductions: Reductions, dots: Dots
    ) -> None:
        self.frame, self.values, self.lanes = frame, values, lanes
        self.reductions, self.dots = reductions, dots

    def bind(self, statement: ir.Bind) -> None:
        self.frame.env[statement.index] = self.values.value(statement.value)

    def declare(self, statement: ir.Declare) -> None:
        local = statement.local
        ref = self.lanes.declared(self.values.value(statement.init), local.dtype)
        for at in _positions(local.copies):
            self.frame.locals[local, at] = ref

    def assign(self, statement: ir.Assign) -> None:
        key = (statement.local, constants(statement.at))
        old = self.frame.locals[key]
        ref = self.values.value(statement.value)
        text = self.lanes.spread(ref, statement.local.dtype) if old.is_vector else ref.text
        self.frame.locals[key] = Ref(text, old.is_vector, self.frame.level)

    def reduce(self, statement: ir.Reduce) -> None:
        at = constants(statement.at)
        keys = [(local, at) for local in statement.locals]
        olds = [self.frame.locals[k] for k in keys]
        is_vector = olds[0].is_vector
        lanes = self.lanes.count if is_vector else None
        values = [self.values.value(v) for v in statement.values]
        texts = [
            self.lanes.spread(r, v.dtype) if lanes else r.text
            for r, v in zip(values, statement.values, strict=True)
        ]
        lines = self.frame.lines
        if statement.combine in ("dot", "small_dot"):
            signs, is_small = [v.dtype.kind for v in statement.values], statement.combine != "dot"
            news = [self.dots.add(lines, olds[0].text, texts, signs, lanes, is_small)]
        elif statement.combine == "pairs":
            news = [self.dots.add_pairs(lines, olds[0].text, texts, lanes)]
        else:
            dtypes = [local.dtype for local in statement.locals]
            before = [old.text for old in olds]
            news = self.reductions.combine(lines, statement.combine, dtypes, before, texts, lanes)
        for key, old, text in zip(keys, olds, news, strict=True):
            kept = self.lanes.kept(key, text, old.text) if lanes else text
            self.frame.locals[key] = Ref(kept, is_vector, self.frame.level)


class Stores:
    """Stores to buffers."""

    def __init__(self, frame: Frame, values: Values, memory: Memory) -> None:
        self.frame, self.values, self.memory = frame, values, memory

    def store(self, statement: ir.Store) -> None:
        ref = self.values.value(statement.value)
        guard = None if statement.guard is None else self.values.value(statement.guard)
        self.frame.touch(statement.buffer)
        self.memory.store(statement.buffer, statement.at, ref, guard)


class Conditions:
    """Statements under a condition, with phis for what they change."""

    def __init__(
        self,
        frame: Frame,
        out: Instructions,
        values: Values,
        lanes: Lanes,
        loops: CountedLoops,
        body: Body,
    ) -> None:
        self.frame, self.out, self.values, self.lanes = frame, out, values, lanes
        self.loops, self.body = loops, body

    def when(self, statement: ir.If) -> None:
        if self.lanes.count is not None:
            raise InternalError("emit", "If inside a vector loop.")
        frame, out = self.frame, self.out
        condition = self.values.value(statement.condition)
        then, after = out.name("then"), out.name("after")
        parent = frame.scope
        before = {k: frame.locals[k] for k in self.loops.changed(statement.body)}
        child = Scope(then, is_conditional=True)
        frame.scopes.append(child)
        outer, known = set(frame.locals), dict(frame.env)
        # What is computed from the indices of this place is wanted under the condition alone.
        for index, ref in known.items():
            if ref.level == frame.level - 1:
                frame.env[index] = replace(ref, level=frame.level)
        self.body.run(statement.body)
        frame.scopes.pop()
        frame.env.update(known)
        frame.forget_locals(outer)
        entry, lines = parent.label, parent.lines
        lines += [branch(condition.text, then, after), f"{then}:", *child.lines, jump(after)]
        frame.label(after)
        for key, old in before.items():
            ways = (old.text, entry), (frame.locals[key].text, child.label)
            text = out.emit(lines, phi(element_type(key[0].dtype), *ways))
            frame.locals[key] = Ref(text, False, frame.level)


class Checks:
    """Checks of data: the first that fails is reported, and the kernel goes on."""

    def __init__(
        self,
        frame: Frame,
        out: Instructions,
        scalars: Scalars,
        values: Values,
        lanes: Lanes,
        entry: Entry,
    ) -> None:
        self.frame, self.out, self.scalars = frame, out, scalars
        self.values, self.lanes, self.entry = values, lanes, entry

    def check(self, statement: ir.Check) -> None:
        ok, value = self.values.value(statement.ok), self.values.value(statement.value)
        lines, out = self.frame.lines, self.out
        lanes = self.lanes.count if ok.is_vector else None
        bad = self.scalars.apply(lines, "not", BOOL, [ok.text], lanes)
        bad, bits = self.lanes.failing(bad, ok)
        cold, report, after = (out.name(n) for n in ("cold", "report", "after"))
        lines.append(branch(bad, cold, after))
        self.frame.label(cold)
        text = self.lanes.first(value, bits)
        self.entry.report(statement.code, text, report, after)
        lines.append(jump(after))
        self.frame.label(after)


def _positions(copies: tuple[int, ...]) -> list[tuple[int, ...]]:
    result: list[tuple[int, ...]] = [()]
    for n in copies:
        result = [(*r, i) for r in result for i in range(n)]
    return result
