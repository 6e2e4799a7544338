"""What the emitter has under construction: scopes, SSA values, the open vector loop.

    Emission: the state that every part of the emitter shares

The emitter is one object, written in layers, each a file: `scope` (state), `indices`
(integer expressions), `values` (scalar expressions), `memory` (loads and stores), `transpose`
(blocks turned in registers), `loops`, and `emit` (statements and the function).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from semel.codegen.dots import Dots
from semel.codegen.scalars import Instructions, Scalars
from semel.errors import InternalError
from semel.ir.expr import Dim, Index, Variable
from semel.ir.target import Target
from semel.kernel.ir import Buffer, Kernel, Local, Value

#: A local and which of its copies.
LocalKey = tuple[Local, tuple[int, ...]]


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


@dataclass(frozen=True, slots=True)
class Vector:
    """The vector loop that is open: its index, lanes and mask (None: all lanes)."""

    index: Index
    lanes: int
    mask: str | None
    level: int
    is_single: bool = False  # the mask is known to keep lane 0 alone


class Emission:
    """The state of emitting one kernel."""

    def __init__(self, kernel: Kernel, target: Target, symbol: str) -> None:
        self.kernel, self.target, self.symbol = kernel, target, symbol
        self.sink = Instructions()
        has_scale = target.arch == "x86_64" and target.vector_bits == 512
        self.scalars = Scalars(
            self.sink,
            has_scale=has_scale,
            has_fma=target.has_fma,
            has_f16_casts=target.has_f16_casts,
        )
        self.dots = Dots(self.sink, self.scalars, target)
        self.scopes: list[Scope] = [Scope("entry")]
        self.env: dict[Variable | Index, Ref] = {}
        self.pointers: dict[Buffer, str] = {}
        self.locals: dict[LocalKey, Ref] = {}
        self.vector: Vector | None = None
        #: Locals of outer scopes that the open vector loop accumulates lane by lane.
        self._lane_totals: frozenset[tuple[Local, tuple[int, ...]]] = frozenset()
        self._memory = [b for b in (*kernel.buffers, *kernel.scratch) if b.access != "r"]
        self._reads: dict[Value, frozenset[Local | Buffer]] = {}
        #: How often each buffer that is read back was stored to, in the order of the code.
        self._stores: dict[Buffer, int] = {}

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    @property
    def level(self) -> int:
        return len(self.scopes) - 1

    def _label(self, scope: Scope, name: str) -> None:
        scope.lines.append(f"{name}:")
        scope.label = name


def constants(at: tuple[Dim, ...]) -> tuple[int, ...]:
    """Which copy of a local is meant; unrolled loops have made the index a number."""
    if not all(isinstance(d, int) for d in at):
        raise InternalError("emit", f"a copy of a local is indexed by {at}, not by constants.")
    return tuple(int(d) for d in at)  # type: ignore[arg-type]


def iota(element: str, lanes: int) -> str:
    """The constant vector 0, 1, 2, ..."""
    return "<" + ", ".join(f"{element} {i}" for i in range(lanes)) + ">"


def mangle(vector: str) -> str:
    """A vector type as intrinsics have it in their names: `v16f32`."""
    lanes, element = vector.strip("<>").split(" x ")
    return f"v{lanes}" + {"float": "f32", "double": "f64", "half": "f16"}.get(element, element)
