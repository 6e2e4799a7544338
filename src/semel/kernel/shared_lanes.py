"""How lanes share a reduction: said by the kernel's text alone, the same on every machine.

    Loop --widest_total--> bits of what its lanes add up to, None if any order gives the same bits

A vector loop of L lanes gives element k to lane k % L, as many whole times as there are L
elements. Lanes are then joined by halves (lane j and lane j + L/2) until R = `rest_lanes` are
left; what remains of the elements goes to lane k % R; these lanes are joined by halves too, and
what the accumulator held before the loop comes first of all. L and R count *logical* lanes: a wide
register carries several, a narrow machine takes several registers. No machine may change them.

A long row is taken in runs of `RUN` elements, each shared by lanes, whose sums are added in order:
any core may then take a run, in a kernel of its own or not, and no bit changes.

Integers, bools, and the places of extremes come out the same in any order: there a target may
choose the lanes.
"""

from __future__ import annotations

from collections.abc import Iterator

from semel.ir.expr import atoms
from semel.kernel import ir
from semel.kernel.ir import Local, Statement, walk_statements, walk_values

#: Partial sums of one reduction, in bits: 4 registers of AVX-512, 8 of AVX2, 16 of NEON. So many
#: additions are under way that none waits for the last; more would not fit AVX2.
TOTAL_BITS = 2048
#: Partial sums that take what does not fill all lanes.
REST_BITS = 512

#: Elements of one run. 16 Ki floats are 64 KiB: long enough to hide what starting a run costs.
RUN = 16384

#: Operations in a loop body up to which it runs on 4 or 2 registers at a time: independent
#: chains hide latency, but more of them than registers can hold would spill.
LIGHT_BODY = 11
MEDIUM_BODY = 40

_PLACES = ("argmax", "argmin")


def ordered_totals(loop: ir.Loop) -> dict[Local, str]:
    """The locals that a vector loop's lanes reduce into and whose value depends on the order.

    They are declared outside of the loop, and go with how they are combined.
    """
    inside = list(walk_statements(loop.body))
    own = {s.local for s in inside if isinstance(s, ir.Declare)}
    return {
        local: s.combine
        for s in inside
        if isinstance(s, ir.Reduce) and s.combine not in _PLACES
        for local in s.locals
        if local not in own and local.dtype.is_float
    }


def widest_total(loop: ir.Loop) -> int | None:
    """The bits of the widest total whose value depends on the order; None if there is none."""
    return max((local.dtype.bits for local in ordered_totals(loop)), default=None)


def sum_lanes(bits: int) -> int:
    """The lanes of a loop that reduces to totals of so many bits."""
    return TOTAL_BITS // bits


def rest_lanes(lanes: int, bits: int) -> int:
    """The lanes that take the rest of a loop's elements."""
    return min(lanes, REST_BITS // bits)


def joining(combine: str) -> str:
    """How two partial results become one."""
    return "add" if combine in ("fma", "dot", "small_dot", "pairs") else combine


def registers_at_once(loop: ir.Loop) -> int:
    """How many registers of elements the body of a vector loop should work on side by side."""
    inner = list(walk_statements(loop.body))
    if any(_holds_copies(s) or _stores_copies(s) for s in inner):
        return 1  # the lowering rule has filled the registers itself
    roots = [v for s in inner for v in ir.statement_values(s)]
    operations = sum(1 for v in walk_values(roots) if v.op not in ("const", "index", "local"))
    if operations <= LIGHT_BODY:
        return 4
    return 2 if operations <= MEDIUM_BODY else 1


def elements_at_once(loop: ir.Loop) -> int:
    """How many elements of a vector loop fit where one of 32 bits does: of bytes four.

    More than one only where nothing wider is computed for each lane, a place neither, and lanes
    share nothing.
    """
    inner = list(walk_statements(loop.body))
    if not all(isinstance(s, ir.Store) for s in inner):
        return 1
    varying: set[ir.Value] = set()
    widest = max(s.buffer.dtype.bits for s in inner if isinstance(s, ir.Store))
    for value in walk_values([v for s in inner for v in ir.statement_values(s)]):
        place = 0
        if value.op == "index":
            place = value.data
        elif value.op in ("load", "word"):
            place = value.data[1]
        if loop.index in atoms(place) or not varying.isdisjoint(value.args):
            varying.add(value)
            widest = max(widest, value.dtype.bits)
    return max(1, 32 // max(widest, 8))


def _stores_copies(statement: Statement) -> bool:
    """Whether the statement stores a block of copies, which are all in registers at once."""
    is_unrolled = isinstance(statement, ir.Loop) and statement.unroll
    return is_unrolled and any(isinstance(s, ir.Store) for s in statement.body)  # type: ignore[union-attr]


def _holds_copies(statement: Statement) -> bool:
    """Whether the statement uses a local that is an array of registers, even of one."""
    return any(local.copies for local in _locals_of(statement))


def _locals_of(statement: Statement) -> Iterator[Local]:
    match statement:
        case ir.Declare(local=local) | ir.Assign(local=local):
            yield local
        case ir.Reduce(locals=several):
            yield from several
        case _:
            values = walk_values(ir.statement_values(statement))
            yield from (v.data[0] for v in values if v.op == "local")
