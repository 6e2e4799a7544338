"""Expressions over variables as instructions on registers, each run where its value changes.

    Dim  --RegisterProgram-->  a register, and instructions (op, dst, a, b) by point

When a register gets its value is a *point* of the run: the bind; the start of an iteration,
which sets a loop's counter; or a rebind, which reads late variables. What depends on several
points has its value at the last of them on the way: an expression over the counters of two
nested loops at the inner one's iterations, one over the outer counter alone at the outer's.

Invariant: a register is read only where its point holds; anything else is an InternalError
here, not a stale number there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semel.errors import InternalError
from semel.ir.abi import Opcode
from semel.ir.expr import Dim, Fn, Index, Variable, terms

_FUNCTIONS = {
    "floordiv": Opcode.FLOORDIV,
    "mod": Opcode.MOD,
    "min": Opcode.MIN,
    "max": Opcode.MAX,
}

#: When a register gets its value: once for all, or at each bind; else the number of its point.
ONCE, BIND = -2, -1

Instruction = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Point:
    """Where `variables` get their values during a run: they hold in steps ]first, last]."""

    variables: tuple[Variable, ...]
    first: int
    last: int

    def holds_at(self, step: int) -> bool:
        """Whether what the point sets may be read in that step."""
        return self.first < step <= self.last


class RegisterProgram:
    """Compiles expressions into register instructions, each distinct one once.

    The first registers are the variables: those of the bind, then those of the points in
    order. `instructions` run at a bind, `late[k]` at point k.
    """

    def __init__(self, variables: Sequence[Variable], points: Sequence[Point] = ()) -> None:
        names = [v.name for v in variables]
        self._when: list[int] = [BIND] * len(names)
        for number, point in enumerate(points):
            names += [v.name for v in point.variables]
            self._when += [number] * len(point.variables)
        self.initial: list[int] = [0] * len(names)
        self.instructions: list[Instruction] = []
        self.late: list[list[Instruction]] = [[] for _ in points]
        self._points = points
        self._names = {name: i for i, name in enumerate(names)}
        self._known: dict[Any, int] = {}

    def register(self, value: Dim) -> int:
        """The register that holds `value`; variables are known by name."""
        if value in self._known:
            return self._known[value]
        found = self._compile(value)
        self._known[value] = found
        return found

    def when(self, register: int) -> int:
        """The number of the register's point, BIND or ONCE."""
        return self._when[register]

    def check_holds(self, register: int, step: int) -> None:
        """The register must have a value in that step."""
        when = self._when[register]
        if when >= 0 and not self._points[when].holds_at(step):
            names = ", ".join(v.name for v in self._points[when].variables)
            raise InternalError("optable", f"step {step} reads what only {names} says elsewhere.")

    def combine(self, op: Opcode, a: int, b: int) -> int:
        """The register of `a op b` for two registers."""
        key = (op, a, b)
        if key not in self._known:
            when = self._last(self._when[a], self._when[b])
            result = self._new(0, when)
            self._code(when).append((int(op), result, a, b))
            self._known[key] = result
        return self._known[key]

    def high_water(self, value: Dim) -> int:
        """A register that keeps the largest value that an expression ever had."""
        size = self.register(value)
        when = max(self._when[size], BIND)
        register = self._new(0, when)
        self._code(when).append((int(Opcode.MAX), register, register, size))
        return register

    def _code(self, when: int) -> list[Instruction]:
        return self.instructions if when == BIND else self.late[when]

    def _last(self, a: int, b: int) -> int:
        """The point of what needs both: the later one, where the earlier still holds."""
        if min(a, b) < 0 or a == b:
            return max(a, b, BIND)
        early, late = sorted((a, b), key=lambda when: self._points[when].first)
        if not self._points[early].holds_at(self._points[late].first):
            names = [v.name for k in (early, late) for v in self._points[k].variables]
            raise InternalError("optable", f"{', '.join(names)} have no values at the same time.")
        return late

    def _compile(self, value: Dim) -> int:
        match value:
            case int():
                return self._new(value, ONCE)
            case Variable():
                return self._names[value.name]
            case Fn():
                a, b = (self.register(arg) for arg in value.args)
                return self.combine(_FUNCTIONS[value.kind], a, b)
            case Index():
                raise KeyError(value.name)
        total: int | None = None
        for monomial, coefficient in terms(value):
            term = self._term(monomial, coefficient)
            total = term if total is None else self.combine(Opcode.ADD, total, term)
        return self.register(0) if total is None else total

    def _term(self, monomial: Sequence[Dim], coefficient: int) -> int:
        factors = [self.register(atom) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, self.register(coefficient))
        result = factors[0]
        for factor in factors[1:]:
            result = self.combine(Opcode.MUL, result, factor)
        return result

    def _new(self, initial: int, when: int) -> int:
        self.initial.append(initial)
        self._when.append(when)
        return len(self.initial) - 1
