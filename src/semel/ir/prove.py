"""Whether an integer expression is certainly >= 0, by what is known of its atoms.

    Knowledge (ranges of indices, facts)  --proves(expression)-->  True, or "not found"

The atom that was defined last is eliminated first: P = Q*x + R is at least Q*low + R where
Q >= 0, and at least Q*high + R where Q <= 0. Bounds are expressions of earlier atoms, so that
the search ends; what remains are variables and numbers. A division a // b lies between
(a - b + 1)/b and a/b, which is said without fractions: P >= 0 exactly if b*P >= 1 - b. A
fact f >= 0 that ends in the same atom is subtracted as often as makes the atom disappear.

True is a proof. False means that none was found: the number of steps is limited, so that an
expression from a file cannot make this take long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from semel.ir.expr import (
    Atom,
    Dim,
    Fn,
    Index,
    Variable,
    atoms,
    bounds,
    maximum,
    minimum,
    split,
    terms,
)

#: Steps of one proof, and of all proofs of one kernel.
_MAX_STEPS, _MAX_ALL_STEPS = 300, 4_000
_MAX_TERMS = 60

#: Expressions that an index is at least, and at most.
Range: TypeAlias = "tuple[Sequence[Dim], Sequence[Dim]]"


class Budget:
    """How many steps are left, for one proof and for all proofs of one kernel together."""

    def __init__(self) -> None:
        self._left, self._all_left = 0, _MAX_ALL_STEPS

    def start(self) -> None:
        """A new proof begins."""
        self._left = min(_MAX_STEPS, self._all_left)

    def spend(self) -> bool:
        """Take one step; False if there is none."""
        self._left -= 1
        self._all_left -= 1
        return self._left >= 0


class Knowledge:
    """What holds at one place of a kernel.

    `ranges` has bounds of indices, as expressions of indices that come before them (`order`);
    `facts` are expressions that are >= 0.
    """

    def __init__(
        self,
        ranges: Mapping[Index, Range],
        order: Mapping[Index, int],
        budget: Budget,
        facts: Sequence[Dim] = (),
    ) -> None:
        self._ranges, self._order, self._budget = ranges, order, budget
        self._facts: dict[Atom, list[Dim]] = {}
        self._known: dict[Dim, bool] = {}
        self.facts = tuple(facts)
        #: Facts that cannot be: nothing ever happens here.
        self._is_dead = any(isinstance(f, int) and f < 0 for f in self.facts)
        for fact in self.facts:
            if not isinstance(fact, int):
                self._facts.setdefault(self._latest(fact), []).append(fact)

    def with_facts(self, facts: Sequence[Dim]) -> Knowledge:
        """The same, with more facts."""
        new = [f for f in facts if f not in self.facts]
        if not new:
            return self
        return Knowledge(self._ranges, self._order, self._budget, (*self.facts, *new))

    def proves(self, value: Dim) -> bool:
        """Whether value >= 0 has a proof."""
        self._budget.start()
        return self._proves(value)

    def _proves(self, value: Dim) -> bool:
        if isinstance(value, int) or self._is_dead:
            return self._is_dead or value >= 0  # type: ignore[operator]
        found = self._known.get(value)
        if found is None:
            low, high = bounds(value)
            if low is not None and low >= 0:
                found = True
            elif high is not None and high < 0:
                found = False
            else:
                self._known[value] = False  # while it is being asked
                found = self._search(value)
            self._known[value] = found
        return found

    def _search(self, value: Dim) -> bool:
        if not self._budget.spend() or len(terms(value)) > _MAX_TERMS:
            return False
        atom = self._latest(value)
        factor, rest = split(value, atom)
        if self._proves(factor):
            return any(self._proves(v) for v in self._lower(atom, factor, rest)) or self._by_fact(
                value, atom, factor, 1
            )
        if self._proves(-factor):
            return any(self._proves(v) for v in self._upper(atom, factor, rest)) or self._by_fact(
                value, atom, factor, -1
            )
        return False

    # ------------------------------------------------------------ bounds of atoms

    def _lower(self, atom: Atom, factor: Dim, rest: Dim) -> Iterator[Dim]:
        """Expressions that are >= 0 only if factor*atom + rest is, for a factor >= 0."""
        if isinstance(atom, Fn):
            yield from self._lower_function(atom, factor, rest)
        elif isinstance(atom, Variable):
            yield factor * atom.min + rest
        else:
            for low in self._ranges.get(atom, ((), ()))[0]:
                yield factor * low + rest

    def _upper(self, atom: Atom, factor: Dim, rest: Dim) -> Iterator[Dim]:
        """The same for a factor <= 0."""
        if isinstance(atom, Fn):
            yield from self._upper_function(atom, factor, rest)
        elif isinstance(atom, Variable):
            if atom.max is not None:
                yield factor * atom.max + rest
        else:
            for high in self._ranges.get(atom, ((), ()))[1]:
                yield factor * high + rest

    def _lower_function(self, atom: Fn, factor: Dim, rest: Dim) -> Iterator[Dim]:
        a, b = atom.args
        match atom.kind:
            case "min":
                if self._proves(factor * a + rest):
                    yield factor * b + rest
            case "max":
                yield factor * a + rest
                yield factor * b + rest
            case "mod":
                yield rest
                if self._proves(b - 1):
                    # a - b * (a // b), which is at least a - b * high
                    yield factor * (a - b * (a // b)) + rest
            case _:
                if self._proves(b - 1):
                    low, _ = bounds(atom)
                    if low is not None:
                        yield factor * low + rest
                    elif self._proves(a):
                        yield rest
                    if (cases := _cases(atom)) is not None:
                        yield factor * cases + rest
                    yield factor * (a - b + 1) + b * rest + b - 1

    def _upper_function(self, atom: Fn, factor: Dim, rest: Dim) -> Iterator[Dim]:
        a, b = atom.args
        match atom.kind:
            case "min":
                yield factor * a + rest
                yield factor * b + rest
            case "max":
                if self._proves(factor * a + rest):
                    yield factor * b + rest
            case "mod":
                if self._proves(b - 1):
                    yield factor * (b - 1) + rest
                    if self._proves(a):
                        yield factor * a + rest
                    yield factor * (a - b * (a // b)) + rest
            case _:
                if self._proves(b - 1):
                    _, high = bounds(atom)
                    if high is not None:
                        yield factor * high + rest
                    if (cases := _cases(atom)) is not None:
                        yield factor * cases + rest
                    yield factor * a + b * rest + b - 1

    def _by_fact(self, value: Dim, atom: Atom, factor: Dim, sign: int) -> bool:
        """Subtract a fact so often that the atom is gone."""
        for fact in self._facts.get(atom, ()):
            own, _ = split(fact, atom)
            if own == factor:
                if self._proves(value - fact):
                    return True
            elif self._proves(own * sign - 1):
                size = own * sign
                slack = size - 1 if isinstance(size, int) else 0
                if self._proves(size * value - factor * sign * fact + slack):
                    return True
        return False

    # ------------------------------------------------------------ order

    def _latest(self, value: Dim) -> Atom:
        found = {atom for monomial, _ in terms(value) for atom in monomial}
        return max(found, key=self._place)

    def _place(self, atom: Atom) -> tuple[int, int, tuple[object, ...]]:
        at = max((self._order.get(a, -1) for a in atoms(atom)), default=-1)  # type: ignore[arg-type]
        return at, _depth(atom), atom._key()


def _cases(atom: Fn) -> Dim | None:
    """(c + k*min(x, y)) // d as min((c + k*x) // d, (c + k*y) // d), for k > 0; max likewise."""
    whole, divisor = atom.args
    for monomial, coefficient in terms(whole):
        if len(monomial) == 1 and isinstance(inner := monomial[0], Fn) and coefficient > 0:
            factor, rest = split(whole, inner)
            if inner.kind in ("min", "max") and factor == coefficient:
                x, y = ((factor * arg + rest) // divisor for arg in inner.args)
                return minimum(x, y) if inner.kind == "min" else maximum(x, y)
    return None


def _depth(value: Dim) -> int:
    """How deep functions are nested."""
    if isinstance(value, Fn):
        return 1 + max(_depth(a) for a in value.args)
    if isinstance(value, (int, Variable, Index)):
        return 0
    return max(_depth(a) for monomial, _ in value.terms for a in monomial)
