"""Random trees of loops, conditions and late sizes: the runner does what their lines say.

A program is data. `build` makes steps of it, `Model` runs it in Python; both know the same
variables in the same places, so that an expression is a list of (coefficient, which one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.tables import Array, Sheet, cell, journal, noted

from semel.ir.abi import Code, Header
from semel.ir.expr import Dim, Variable, mod

N = Variable("n", 0, 9)
LOW, HIGH = -30, 30  # bounds of late variables
WIDTH = 16

Line = tuple[Any, ...]

exprs = st.tuples(
    st.integers(-3, 5), st.lists(st.tuples(st.integers(-2, 3), st.integers(0, 9)), max_size=2)
)
leaves = st.one_of(
    st.tuples(st.just("note"), exprs),
    st.tuples(st.just("put"), exprs),
    st.tuples(st.just("add"), exprs),
    st.tuples(st.just("tiles"), exprs),
    st.tuples(st.just("late")),
    st.tuples(st.just("fail"), exprs),
)


def block(lines: st.SearchStrategy[Line]) -> st.SearchStrategy[list[Line]]:
    return st.lists(lines, min_size=1, max_size=4)


lines: st.SearchStrategy[Line] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        leaves,
        st.tuples(st.just("loop"), exprs, block(inner)),
        st.tuples(st.just("while"), exprs, block(inner)),
        st.tuples(st.just("if"), exprs, block(inner), block(inner)),
    ),
    max_leaves=14,
)


def combined(expr: Any, known: Sequence[Any]) -> Any:
    """The expression over what is known at its place: dims for the table, numbers here."""
    constant, parts = expr
    total = constant
    for coefficient, which in parts:
        total = total + coefficient * known[which % len(known)]
    return total


def build(program: Sequence[Line]) -> tuple[Sheet, dict[str, Array]]:
    """`a` is a number that conditions read and late variables take; `tiles` adds to an array."""
    arrays = {"log": journal(1 << 16), "a": cell(), "flag": cell(), "array": np.zeros(WIDTH, int)}
    sheet = Sheet([N])
    sheet.call("put", arrays["a"], value=0)
    _build(program, [N], sheet, arrays, iter(range(10_000)))
    return sheet, arrays


def _build(
    program: Sequence[Line], outside: list[Dim], sheet: Sheet, arrays: Mapping[str, Array], ids: Any
) -> None:
    known = list(outside)
    for kind, *parts in program:
        value = combined(parts[0], known) if parts else 0
        match kind:
            case "note":
                sheet.call("note", arrays["log"], value=value)
            case "put" | "add":
                sheet.call(kind, arrays["a"], value=value)
            case "tiles":
                size = mod(value, WIDTH + 1)
                sheet.call("add", arrays["array"], value=1, tiles=size, flops=size * 2_000_000)
            case "fail":
                sheet.call("fail", value=value, tiles=mod(value, 40) // 39)
            case "late":
                late = Variable(f"late{next(ids)}", LOW, HIGH)
                sheet.rebind({late: arrays["a"]})
                known.append(late)
            case "loop":
                counter = Variable(f"i{next(ids)}", 0, 1 << 20)
                sheet.loop(counter, mod(value, 4))
                _build(parts[1], [*known, counter], sheet, arrays, ids)
                sheet.end()
            case "while":
                counter = Variable(f"i{next(ids)}", 0, 1 << 20)
                sheet.loop(counter, 5)
                sheet.call("less", arrays["flag"], arrays["a"], value=value)
                leave = sheet.branch(arrays["flag"])
                _build(parts[1], [*known, counter], sheet, arrays, ids)
                sheet.end()
                sheet.lands(leave)
            case "if":
                sheet.call("less", arrays["flag"], arrays["a"], value=value)
                branch = sheet.branch(arrays["flag"])
                _build(parts[1], known, sheet, arrays, ids)
                jump = sheet.jump()
                sheet.lands(branch)
                _build(parts[2], known, sheet, arrays, ids)
                sheet.lands(jump)


class StoppedError(Exception):
    """A run that ends before its end, with its code."""


class Model:
    """The same program, line by line."""

    def __init__(self) -> None:
        self.noted: list[int] = []
        self.a = 0
        self.array = [0] * WIDTH
        self.failed: int | None = None

    def run(self, program: Sequence[Line], n: int) -> Code:
        try:
            self._run(program, [n])
        except StoppedError as stopped:
            return Code(stopped.args[0])
        return Code.OK if self.failed is None else Code.STATUS

    def _control(self) -> None:
        if self.failed is not None:
            raise StoppedError(Code.STATUS)

    def _run(self, program: Sequence[Line], outside: list[int]) -> None:
        known = list(outside)
        for kind, *parts in program:
            value = combined(parts[0], known) if parts else 0
            match kind:
                case "note":
                    self.noted.append(value)
                case "put":
                    self.a = value
                case "add":
                    self.a += value
                case "tiles":
                    for i in range(value % (WIDTH + 1)):
                        self.array[i] += 1
                case "fail":
                    if value % 40 == 39 and self.failed is None:
                        self.failed = value
                case "late":
                    self._control()
                    if not LOW <= self.a <= HIGH:
                        raise StoppedError(Code.VARIABLE)
                    known.append(self.a)
                case "loop":
                    self._control()
                    for i in range(value % 4):
                        self._run(parts[1], [*known, i])
                        self._control()
                case "while":
                    self._control()
                    for i in range(5):
                        self._control()
                        if self.a >= value:
                            break
                        self._run(parts[1], [*known, i])
                        self._control()
                case "if":
                    self._control()
                    if self.a < value:
                        self._run(parts[1], known)
                        self._control()
                    else:
                        self._run(parts[2], known)


@pytest.mark.parametrize("threads", [1, 2])
@settings(max_examples=50, deadline=None)
@given(program=block(lines), values=st.lists(st.integers(0, 9), min_size=1, max_size=3))
def test_random_programs_do_what_their_lines_say(
    threads: int, program: list[Line], values: list[int]
) -> None:
    sheet, arrays = build(program)
    running = sheet.start(threads, jitter=threads > 1)
    for n in values:
        model = Model()
        arrays["array"][:] = 0
        code = model.run(program, n)
        assert running.run(n) == code
        assert noted(arrays["log"]) == model.noted
        assert arrays["array"].tolist() == model.array
        if code == Code.STATUS:
            assert running.table.words[Header.STATUS_VALUE] == model.failed
