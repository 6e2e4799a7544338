"""What scalar parts must know of lanes: nothing, but whom to ask.

Values, locals and checks are emitted once for any number of lanes. What differs with lanes is
asked of a `Lanes`: `OneLane` where an element is computed at a time, `vector.VectorLanes`
where many are.
"""

from __future__ import annotations

from typing import Protocol

from semel.codegen.scalar.frame import LocalKey, Ref
from semel.codegen.scalar.llvm_types import element_type
from semel.errors import InternalError
from semel.ir.expr import Dim
from semel.ir.types import DType
from semel.kernel.ir import Local


class Lanes(Protocol):
    """The lanes of the open vector loop, if there is one."""

    @property
    def count(self) -> int | None:
        """How many there are; None for scalar code."""

    def is_varying(self, at: Dim) -> bool:
        """Whether an index differs from lane to lane."""

    def index(self, dim: Dim) -> str:
        """An index that varies, as a vector of int64."""

    def small_index(self, dim: Dim) -> str:
        """The same as a vector of int32."""

    def spread(self, ref: Ref, dtype: DType) -> str:
        """The value in every lane."""

    def choose(self, lines: list[str], dtype: DType, condition: Ref, a: Ref, b: Ref) -> str:
        """In every lane one of two values, of which one has lanes, or the condition."""

    def declared(self, ref: Ref, dtype: DType) -> Ref:
        """The value as a local holds it that is declared here."""

    def kind(self, local: Local, ref: Ref) -> str:
        """The LLVM type of a local that holds this value."""

    def kept(self, key: LocalKey, new: str, old: str) -> str:
        """What a reduction leaves in a local: idle lanes add nothing to totals."""

    def failing(self, bad: str, ok: Ref) -> tuple[str, str | None]:
        """Whether any lane fails, and which: as bits, if the check has lanes."""

    def first(self, value: Ref, bits: str | None) -> str:
        """The value of the first lane that fails."""


class OneLane:
    """Scalar code: every loop takes one element at a time."""

    count = None

    def is_varying(self, at: Dim) -> bool:
        return False

    def index(self, dim: Dim) -> str:
        raise InternalError("emit", f"index {dim} has lanes in scalar code.")

    def small_index(self, dim: Dim) -> str:
        return self.index(dim)

    def spread(self, ref: Ref, dtype: DType) -> str:
        raise InternalError("emit", f"value {ref.text} has lanes in scalar code.")

    def choose(self, lines: list[str], dtype: DType, condition: Ref, a: Ref, b: Ref) -> str:
        raise InternalError("emit", f"condition {condition.text} has lanes in scalar code.")

    def declared(self, ref: Ref, dtype: DType) -> Ref:
        return ref

    def kind(self, local: Local, ref: Ref) -> str:
        return element_type(local.dtype)

    def kept(self, key: LocalKey, new: str, old: str) -> str:
        return new

    def failing(self, bad: str, ok: Ref) -> tuple[str, str | None]:
        return bad, None

    def first(self, value: Ref, bits: str | None) -> str:
        return value.text
