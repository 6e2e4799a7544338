"""The kernel IR: loops, loads, stores and scalar values.

    Group --lower--> Kernel --codegen--> native code
                        \\--interpret--> NumPy arrays (the oracle)

A kernel computes the tiles [0, tiles) of one fused group; any range of tiles may
be computed by any thread. Its body is a tree of statements over *values*. A value
is a pure scalar expression, hash-consed, so that identity is equality and common
subexpressions are shared by construction. Indices are `semel.ir.expr` expressions
over loop indices and variables.

A value is scalar here even where the machine will use vectors: a `Loop` with
`lanes > 1` says that its iterations may run as vector lanes, `Reduce` says how an
accumulator declared outside such a loop is combined. Math functions (`exp`, `erf`)
are values of their own until `kernel.math` replaces them by arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from semel.ir.expr import Dim, Index, Variable
from semel.ir.signature import CheckInfo
from semel.kernel.values import (
    ARITHMETIC,
    COMBINES,
    COMPARISONS,
    MATH,
    Buffer,
    Combine,
    Local,
    Value,
    bitcast,
    cast,
    const,
    fma,
    index,
    load,
    local,
    op,
    select,
    start_value,
    walk_values,
    with_args,
    word,
    word_dtype,
)

__all__ = [
    "ARITHMETIC",
    "COMBINES",
    "COMPARISONS",
    "MATH",
    "Assign",
    "Bind",
    "Block",
    "BlockDot",
    "Buffer",
    "Check",
    "Combine",
    "Declare",
    "If",
    "Kernel",
    "Local",
    "Loop",
    "Prefetch",
    "Reduce",
    "Statement",
    "Store",
    "Value",
    "bitcast",
    "cast",
    "const",
    "fma",
    "index",
    "load",
    "local",
    "op",
    "select",
    "start_value",
    "statement_values",
    "walk_statements",
    "walk_values",
    "with_args",
    "word",
    "word_dtype",
]

# ---------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True)
class Loop:
    """for index in [start, stop): body.

    lanes == 1: one iteration after the other. lanes > 1: iterations are independent but
    for `Reduce`, and run as vectors of that many lanes, the rest masked.
    `unroll`: the trip count is a small constant; the body is repeated and `index` is a
    constant in it.
    """

    index: Index
    start: Dim
    stop: Dim
    body: tuple[Statement, ...]
    lanes: int = 1
    unroll: bool = False


@dataclass(frozen=True, slots=True)
class Declare:
    """A mutable local with its first value (for all copies)."""

    local: Local
    init: Value


@dataclass(frozen=True, slots=True)
class Assign:
    """local = value."""

    local: Local
    value: Value
    at: tuple[Dim, ...] = ()


@dataclass(frozen=True, slots=True)
class Reduce:
    """local = combine(local, value); the only way vector lanes may meet.

    `combine` is a name in `COMBINES`. An fma has two values (local += v0*v1), so has a dot (two
    words: an int32 local += the products of their bytes, signed in an int32, unsigned in a
    uint32); argmax and argmin carry two locals (the best value, its index).
    """

    locals: tuple[Local, ...]
    combine: str
    values: tuple[Value, ...]
    at: tuple[Dim, ...] = ()


@dataclass(frozen=True, slots=True)
class Bind:
    """Give an index atom a value computed from memory; it must lie in [0, extent)."""

    index: Index
    value: Value


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[at] = value, where guard (if any) holds."""

    buffer: Buffer
    at: Dim
    value: Value
    guard: Value | None = None


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A hint that buffer[at] will be read soon; `at` may lie past the end."""

    buffer: Buffer
    at: Dim


@dataclass(frozen=True, slots=True)
class Block:
    """Rows in a buffer: element (r, c) is buffer[at + r * pitch + c]."""

    buffer: Buffer
    at: Dim
    pitch: Dim


@dataclass(frozen=True, slots=True)
class BlockDot:
    """into[r, c] = the sum over w < words of the dot of word (r, w) of left and (w, c) of right.

    `rows` x `columns` sums at once, 16 or 32 each, for targets that have registers for it;
    `into` is int32 scratch, `left` holds bytes (a word is four), `right` int32 words of signed
    bytes. `words` is a multiple of 16. Only the first `live` rows of left and of the result
    mean anything; the others must be inside the buffers.
    """

    into: Block
    left: Block
    right: Block
    words: Dim
    rows: int
    columns: int
    live: Dim

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Every index expression of the statement."""
        blocks = (self.into, self.left, self.right)
        return (*(d for b in blocks for d in (b.at, b.pitch)), self.words, self.live)


@dataclass(frozen=True, slots=True)
class Check:
    """Unless `ok`, report (code, value) in the status word and go on.

    Codes count from 1: code c is explained by entry c - 1 of the kernel's `checks`.
    """

    ok: Value
    code: int
    value: Value


@dataclass(frozen=True, slots=True)
class If:
    """Run body where condition holds; only in scalar code."""

    condition: Value
    body: tuple[Statement, ...]


Statement: TypeAlias = (
    "Loop | Declare | Assign | Reduce | Bind | Store | Prefetch | BlockDot | Check | If"
)


@dataclass(frozen=True)
class Kernel:
    """One native function. `tiles` of it, each `body` with `tile` bound, in any order.

    `buffers` are the arguments in ABI order (outputs first), `variables` the positional
    int64 values in ABI order. `flops` and `bytes` are per whole kernel, for the cost model.
    """

    name: str
    buffers: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    variables: tuple[Variable, ...]
    tile: Index
    tiles: Dim
    body: tuple[Statement, ...]
    checks: tuple[CheckInfo, ...] = ()
    flops: Dim = 0
    bytes: Dim = 0
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def num_outputs(self) -> int:
        return sum(1 for b in self.buffers if "w" in b.access)


def statement_values(statement: Statement) -> tuple[Value, ...]:
    """The values a statement uses itself, not those of statements inside it."""
    match statement:
        case Loop() | Prefetch() | BlockDot():
            return ()
        case Declare(init=value) | Assign(value=value) | Bind(value=value) | If(condition=value):
            return (value,)
        case Reduce(values=values):
            return values
        case Store(value=value, guard=guard):
            return (value,) if guard is None else (value, guard)
        case Check(ok=ok, value=value):
            return (ok, value)


def walk_statements(body: Sequence[Statement]) -> Iterator[Statement]:
    """Every statement, outer before inner."""
    for statement in body:
        yield statement
        if isinstance(statement, (Loop, If)):
            yield from walk_statements(statement.body)
