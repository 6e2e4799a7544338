"""What a condition says about integers, as expressions that are >= 0.

    bool Value  --Conditions.facts-->  tuple[Dim, ...]
    int Value   --Conditions.dim-->    Dim
    statements  --assume-->            those without conditions that are known to hold

A value that is no index expression (a load, a local) takes part as a variable of its own, with
the range of its dtype: two uses of one value in one statement are one number. Across statements
that holds only for what no store can change, so `lasting_facts` leaves the others out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semel.ir.expr import Dim, Variable, bounds, maximum, minimum, variables
from semel.ir.types import BOOL, DType
from semel.kernel import ir
from semel.kernel.ir import Statement, Value, walk_values
from semel.kernel.rewrite import ValueMap, map_statements

_COMPARED: dict[str, Callable[[Dim, Dim], tuple[Dim, ...]]] = {
    "lt": lambda a, b: (b - a - 1,),
    "le": lambda a, b: (b - a,),
    "gt": lambda a, b: (a - b - 1,),
    "ge": lambda a, b: (a - b,),
    "eq": lambda a, b: (a - b, b - a),
}
_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "ne": "eq"}
_EXACT: dict[str, Callable[[Dim, Dim], Dim]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": minimum,
    "max": maximum,
}


class Conditions:
    """The reading of one kernel's values; each is read once."""

    def __init__(self) -> None:
        self._dims: dict[Value, Dim] = {}
        self._passing: set[Variable] = set()

    def facts(self, condition: Value, *, holds: bool = True) -> tuple[Dim, ...]:
        """What is >= 0 where the condition holds (or, with `holds=False`, where it does not)."""
        found: dict[Dim, None] = {}
        seen: set[tuple[Value, bool]] = set()
        stack = [(condition, holds)]
        while stack:
            value, truth = stack.pop()
            if (value, truth) in seen:
                continue
            seen.add((value, truth))
            if value.op == "not":
                stack.append((value.args[0], not truth))
            elif value.op == ("and" if truth else "or"):
                stack.extend((a, truth) for a in value.args)
            elif value.args and value.args[0].dtype.is_integer:
                op = value.op if truth else _NEGATED.get(value.op, "")
                if op in _COMPARED:
                    a, b = (self.dim(arg) for arg in value.args)
                    found.update(dict.fromkeys(_COMPARED[op](a, b)))
        return tuple(found)

    def lasting_facts(self, condition: Value) -> tuple[Dim, ...]:
        """The facts that still hold in later statements."""
        return tuple(
            f for f in self.facts(condition) if not self._passing.intersection(variables(f))
        )

    def dim(self, value: Value) -> Dim:
        """The integer as an expression; exact, without wrapping."""
        for v in walk_values([value]):
            if v not in self._dims and v.dtype.is_integer:
                self._dims[v] = self._read(v)
        return self._dims[value]

    def _read(self, value: Value) -> Dim:
        if value.op == "const":
            return int(value.data)
        if value.op == "index":
            found: Dim = value.data
            return found
        if value.op == "cast" and value.args[0].dtype.is_integer:
            inner = self._dims[value.args[0]]
            if _fits(inner, value.dtype):
                return inner
        elif value.op in _EXACT:
            exact = _EXACT[value.op](*(self._dims[a] for a in value.args))
            if _fits(exact, value.dtype):
                return exact
        return self._unknown(value)

    def _unknown(self, value: Value) -> Dim:
        """A variable for what is not known; Variables start at 0, so it is shifted."""
        low, high = _range(value.dtype)
        variable = Variable(f"value{len(self._dims)}", 0, high - low)
        if any(v.op == "local" or (v.op in ("load", "word") and v.data[0].access != "r")
               for v in walk_values([value])):  # fmt: skip
            self._passing.add(variable)
        return variable + low


def _range(dtype: DType) -> tuple[int, int]:
    if dtype.kind == "u":
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


def _fits(value: Dim, dtype: DType) -> bool:
    low, high = bounds(value)
    least, most = _range(dtype)
    return low is not None and high is not None and least <= low and high <= most


# ---------------------------------------------------------------- what is known


def assume(
    body: Sequence[Statement],
    holds: Callable[[Value], bool],
    fails: Callable[[Value], bool] = lambda value: False,
) -> tuple[Statement, ...]:
    """The statements where some comparisons are known to hold, or not to: they are not asked any
    more, and what is loaded only where one holds is not loaded where it does not."""
    yes, no = ir.const(BOOL, True), ir.const(BOOL, False)

    def leaf(value: Value) -> Value:
        match value.op:
            case "and" if no in value.args:
                return no
            case "and" if yes in value.args:
                return next((a for a in value.args if a is not yes), yes)
            case "select":
                return ir.select(*value.args)
            case "load" if value.args[:1] == (yes,):
                return ir.load(*value.data)
            case "load" if value.args[:1] == (no,) and len(value.args) > 1:
                return value.args[1]
            case op if op in ir.COMPARISONS:
                return yes if holds(value) else no if fails(value) else value
        return value

    return map_statements(body, ValueMap(leaf))


def follows_from(facts: Sequence[Dim]) -> Callable[[Value], bool]:
    """Whether a comparison says no more than that some of these are >= 0; by their word."""
    known, conditions = set(facts), Conditions()

    def holds(value: Value) -> bool:
        if value.op not in _COMPARED or not value.args[0].dtype.is_integer:
            return False
        return known.issuperset(conditions.facts(value))

    return holds
