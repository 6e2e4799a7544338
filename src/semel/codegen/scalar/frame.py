"""What an emitter has under construction: scopes, SSA values, the state of memory.

A value is emitted in the outermost scope in which its operands are known, and each scope
remembers what it has: loop invariants leave their loops, and what is common is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from semel.errors import InternalError
from semel.ir.expr import Dim, Index, Variable
from semel.kernel.ir import Buffer, Local

#: A local and which of its copies.
LocalKey: TypeAlias = tuple[Local, tuple[int, ...]]


@dataclass(slots=True)
class Scope:
    """The straight-line code of one loop body (or of the function) under construction."""

    label: str
    lines: list[str] = field(default_factory=list)
    memo: dict[Any, Ref] = field(default_factory=dict)
    is_conditional: bool = False


@dataclass(frozen=True, slots=True)
class Ref:
    """An SSA value: its text, whether it has lanes, and the scope that defines it."""

    text: str
    is_vector: bool
    level: int


class Frame:
    """The state that all parts of an emitter share; it emits nothing itself."""

    def __init__(self, name: str) -> None:
        self.name = name  #: of the kernel, for messages
        self.scopes: list[Scope] = [Scope("entry")]
        self.env: dict[Variable | Index, Ref] = {}
        self.pointers: dict[Buffer, str] = {}
        self.locals: dict[LocalKey, Ref] = {}
        #: How often each buffer that is read back was stored to, in the order of the code.
        self.stores: dict[Buffer, int] = {}

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    @property
    def level(self) -> int:
        return len(self.scopes) - 1

    @property
    def lines(self) -> list[str]:
        """Those of the innermost scope."""
        return self.scopes[-1].lines

    def label(self, name: str) -> None:
        """Begin a block in the innermost scope."""
        scope = self.scopes[-1]
        scope.lines.append(f"{name}:")
        scope.label = name

    def find(self, key: Any) -> Ref | None:
        """What was remembered under a key in any open scope."""
        for scope in reversed(self.scopes):
            ref = scope.memo.get(key)
            if ref is not None:
                return ref
        return None

    def keep(self, key: Any, ref: Ref) -> Ref:
        """Remember a value in the scope that defines it."""
        self.scopes[ref.level].memo[key] = ref
        return ref

    def touch(self, buffer: Buffer) -> None:
        """Forget what was computed from the buffer's old contents."""
        self.stores[buffer] = self.stores.get(buffer, 0) + 1

    def forget_locals(self, outer: set[LocalKey]) -> None:
        """Drop the locals that were declared since these were all."""
        for key in self.locals.keys() - outer:
            del self.locals[key]


def constants(at: tuple[Dim, ...]) -> tuple[int, ...]:
    """Which copy of a local is meant; unrolled loops have made the index a number."""
    if not all(isinstance(d, int) for d in at):
        raise InternalError("emit", f"a copy of a local is indexed by {at}, not by constants.")
    return tuple(int(d) for d in at)  # type: ignore[arg-type]
