"""Integer expressions: addresses, bounds and indices, as scalars.

    Dim --dim--> i64 SSA value (lane 0 of an open vector loop)
    (Buffer, Dim) --pointer--> the element's address

A sum is added term by term from the outermost scope inwards, so that what a loop does
not change is computed outside it. The taps of an unrolled window share most of their terms: an
expression whose indices stand for what they stood for, in a scope that is open, is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from semel.codegen.scalar.frame import Frame, Ref, Scope
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.integers import Integers
from semel.codegen.scalar.llvm_types import memory_type
from semel.ir.expr import (
    Atom,
    Dim,
    Expr,
    Fn,
    Index,
    Monomial,
    Variable,
    atoms,
    is_nonnegative,
    terms,
)
from semel.ir.types import INT64
from semel.kernel.ir import Buffer


@dataclass(frozen=True, slots=True)
class _Known:
    """What an expression was computed as, where that is, and what its atoms stood for."""

    ref: Ref
    scope: Scope
    meant: tuple[tuple[Variable | Index, Ref], ...]


class Indices:
    """Index arithmetic, hoisted and remembered."""

    def __init__(self, frame: Frame, out: Instructions, integers: Integers) -> None:
        self.frame, self.out, self.integers = frame, out, integers
        self._known: dict[Dim | Fn, _Known] = {}

    def dim(self, dim: Dim) -> Ref:
        """An index as a scalar (lane 0 of an open vector loop), hoisted term by term."""
        if isinstance(dim, int):
            return Ref(str(dim), False, 0)
        found = self._again(dim)
        if found is not None:
            return found
        made = self._sum(sorted(terms(dim), key=lambda t: self._term_level(t[0])))
        return self._remember(dim, made, atoms(dim))

    def level(self, dim: Dim) -> int:
        """The scope that an expression is known in."""
        env = self.frame.env
        return max([env[atom].level for atom in atoms(dim)], default=0)

    def _again(self, value: Dim | Fn) -> Ref | None:
        """What an expression was computed as, if that is there and means the same."""
        known = self._known.get(value)
        if known is None:
            return None
        frame, ref = self.frame, known.ref
        if ref.level >= len(frame.scopes) or frame.scopes[ref.level] is not known.scope:
            return None
        env = frame.env
        return ref if all(env[atom] is meant for atom, meant in known.meant) else None

    def _remember(self, value: Dim | Fn, ref: Ref, of: Iterable[Variable | Index]) -> Ref:
        env = self.frame.env
        meant = tuple((atom, env[atom]) for atom in of)
        self._known[value] = _Known(ref, self.frame.scopes[ref.level], meant)
        return ref

    def _term_level(self, monomial: tuple[Any, ...]) -> int:
        return max([self._atom_level(atom) for atom in monomial], default=-1)

    def _atom_level(self, atom: Atom) -> int:
        env = self.frame.env
        if not isinstance(atom, Fn):
            return env[atom].level
        return max([env[a].level for a in atoms(atom)], default=-1)

    def _sum(self, parts: list[tuple[tuple[Any, ...], int]]) -> Ref:
        """Add terms from the outermost scope inwards; constants last, for address modes."""
        constant = 0
        total: Ref | None = None
        groups: dict[Monomial, list[tuple[Monomial, int]]] = {}
        for monomial, coefficient in parts:
            if not monomial:
                constant = coefficient
                continue
            inner, outer = self._taken_apart(monomial)
            groups.setdefault(inner, []).append((outer, coefficient))
        for inner, factors in groups.items():
            total = self._plus(total, self._scaled(inner, factors))
        if total is None:
            return Ref(str(constant), False, 0)
        return self._plus(total, Ref(str(constant), False, 0)) if constant else total

    def _taken_apart(self, monomial: Monomial) -> tuple[Monomial, Monomial]:
        """The factors of the innermost scope that any of them is known in, and the others."""
        if len(monomial) == 1:
            return monomial, ()
        levels = [self._atom_level(atom) for atom in monomial]
        most = max(levels)
        if most == 0:
            return monomial, ()
        inner = tuple([a for a, level in zip(monomial, levels, strict=True) if level == most])
        outer = tuple([a for a, level in zip(monomial, levels, strict=True) if level != most])
        return inner, outer

    def _scaled(self, inner: Monomial, factors: list[tuple[Monomial, int]]) -> Ref:
        """A product of atoms, times the sum of what it is multiplied by, which is hoisted."""
        if len(factors) == 1:
            ((outer, coefficient),) = factors
            return self._product(outer + inner, coefficient)
        scale = self.dim(Expr(tuple(factors)))
        return self._binary("mul nsw", scale, self._product(inner, 1))

    def _plus(self, a: Ref | None, b: Ref) -> Ref:
        return b if a is None else self._binary("add nsw", a, b)

    def _binary(self, word: str, a: Ref, b: Ref) -> Ref:
        key = (word, a.text, b.text)
        found = self.frame.find(key)
        if found is not None:
            return found
        level = max(a.level, b.level)
        lines = self.frame.scopes[level].lines
        text = self.out.emit(lines, f"{word} i64 {a.text}, {b.text}")
        return self.frame.keep(key, Ref(text, False, level))

    def _product(self, monomial: tuple[Any, ...], coefficient: int) -> Ref:
        factors = sorted((self.atom(a) for a in monomial), key=lambda r: r.level)
        total = factors[0]
        for factor in factors[1:]:
            total = self._binary("mul nsw", total, factor)
        if coefficient == 1:
            return total
        return self._binary("mul nsw", total, Ref(str(coefficient), False, 0))

    def atom(self, atom: Any) -> Ref:
        """A variable, an index, or a function of two expressions."""
        if not isinstance(atom, Fn):
            return self.frame.env[atom]
        found = self._again(atom)
        if found is None:
            found = self._remember(atom, self._function(atom), atoms(atom))
        return found

    def _function(self, atom: Fn) -> Ref:
        a, b = (self.dim(x) for x in atom.args)
        is_division = atom.kind not in ("min", "max")
        if is_division and is_nonnegative(atom.args[0]) and is_nonnegative(atom.args[1]):
            return self._binary("udiv" if atom.kind == "floordiv" else "urem", a, b)
        key = (atom.kind, a.text, b.text)
        found = self.frame.find(key)
        if found is not None:
            return found
        level = max(a.level, b.level)
        lines = self.frame.scopes[level].lines
        if is_division:
            op = "idiv" if atom.kind == "floordiv" else "imod"
            text = self.integers.apply(lines, op, INT64, [a.text, b.text], None)
        else:
            name = f"llvm.s{atom.kind}.i64"
            text = self.out.call(lines, "i64", name, ("i64", a.text), ("i64", b.text))
        return self.frame.keep(key, Ref(text, False, level))

    def pointer(self, buffer: Buffer, at: Dim) -> str:
        """The address of an element: what is known outside is added outside."""
        kind = memory_type(buffer.dtype)
        base = Ref(self.frame.pointers[buffer], False, 0)
        parts = terms(at) if not isinstance(at, int) else (((), at),)
        by_level: dict[int, list[tuple[tuple[Any, ...], int]]] = {}
        for monomial, coefficient in parts:
            by_level.setdefault(self._term_level(monomial), []).append((monomial, coefficient))
        constants = by_level.pop(-1, [])
        for step_level in sorted(by_level):
            base = self._moved(kind, base, self._sum(by_level[step_level]))
        if constants and constants[0][1]:
            base = self._moved(kind, base, Ref(str(constants[0][1]), False, 0))
        return base.text

    def _moved(self, kind: str, base: Ref, offset: Ref) -> Ref:
        key = ("gep", kind, base.text, offset.text)
        found = self.frame.find(key)
        if found is not None:
            return found
        level = max(base.level, offset.level)
        lines = self.frame.scopes[level].lines
        text = self.out.emit(lines, f"getelementptr {kind}, ptr {base.text}, i64 {offset.text}")
        return self.frame.keep(key, Ref(text, False, level))
