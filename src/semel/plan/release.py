"""Which bytes of a plan built by hand hold nothing between two runs, and who else holds them.

    operations in schedule order  --passing_ranges-->  byte ranges that may be given back

Nobody says of a buffer made by hand that it is an intermediate: it may as well be a state that the
next run goes on from. It is one just if no run can see what an earlier one left there: it is no
input and no output, and every read of it follows a write in the same run that covers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from semel.ir.expr import Dim, is_nonnegative, variables
from semel.ir.signature import KernelSignature
from semel.plan.hazards import ByteRange, overlap
from semel.plan.parts import PlanParts
from semel.plan.row import Use
from semel.plan.rows import PreparedKernel, PreparedOp


@dataclass(frozen=True, slots=True)
class _Use:
    """One buffer of one operation: how many bytes it may read, and writes, from `where`.

    `inside` are the bodies that it is in, outermost first. `is_whole`: it writes them all each
    time, and not those that a variable selects, as the counter of a loop does.
    """

    where: ByteRange
    reads: Dim | None
    writes: Dim | None
    inside: tuple[tuple[int, int], ...]
    is_whole: bool


def passing_ranges(parts: PlanParts) -> list[ByteRange]:
    """The byte ranges of buffers whose contents no later run sees."""
    uses = _all_uses(parts, lambda row: row.uses(parts.scope))
    kept = [parts.buffers[io.index].byte_range for io in parts.input_io]
    kept += [parts.buffers[i].byte_range for i in parts.outputs]
    kept += _seen_later(uses)
    ranges = {use.where: None for use in uses if use.writes is not None}
    return [one for one in ranges if not any(overlap(one, other) for other in kept)]


def passing_nodes(parts: PlanParts) -> list[int]:
    """The ids of nodes whose buffer is no output."""
    kept = {parts.buffers[i].byte_range for i in parts.outputs}
    places = parts.ast_to_buffer
    is_kept = {i: parts.buffers[index].byte_range in kept for i, index in places.items()}
    nodes = [i for i in places if not is_kept[i]]
    return nodes + [i for i in parts.alias_ids if not is_kept.get(i, False)]


def seen_later(parts: PlanParts, uses_of: Callable[[PreparedOp], Sequence[Use]]) -> list[ByteRange]:
    """The byte ranges of which a run may read what was there before it.

    `uses_of(row)` is what a row touches.
    """
    return _seen_later(_all_uses(parts, uses_of))


def _all_uses(parts: PlanParts, uses_of: Callable[[PreparedOp], Sequence[Use]]) -> list[_Use]:
    return [use for position in parts.order for use in _uses(parts, position, uses_of)]


def _uses(
    parts: PlanParts, position: int, uses_of: Callable[[PreparedOp], Sequence[Use]]
) -> Iterator[_Use]:
    """What a row touches; reads come before writes."""
    placed = parts.placed[position]
    row = placed.row
    is_whole = not isinstance(row, PreparedKernel) or _writes_whole(row.kernel.signature)
    inside = tuple((around.position, around.body) for around in placed.around)
    for use in sorted(uses_of(row), key=lambda use: "r" not in use.access):
        reads, writes = (use.size if letter in use.access else None for letter in "rw")
        yield _Use(parts.buffers[use.index].byte_range, reads, writes, inside, is_whole)


def _writes_whole(signature: KernelSignature) -> bool:
    """Whether no variable can say which part is written: each decides how much there is."""
    sizes = (signature.tiles, *(spec.size for spec in signature.buffers))
    decided = {variable for size in sizes for variable in variables(size)}
    return decided >= set(signature.variables)


def _seen_later(uses: Sequence[_Use]) -> list[ByteRange]:
    """Where an operation may read what was there before the run."""
    found: list[ByteRange] = []
    written: list[_Use] = []
    for use in uses:
        if use.reads is not None and not any(_covers(w, use) for w in written):
            found.append(use.where)
        if use.writes is not None:
            written.append(use)
    return found


def _covers(write: _Use, read: _Use) -> bool:
    """Whether the write, if it came first, wrote all that is read; a body may not run at all."""
    if not write.is_whole or read.inside[: len(write.inside)] != write.inside:
        return False
    if write.where[0] != read.where[0] or write.where[1] > read.where[1]:
        return False
    if write.writes is None or read.reads is None:
        return False
    return is_nonnegative(write.where[1] + write.writes - read.where[1] - read.reads)
