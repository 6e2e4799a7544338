"""The lanes of the open vector loop: indices, masks, values in every lane.

    Dim --index--> one int64 per lane

Which lane an element falls into depends on its index alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semel.codegen.scalar.frame import Frame, LocalKey, Ref
from semel.codegen.scalar.indices import Indices
from semel.codegen.scalar.instructions import Instructions
from semel.codegen.scalar.integers import Integers
from semel.codegen.scalar.llvm_types import element_type, iota, vector_of
from semel.ir.expr import (
    Dim,
    Fn,
    Index,
    atoms,
    bounds,
    is_nonnegative,
    linear_coefficient,
    terms,
    upper_bound,
)
from semel.ir.types import BOOL, INT64, DType
from semel.kernel.ir import Local

#: How often elements are repeated side by side where that is known of a vector.
REPEATS = (2, 4, 8)
#: From so many lanes on, a mask that is one bit in every lane, and comes from outside of a loop, is
#: put together lane by lane where the machine has no registers for masks.
MANY_LANES = 32


@dataclass(frozen=True, slots=True)
class Vector:
    """The vector loop that is open: its index, lanes and mask (None: all lanes).

    Lane 0 is some multiple of `steps` behind element `start`, where that is known.
    """

    index: Index
    lanes: int
    mask: str | None
    level: int
    is_single: bool = False  # the mask is known to keep lane 0 alone
    start: int | None = None
    steps: int = 1


class VectorLanes:
    """`Lanes` of LLVM's vectors."""

    def __init__(
        self, frame: Frame, out: Instructions, integers: Integers, indices: Indices
    ) -> None:
        self.frame, self.out, self.integers, self.indices = frame, out, integers, indices
        self.vector: Vector | None = None
        self.count: int | None = None
        #: Locals of outer scopes that the open vector loop accumulates lane by lane.
        #: The vectors that hold them are locals too, in the order of lanes.
        self.totals: dict[LocalKey, list[LocalKey]] = {}

    def open(self, vector: Vector) -> None:
        self.vector, self.count = vector, vector.lanes

    def close(self) -> None:
        self.vector = self.count = None

    @property
    def opened(self) -> Vector:
        """The open vector loop, where there must be one."""
        assert self.vector is not None
        return self.vector

    # ------------------------------------------------------------ values

    def spread(self, ref: Ref, dtype: DType) -> str:
        """The value in every lane; splats of outer values are made in the outer scope."""
        if ref.is_vector:
            return ref.text
        lanes = self.opened.lanes
        if not ref.text.startswith("%"):
            return self.out.raw(element_type(dtype), ref.text, lanes)
        key = ("splat", ref.text, lanes)
        found = self.frame.find(key)
        if found is not None:
            return found.text
        home = self.frame.scopes[ref.level]
        text = self.out.splat(home.lines, element_type(dtype), ref.text, lanes)
        return self.frame.keep(key, Ref(text, True, ref.level)).text

    def choose(self, lines: list[str], dtype: DType, condition: Ref, a: Ref, b: Ref) -> str:
        lanes, element = self.opened.lanes, element_type(dtype)
        kind, texts = vector_of(element, lanes), [self.spread(each, dtype) for each in (a, b)]
        if condition.is_vector or lanes < MANY_LANES:
            mask = self.spread(condition, BOOL)
            return self.out.select(lines, element, lanes, mask, *texts)
        return self.out.emit(
            lines, f"select i1 {condition.text}, {kind} {texts[0]}, {kind} {texts[1]}"
        )

    def declared(self, ref: Ref, dtype: DType) -> Ref:
        if self.vector is None:
            return ref
        # The text depends on the lanes, so it must not leave the loop.
        return Ref(self.spread(ref, dtype), True, max(ref.level, self.vector.level))

    def kind(self, local: Local, ref: Ref) -> str:
        return vector_of(element_type(local.dtype), self.count if ref.is_vector else None)

    def kept(self, key: LocalKey, new: str, old: str) -> str:
        """Idle lanes keep what they had, in totals alone.

        Locals of the loop itself need no mask: what idle lanes hold is never stored. LLVM
        would also merge it with that of a load, and may then load the lanes unmasked.
        """
        vector = self.opened
        if not vector.mask or key not in self.totals:
            return new
        element = element_type(key[0].dtype)
        return self.out.select(self.frame.lines, element, vector.lanes, vector.mask, new, old)

    # ------------------------------------------------------------ masks

    def mask(self, guard: Ref | None) -> str | None:
        """The lanes that may touch memory: those of the loop's mask and of the guard."""
        vector = self.opened
        if guard is None:
            return vector.mask
        keep = self.spread(guard, BOOL)
        if vector.mask is None:
            return keep
        return self.out.binary(self.frame.lines, "and", "i1", vector.lanes, keep, vector.mask)

    def failing(self, bad: str, ok: Ref) -> tuple[str, str | None]:
        if not ok.is_vector or self.vector is None:
            return bad, None
        lanes, lines = self.vector.lanes, self.frame.lines
        if self.vector.mask:
            bad = self.out.binary(lines, "and", "i1", lanes, bad, self.vector.mask)
        bits = self.out.emit(lines, f"bitcast <{lanes} x i1> {bad} to i{lanes}")
        return self.out.emit(lines, f"icmp ne i{lanes} {bits}, 0"), bits

    def first(self, value: Ref, bits: str | None) -> str:
        if bits is None or not value.is_vector:
            return value.text
        lanes, lines = self.opened.lanes, self.frame.lines
        kind = f"i{lanes}"
        lane = self.out.call(lines, kind, f"llvm.cttz.{kind}", (kind, bits), ("i1", "true"))
        return self.out.emit(lines, f"extractelement <{lanes} x i64> {value.text}, {kind} {lane}")

    # ------------------------------------------------------------ indices

    def is_varying(self, at: Dim) -> bool:
        vector = self.vector
        if vector is None:
            return False
        env = self.frame.env
        return any(a == vector.index or env[a].is_vector for a in atoms(at))

    def has_own_index(self, at: Dim) -> bool:
        """Whether an index in it, other than that of the vector loop, has lanes."""
        env = self.frame.env
        return any(env[a].is_vector for a in atoms(at))

    def stride(self, at: Dim) -> int | None:
        """The distance between neighbouring lanes if it is a known constant."""
        if self.has_own_index(at):
            return None
        coefficient = linear_coefficient(at, self.opened.index)
        return coefficient if isinstance(coefficient, int) else None

    def repeats(self, at: Dim) -> tuple[int, int] | None:
        """How many lanes in a row have the same element, and how many of them lie before lane 0,
        where an index is divided by a small power of two; None: it is something else."""
        varying = [(m, c) for m, c in terms(at) if any(map(self.is_varying, m))]
        if len(varying) != 1 or varying[0][1] != 1 or len(varying[0][0]) != 1:
            return None
        vector, (atom,) = self.opened, varying[0][0]
        if not isinstance(atom, Fn) or atom.kind != "floordiv" or vector.start is None:
            return None
        divided, count = atom.args
        if count not in REPEATS or vector.steps % count or self.has_own_index(divided):
            return None
        shift = divided - vector.index
        if not isinstance(shift, int):
            return None
        return count, (vector.start + shift) % count

    def switch(self, at: Dim) -> Dim | None:
        """The distance between neighbouring lanes if it is 0 or 1 as variables have it."""
        if self.has_own_index(at):
            return None
        coefficient = linear_coefficient(at, self.opened.index)
        is_switch = coefficient is not None and bounds(coefficient) == (0, 1)
        return coefficient if is_switch else None

    def small_index(self, dim: Dim) -> str:
        """An index as a vector of int32."""
        lanes, lines = self.opened.lanes, self.frame.lines
        if self.has_own_index(dim) or linear_coefficient(dim, self.opened.index) != 1:
            return self.out.convert(lines, "trunc", "i64", "i32", lanes, self.index(dim))
        first = self.out.emit(lines, f"trunc i64 {self.indices.dim(dim).text} to i32")
        every = self.out.splat(lines, "i32", first, lanes)
        return self.out.binary(lines, "add", "i32", lanes, every, iota("i32", lanes))

    def index(self, dim: Dim) -> str:
        """An index as a vector of int64."""
        lanes, lines, memo = self.opened.lanes, self.frame.lines, self.frame.scope.memo
        key = ("lanes", dim)
        if key in memo:
            return memo[key].text
        if not self.is_varying(dim):
            return self.spread(self.indices.dim(dim), INT64)
        text = self._affine(dim)
        if text is None:
            total: str | None = None
            for monomial, coefficient in terms(dim):
                term = self._term(monomial, coefficient)
                total = (
                    term
                    if total is None
                    else self.out.binary(lines, "add", "i64", lanes, total, term)
                )
            text = total or self.out.raw("i64", "0", lanes)
        memo[key] = Ref(text, True, self.frame.level)
        return text

    def _affine(self, dim: Dim) -> str | None:
        """lane 0 + stride * lane, where the index is affine in the vector index."""
        if self.has_own_index(dim):
            return None
        coefficient = linear_coefficient(dim, self.opened.index)
        if coefficient is None:
            return None
        lanes, lines = self.opened.lanes, self.frame.lines
        base = self.spread(self.indices.dim(dim), INT64)
        steps = iota("i64", lanes)
        if coefficient != 1:
            scale = self.spread(self.indices.dim(coefficient), INT64)
            steps = self.out.binary(lines, "mul", "i64", lanes, steps, scale)
        return self.out.binary(lines, "add", "i64", lanes, base, steps)

    def _term(self, monomial: tuple[Any, ...], coefficient: int) -> str:
        lanes, lines = self.opened.lanes, self.frame.lines
        text = self.out.raw("i64", str(coefficient), lanes)
        first = coefficient == 1
        for atom in monomial:
            factor = self._atom(atom)
            if first:
                text, first = factor, False
            else:
                text = self.out.binary(lines, "mul", "i64", lanes, text, factor)
        return text

    def _atom(self, atom: Any) -> str:
        lanes, lines = self.opened.lanes, self.frame.lines
        if not isinstance(atom, Fn):
            base = self.spread(self.frame.env[atom], INT64)
            if atom == self.opened.index:
                return self.out.binary(lines, "add", "i64", lanes, base, iota("i64", lanes))
            return base
        if not self.is_varying(atom):
            return self.spread(self.indices.atom(atom), INT64)
        args = [self.index(a) for a in atom.args]
        if atom.kind in ("min", "max"):
            return self.integers.apply(lines, atom.kind, INT64, args, lanes)
        op = "idiv" if atom.kind == "floordiv" else "imod"
        high = upper_bound(atom.args[0])
        positive = all(is_nonnegative(a) for a in atom.args)
        if positive and isinstance(atom.args[1], int) and high is not None and high < 1 << 31:
            # 32-bit division by a constant is a multiplication that vectors have.
            word = "udiv" if op == "idiv" else "urem"
            small = self.out.convert(lines, "trunc", "i64", "i32", lanes, args[0])
            divisor = self.out.raw("i32", str(atom.args[1]), lanes)
            result = self.out.binary(lines, word, "i32", lanes, small, divisor)
            return self.out.convert(lines, "zext", "i32", "i64", lanes, result)
        return self.integers.apply(lines, op, INT64, args, lanes)
