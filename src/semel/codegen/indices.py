"""Integer expressions: addresses, bounds and indices, as scalars or vectors of int64.

    Dim --_dim--> i64 SSA value (lane 0 of an open vector loop)
    Dim --_dim_vector--> one int64 per lane

A sum is added term by term from the outermost scope inwards, so that what a loop does
not change is computed outside it.
"""

from __future__ import annotations

from typing import Any

from semel.codegen.scalars import element_type, memory_type
from semel.codegen.scope import Emission, Ref, iota
from semel.ir.expr import (
    Dim,
    Fn,
    atoms,
    is_nonnegative,
    linear_coefficient,
    terms,
    upper_bound,
)
from semel.ir.types import INT64, DType
from semel.kernel.ir import Buffer


class Indices(Emission):
    """Index arithmetic, hoisted and remembered."""

    def _is_varying(self, at: Dim) -> bool:
        if self.vector is None:
            return False
        return any(a == self.vector.index or self.env[a].is_vector for a in atoms(at))

    def _stride(self, at: Dim) -> int | None:
        """The distance between neighbouring lanes if it is a known constant."""
        assert self.vector is not None
        if any(self.env[a].is_vector for a in atoms(at)):
            return None
        coefficient = linear_coefficient(at, self.vector.index)
        return coefficient if isinstance(coefficient, int) else None

    def _dim(self, dim: Dim) -> Ref:
        """An index as a scalar (lane 0 of an open vector loop), hoisted term by term."""
        if isinstance(dim, int):
            return Ref(str(dim), False, 0)
        return self._sum(sorted(terms(dim), key=lambda t: self._term_level(t[0])))

    def _term_level(self, monomial: tuple[Any, ...]) -> int:
        levels = [self.env[a].level for atom in monomial for a in atoms(atom)]
        return max(levels, default=-1)

    def _sum(self, parts: list[tuple[tuple[Any, ...], int]]) -> Ref:
        """Add terms from the outermost scope inwards; constants last, for address modes."""
        constant = 0
        total: Ref | None = None
        for monomial, coefficient in parts:
            if not monomial:
                constant = coefficient
                continue
            total = self._plus(total, self._product(monomial, coefficient))
        if total is None:
            return Ref(str(constant), False, 0)
        return self._plus(total, Ref(str(constant), False, 0)) if constant else total

    def _plus(self, a: Ref | None, b: Ref) -> Ref:
        return b if a is None else self._memo_binary("add nsw", a, b)

    def _memo_binary(self, word: str, a: Ref, b: Ref) -> Ref:
        key = (word, a.text, b.text)
        for scope in reversed(self.scopes):
            if key in scope.memo:
                return scope.memo[key]
        level = max(a.level, b.level)
        text = self.sink.emit(self.scopes[level].lines, f"{word} i64 {a.text}, {b.text}")
        ref = self.scopes[level].memo[key] = Ref(text, False, level)
        return ref

    def _product(self, monomial: tuple[Any, ...], coefficient: int) -> Ref:
        factors = sorted((self._atom(a) for a in monomial), key=lambda r: r.level)
        total = factors[0]
        for factor in factors[1:]:
            total = self._memo_binary("mul nsw", total, factor)
        if coefficient == 1:
            return total
        return self._memo_binary("mul nsw", total, Ref(str(coefficient), False, 0))

    def _atom(self, atom: Any) -> Ref:
        if not isinstance(atom, Fn):
            return self.env[atom]
        a, b = (self._dim(x) for x in atom.args)
        if atom.kind in ("min", "max"):
            key = (atom.kind, a.text, b.text)
            for scope in reversed(self.scopes):
                if key in scope.memo:
                    return scope.memo[key]
            level = max(a.level, b.level)
            name = f"llvm.s{atom.kind}.i64"
            text = self.sink.call(
                self.scopes[level].lines, "i64", name, ("i64", a.text), ("i64", b.text)
            )
            ref = self.scopes[level].memo[key] = Ref(text, False, level)
            return ref
        if is_nonnegative(atom.args[0]) and is_nonnegative(atom.args[1]):
            return self._memo_binary("udiv" if atom.kind == "floordiv" else "urem", a, b)
        op = "idiv" if atom.kind == "floordiv" else "imod"
        key = (op, a.text, b.text)
        for scope in reversed(self.scopes):
            if key in scope.memo:
                return scope.memo[key]
        level = max(a.level, b.level)
        text = self.scalars.apply(self.scopes[level].lines, op, INT64, [a.text, b.text], None)
        ref = self.scopes[level].memo[key] = Ref(text, False, level)
        return ref

    def _pointer(self, buffer: Buffer, at: Dim, level: int) -> str:
        """The address of an element: what is known outside is added outside."""
        kind = memory_type(buffer.dtype)
        base = Ref(self.pointers[buffer], False, 0)
        parts = terms(at) if not isinstance(at, int) else (((), at),)
        by_level: dict[int, list[tuple[tuple[Any, ...], int]]] = {}
        for monomial, coefficient in parts:
            by_level.setdefault(self._term_level(monomial), []).append((monomial, coefficient))
        constants = by_level.pop(-1, [])
        for step_level in sorted(by_level):
            offset = self._sum(by_level[step_level])
            base = self._memo_gep(kind, base, offset)
        if constants and constants[0][1]:
            base = self._memo_gep(kind, base, Ref(str(constants[0][1]), False, 0))
        return base.text

    def _memo_gep(self, kind: str, base: Ref, offset: Ref) -> Ref:
        key = ("gep", kind, base.text, offset.text)
        for scope in reversed(self.scopes):
            if key in scope.memo:
                return scope.memo[key]
        level = max(base.level, offset.level)
        text = self.sink.emit(
            self.scopes[level].lines, f"getelementptr {kind}, ptr {base.text}, i64 {offset.text}"
        )
        ref = self.scopes[level].memo[key] = Ref(text, False, level)
        return ref

    def _as_vector(self, ref: Ref, dtype: DType) -> str:
        """The value in every lane; splats of outer values are made in the outer scope."""
        if ref.is_vector:
            return ref.text
        assert self.vector is not None
        if not ref.text.startswith("%"):
            return self.scalars.raw(element_type(dtype), ref.text, self.vector.lanes)
        key = ("splat", ref.text, self.vector.lanes)
        for scope in reversed(self.scopes):
            if key in scope.memo:
                return scope.memo[key].text
        home = self.scopes[ref.level]
        text = self.scalars.splat(home.lines, element_type(dtype), ref.text, self.vector.lanes)
        home.memo[key] = Ref(text, True, ref.level)
        return text

    def _dim_vector(self, dim: Dim) -> str:
        """An index that differs from lane to lane, as a vector of int64."""
        assert self.vector is not None
        lanes, lines = self.vector.lanes, self.scope.lines
        key = ("lanes", dim)
        if key in self.scope.memo:
            return self.scope.memo[key].text
        if not self._is_varying(dim):
            return self._as_vector(self._dim(dim), INT64)
        text = self._affine_vector(dim)
        if text is None:
            total: str | None = None
            for monomial, coefficient in terms(dim):
                term = self._term_vector(monomial, coefficient)
                total = (
                    term
                    if total is None
                    else self.scalars.binary(lines, "add", "i64", lanes, total, term)
                )
            text = total or self.scalars.raw("i64", "0", lanes)
        self.scope.memo[key] = Ref(text, True, self.level)
        return text

    def _affine_vector(self, dim: Dim) -> str | None:
        """lane 0 + stride * lane, where the index is affine in the vector index."""
        assert self.vector is not None
        if any(self.env[a].is_vector for a in atoms(dim)):
            return None
        coefficient = linear_coefficient(dim, self.vector.index)
        if coefficient is None:
            return None
        lanes, lines = self.vector.lanes, self.scope.lines
        base = self._as_vector(self._dim(dim), INT64)
        steps = iota("i64", lanes)
        if coefficient != 1:
            scale = self._as_vector(self._dim(coefficient), INT64)
            steps = self.scalars.binary(lines, "mul", "i64", lanes, steps, scale)
        return self.scalars.binary(lines, "add", "i64", lanes, base, steps)

    def _term_vector(self, monomial: tuple[Any, ...], coefficient: int) -> str:
        assert self.vector is not None
        lanes, lines = self.vector.lanes, self.scope.lines
        text = self.scalars.raw("i64", str(coefficient), lanes)
        first = coefficient == 1
        for atom in monomial:
            factor = self._atom_vector(atom)
            if first:
                text, first = factor, False
            else:
                text = self.scalars.binary(lines, "mul", "i64", lanes, text, factor)
        return text

    def _atom_vector(self, atom: Any) -> str:
        assert self.vector is not None
        lanes, lines = self.vector.lanes, self.scope.lines
        if not isinstance(atom, Fn):
            if atom == self.vector.index:
                base = self._as_vector(self.env[atom], INT64)
                return self.scalars.binary(lines, "add", "i64", lanes, base, iota("i64", lanes))
            return self._as_vector(self.env[atom], INT64)
        if not self._is_varying(atom):
            return self._as_vector(self._atom(atom), INT64)
        args = [self._dim_vector(a) for a in atom.args]
        if atom.kind in ("min", "max"):
            return self.scalars.apply(lines, atom.kind, INT64, args, lanes)
        op = "idiv" if atom.kind == "floordiv" else "imod"
        high = upper_bound(atom.args[0])
        positive = all(is_nonnegative(a) for a in atom.args)
        if positive and isinstance(atom.args[1], int) and high is not None and high < 1 << 31:
            # 32-bit division by a constant is a multiplication that vectors have.
            word = "udiv" if op == "idiv" else "urem"
            small = self.scalars.convert(lines, "trunc", "i64", "i32", lanes, args[0])
            divisor = self.scalars.raw("i32", str(atom.args[1]), lanes)
            result = self.scalars.binary(lines, word, "i32", lanes, small, divisor)
            return self.scalars.convert(lines, "zext", "i32", "i64", lanes, result)
        return self.scalars.apply(lines, op, INT64, args, lanes)
