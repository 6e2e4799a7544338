"""What the dims of an op's operands must satisfy, said once for compile time and run time.

    (attrs, operand types) --requirements--> dims that must be zero, each with its sentence

A requirement that can never hold is an error when the node is made (`check`). One
that holds for some values of the variables only is a guard (`semel.ops.guards`) and
is checked whenever the variables are bound. One that always holds costs nothing. So
`infer` and the guards cannot disagree: both read the `require` of the op's record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from semel.errors import GraphError
from semel.ir.expr import Dim, Fn, Index, atoms, bounds, maximum, product, terms, upper_bound
from semel.ir.opdef import find_op
from semel.ir.types import Shape, TensorType

#: What dtypes an op takes: letters of DType.kind, and words for people.
DOMAINS = {
    "any": ("biuf", "any dtype"),
    "number": ("iuf", "an integer or a float dtype"),
    "integer": ("iu", "an integer dtype"),
    "bits": ("biu", "a bool or an integer dtype"),
    "bool": ("b", "a bool dtype"),
    "float": ("f", "a float dtype"),
}


@dataclass(frozen=True, slots=True)
class Requirement:
    """`amount` must be zero; `text` says what must hold and what was found."""

    amount: Dim
    text: str

    @property
    def always_holds(self) -> bool:
        return self.amount == 0

    @property
    def never_holds(self) -> bool:
        low, high = bounds(self.amount)
        return (low is not None and low > 0) or (high is not None and high < 0)


def requirements(op: str, attrs: Any, types: Iterable[TensorType]) -> Iterator[Requirement]:
    """Everything `op` demands of the dims of its operands."""
    rule = find_op(op).require
    if rule is not None:
        yield from rule(attrs, *types)


def check(op: str, attrs: Any, *types: TensorType) -> None:
    """Raise GraphError for the first requirement that no value of the variables meets."""
    for requirement in requirements(op, attrs, types):
        if requirement.never_holds:
            raise GraphError(op, requirement.text)


def equal(a: Dim, b: Dim, text: str) -> Requirement:
    """a == b."""
    return Requirement(a - b, text)


def at_most(a: Dim, b: Dim, text: str) -> Requirement:
    """a <= b."""
    excess = a - b
    high = upper_bound(_without_division(excess))
    always = _never_runs(excess) or (high is not None and high <= 0)
    return Requirement(0 if always else maximum(excess, 0), text)


def _never_runs(value: Dim) -> bool:
    """Whether the value belongs to a loop of no iterations, where anything holds."""
    return any(isinstance(atom, Index) and atom.extent == 0 for atom in atoms(value))


def _without_division(value: Dim) -> Dim:
    """An upper bound free of c * (e // d) with d | c: 2*((n + 1)//2) is at most n + 1."""
    result: Dim = 0
    for monomial, coefficient in terms(value):
        term: Dim = coefficient * product(monomial)
        if len(monomial) == 1 and isinstance(monomial[0], Fn) and monomial[0].kind == "floordiv":
            dividend, divisor = monomial[0].args
            if isinstance(divisor, int) and divisor > 0 and coefficient % divisor == 0:
                # e - d + 1 <= d * (e // d) <= e
                bound = dividend if coefficient > 0 else dividend - divisor + 1
                term = coefficient // divisor * bound
        result = result + term
    return result


def same_dims(a: TensorType, b: TensorType, but: int = -1) -> Iterator[Requirement]:
    """The dims of two operands of one rank agree, except along axis `but`."""
    for axis, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)):
        if axis != but and m != n:
            yield equal(m, n, f"dims {axis} must agree, got {m} in {a} and {n} in {b}.")


def check_count(op: str, types: tuple[TensorType, ...], count: int) -> None:
    """The number of operands is part of what an op is."""
    if len(types) != count:
        raise GraphError(op, f"needs {count} operands, got {len(types)}: {_listed(types)}.")


def check_same_dtype(op: str, types: tuple[TensorType, ...]) -> None:
    """Ops never convert by themselves: a frontend inserts casts."""
    if any(t.dtype != types[0].dtype for t in types):
        raise GraphError(
            op, f"operands must have one dtype, got {_listed(types)}.", hint="Cast one of them."
        )


def check_same_rank(op: str, types: tuple[TensorType, ...]) -> None:
    """Ops never broadcast by themselves: a frontend inserts reshapes and expands."""
    if any(t.rank != types[0].rank for t in types):
        raise GraphError(op, f"operands must have one rank, got {_listed(types)}.")


def check_axis(op: str, axis: int, x: TensorType) -> None:
    """An axis lies in [0, rank); negative ones are resolved by a frontend."""
    if not 0 <= axis < x.rank:
        raise GraphError(op, f"axis must lie in [0, {x.rank}), got axis={axis!r} for {x}.")


def check_dtype(op: str, x: TensorType, kinds: str, words: str) -> None:
    """The operand's dtype is of one of `kinds` (letters of DType.kind)."""
    if x.dtype.kind not in kinds:
        raise GraphError(op, f"needs {words}, got {x}.", hint="Cast it first.")


def check_domain(op: str, x: TensorType, domain: str) -> None:
    """The operand's dtype is of a domain, a key of `DOMAINS`."""
    check_dtype(op, x, *DOMAINS[domain])


def check_dims(op: str, shape: Shape) -> None:
    """A dim that is a number is never negative."""
    for dim in shape:
        _, high = bounds(dim)
        if high is not None and high < 0:
            text = ", ".join(str(d) for d in shape)
            raise GraphError(op, f"dims must be >= 0, got ({text}).")


def _listed(types: tuple[TensorType, ...]) -> str:
    return ", ".join(str(t) for t in types)
