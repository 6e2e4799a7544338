"""How much a kernel from a stranger may ask for: of the compiler, of 64 bits, of time.

    Kernel  --excesses-->  what is too much (empty: nothing)

All limits count something in the text, so that a file is refused on every machine or on none.
Kernels of our own stay well below: 32 lanes, 12 copies, 160,000 operations after unrolling.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from semel.ir.expr import Dim, Fn, Index, Variable, bounds, terms
from semel.kernel import ir
from semel.kernel.ir import Kernel, Statement, statement_values, walk_statements, walk_values

MAX_LANES = 256
MAX_COPIES = 1024
MAX_EMITTED = 1 << 18
MAX_NUMBER = 1 << 62
#: The largest value of a variable without a maximum, in plans of strangers.
MAX_UNBOUNDED = 1 << 24
#: Iterations: a number that takes a moment, and so many for each pair of elements; the second
#: for kernels with variables, whose loops look longer than they are.
_FREE_ITERATIONS, _PER_PAIR, _PER_PAIR_WITH_VARIABLES = 1 << 24, 64, 1 << 20


def excesses(kernel: Kernel) -> list[str]:
    """Everything that is too much."""
    found: list[str] = []
    for statement in walk_statements(kernel.body):
        match statement:
            case ir.Loop(index=index, lanes=lanes) if lanes > MAX_LANES:
                found.append(f"loop '{index}' must have at most {MAX_LANES} lanes, got {lanes}")
            case ir.Declare(local=local) if prod(local.copies, start=1) > MAX_COPIES:
                found.append(
                    f"local '{local.name}' must have at most {MAX_COPIES} copies, "
                    f"got {local.copies}"
                )
    emitted = _emitted(kernel.body)
    if emitted > MAX_EMITTED:
        found.append(f"unrolled, it must have at most {MAX_EMITTED} operations, got {emitted}")
    sizes = [magnitude(b.size, 64) for b in (*kernel.buffers, *kernel.scratch)]
    per_pair = _PER_PAIR_WITH_VARIABLES if kernel.variables else _PER_PAIR
    most = _FREE_ITERATIONS + per_pair * sum(sizes) ** 2
    iterations = magnitude(kernel.tiles, 64) * _iterations(kernel.body)
    if iterations > most:
        found.append(f"loops must take at most {most} iterations, got {iterations}")
    return found


def magnitude(dim: Dim, unbounded: int = MAX_UNBOUNDED) -> int:
    """No smaller than the number, nor than any that is met on the way to it.

    `unbounded` stands for variables without a maximum.
    """
    known: dict[Dim, int] = {}

    def of(value: Dim) -> int:
        if isinstance(value, int):
            return abs(value)
        if value not in known:
            known[value] = sum(
                abs(factor) * prod((of_atom(a) for a in atoms), start=1)
                for atoms, factor in terms(value)
            )
        return known[value]

    def of_atom(atom: Variable | Index | Fn) -> int:
        match atom:
            case Variable(min=low, max=high):
                return max(abs(low), max(unbounded, low) if high is None else abs(high))
            case Index(extent=extent):
                return of(extent)
            case Fn(kind="floordiv", args=(a, _)):
                return of(a)
            case Fn(kind="mod", args=(_, b)):
                return of(b)
        return max(of(a) for a in atom.args)

    return of(dim)


def _emitted(body: Sequence[Statement]) -> int:
    """How many operations the compiler sees, with loops unrolled."""
    count = 0
    for statement in body:
        count += 1 + sum(1 for _ in walk_values(statement_values(statement)))
        if isinstance(statement, ir.Loop):
            trips = statement.stop - statement.start if statement.unroll else 2
            count += _emitted(statement.body) * (max(trips, 0) if isinstance(trips, int) else 1)
        elif isinstance(statement, ir.If):
            count += _emitted(statement.body)
    return count


def _iterations(body: Sequence[Statement]) -> int:
    count = 1
    for statement in body:
        if isinstance(statement, ir.Loop):
            count += _trips(statement) * _iterations(statement.body)
        elif isinstance(statement, ir.If):
            count += _iterations(statement.body)
    return count


def _trips(loop: ir.Loop) -> int:
    """At most so many iterations."""
    _, length = bounds(loop.stop - loop.start)
    extent = magnitude(loop.index.extent, 64)
    return extent if length is None else min(extent, max(length, 0))
