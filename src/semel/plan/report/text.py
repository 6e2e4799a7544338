"""An explanation as text for people.

    Explanation  --format_explanation-->  str

Sections in the order of the questions: what runs, in which memory, and what a variable
changes. Lines are wrapped by nobody: a terminal or a pager does that better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING

from semel.plan.report.describe import UNTIL
from semel.plan.report.html import html_block, html_table
from semel.plan.report.layers import Repeat
from semel.plan.row import COMPUTE

if TYPE_CHECKING:
    from semel.plan.report.explain import (
        Change,
        ExplainedBuffer,
        ExplainedOp,
        ExplainedVariable,
        Explanation,
    )

_MAX_WHERE = 6
_ONCE = " if each loop without max_trips has one iteration"
_MAX_OPS = 60


def format_explanation(it: Explanation, *, folded: bool = False) -> str:
    """The whole text, or with one of equal layers; no line depends on the width of anything."""
    left_out = _equal_ones(it) if folded else frozenset[int]()
    return "\n".join(
        [
            *_head(it),
            *_layers(it),
            "",
            *_ops(it, left_out),
            "",
            *_folded_buffers(it, left_out),
            "",
            *_memory(it),
            *_states(it),
            *_variables(it),
            *(() if left_out else _nodes(it)),
        ]
    )


def explanation_html(it: Explanation, line: str) -> str:
    """What repeats, the longest part of it, and the memory, for notebooks."""
    left_out = _equal_ones(it)
    layers = [(str(each.count), _span(each), _what(it, each)) for each in it.layers]
    ops = [
        (str(op.op), op.kind, op.name, op.reason, ", ".join(op.origins[:2]))
        for position, op in enumerate(it.ops)
        if position not in left_out
    ]
    shown = ops[:_MAX_OPS]
    rest = len(it.ops) - len(shown)
    caption = f"ops ({rest} more: like these, or further on)" if rest else "ops"
    memory = [line.strip() for line in _memory(it)][1:]
    tables = [
        html_table("layers", ("times", "ops", "what"), layers),
        html_table(caption, ("op", "kind", "name", "not fused further", "from"), shown),
    ]
    return html_block(line, tables, "; ".join(memory))


def _equal_ones(it: Explanation) -> frozenset[int]:
    """Positions of ops that do again what an op of an equal layer did."""
    layers = (each for each in it.layers if each.count > 1)
    return frozenset(i for each in layers for i in range(each.first + each.length, each.end))


def _layers(it: Explanation) -> Iterator[str]:
    yield from (
        f"{each.count} x {_what(it, each)}: {_span(each)}" for each in it.layers if each.count > 1
    )


def _what(it: Explanation, each: Repeat) -> str:
    names = list(dict.fromkeys(op.name for op in it.ops[each.first : each.first + each.length]))
    return ", ".join(names[:_MAX_WHERE]) + (", ..." if len(names) > _MAX_WHERE else "")


def _span(each: Repeat) -> str:
    return (
        f"ops {each.first} to {each.end - 1}" if each.end - each.first > 1 else f"op {each.first}"
    )


def _folded_buffers(it: Explanation, left_out: Set[int]) -> Iterator[str]:
    """Buffers, but for those that only ops which are left out touch."""
    if not left_out:
        yield from _buffers(it.buffers)
        return
    kept = {
        b
        for position, op in enumerate(it.ops)
        if position not in left_out
        for b in (*op.reads, *op.writes)
    }
    shown = [b for b in it.buffers if b.index in kept]
    yield from _buffers(shown)
    yield f"  ... and {len(it.buffers) - len(shown)} more, of the layers that are left out"


def memory_lines(it: Explanation) -> Iterator[str]:
    """What lies where, and the bytes in all."""
    yield from _buffers(it.buffers)
    yield from _memory(it)


def _head(it: Explanation) -> Iterator[str]:
    threads = "1 thread" if it.threads == 1 else f"{it.threads} threads"
    yield (
        f"plan on {it.device}, {threads}: {len(it.ops)} ops, {it.num_kernels} kernel calls of "
        f"{it.num_distinct_kernels} distinct kernels, in {it.num_steps} steps"
    )
    if it.signature:
        yield it.signature
    if it.target:
        yield f"code for {it.target}"
    moved = "" if it.moved_bytes is None else f"; a run moves {it.moved_bytes} bytes"
    if moved and any(UNTIL in op.times for op in it.ops):
        moved += _ONCE
    yield f"compiled {it.compile_count}, recompiles {it.recompiles}{moved}"
    yield from (f"devices, {line}" for line in it.placement)


def _ops(it: Explanation, left_out: Set[int] = frozenset()) -> Iterator[str]:
    yield "ops, in order of execution"
    names = [b.name for b in it.buffers]
    step = -1
    ends = {each.first + each.length: each for each in it.layers if each.count > 1}
    for position, op in enumerate(it.ops):
        if position in left_out:
            if position in ends:
                each = ends[position]
                yield f"  ... the same {each.count - 1} more times, to op {each.end - 1}"
            continue
        if op.step != step and op.step >= 0:
            step = op.step
            yield f"  step {step}"
        indent = "    " + "  " * len(op.inside)
        is_elsewhere = (op.device, op.lane) != (it.device, COMPUTE)
        yield from (indent + line for line in _op(op, names, is_elsewhere))


def _op(op: ExplainedOp, names: Sequence[str], is_elsewhere: bool) -> Iterator[str]:
    tiles = f"  tiles {op.tiles}" if op.tiles else ""
    times = f"  times {op.times}" if op.times else ""
    if op.times.startswith(UNTIL):
        times = f"  {op.times}"
    kind = f"{op.kind}, {op.template}" if op.template else op.kind
    name = op.name if op.name == kind else f"{op.name} ({kind})"
    lane = f"  on {op.device}/{op.lane}" if is_elsewhere else ""
    yield f"op {op.op}  {name}{tiles}{times}{lane}"
    if op.nodes:
        count = "" if len(op.nodes) == 1 else f"{len(op.nodes)} nodes: "
        yield f"  computes {count}{', '.join(op.nodes)}"
    if op.where:
        yield f"  there because: {op.where}"
    if op.reason:
        yield f"  not fused further: {op.reason}"
    if op.choice:
        yield f"  cut: {op.choice}"
    if op.reads:
        yield f"  reads {', '.join(names[b] for b in op.reads)}"
    if op.writes:
        yield f"  writes {', '.join(names[b] for b in op.writes)}"
    if op.moved_bytes:
        each = "each iteration " if op.times == UNTIL else ""
        once = _ONCE if UNTIL in op.times and not each else ""
        yield f"  {each}moves {op.moved_bytes} bytes{once}"
    if op.waits:
        yield f"  waits: {'; '.join(op.waits)}"
    if op.origins:
        yield f"  from {', '.join(op.origins)}"


def _buffers(buffers: Sequence[ExplainedBuffer]) -> Iterator[str]:
    yield "buffers"
    head = ("#", "kind", "name", "type", "bytes", "at", "alive", "shares bytes with")
    rows = [head, *(_buffer(b) for b in buffers)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(w) if i in (0, 4, 5) else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def _buffer(b: ExplainedBuffer) -> tuple[str, ...]:
    alive = "never" if b.first < 0 else f"{b.first}..{b.last}"
    shares = ", ".join(f"#{i}" for i in b.shares_with[:_MAX_WHERE])
    if len(b.shares_with) > _MAX_WHERE:
        shares += f" and {len(b.shares_with) - _MAX_WHERE} more"
    at = f"{b.storage}+{b.offset_bytes}"
    return str(b.index), b.kind, b.name, b.type, str(b.size_bytes), at, alive, shares


def _memory(it: Explanation) -> Iterator[str]:
    m = it.memory
    yield "memory"
    yield (
        f"  weights {m.weights_bytes} + arena {m.arena_bytes} + inputs and outputs {m.io_bytes} "
        f"{f'+ states {m.state_bytes} ' if m.state_bytes else ''}"
        f"+ scratch {m.scratch_bytes} = {m.peak_bytes} bytes"
    )
    yield from (f"  on {line}" for line in m.devices)
    if m.naive_bytes:
        yield (
            f"  the arena's values take {m.naive_bytes} bytes without sharing; "
            f"at most {m.live_bytes} are alive at once, at position {m.live_at}, "
            f"and the arena has {m.arena_bytes}"
        )


def _states(it: Explanation) -> Iterator[str]:
    if it.states:
        yield ""
        yield "states"
    for state in it.states:
        cursor = "" if state.cursor is None else f", valid up to {state.cursor}"
        why = f": {state.why}" if state.why else "."
        yield f"  {state.name} {state.type}{cursor} is {_UPDATED[state.how]}{why}"


#: How a state is updated, as part of a sentence.
_UPDATED = {
    "in place": "updated in place",
    "double-buffered": "updated in a second buffer",
    "read only": "never updated",
}


def _nodes(it: Explanation) -> Iterator[str]:
    """Every node of the graph as it was written, with what it became."""
    if it.nodes:
        yield ""
        yield "nodes, as they were written"
    names = {op.op: op.name for op in it.ops}
    for node in it.nodes:
        where = ", ".join(f"op {op} {names[op]}" for op in node.ops if op in names)
        yield f"  {node.node}: {_BECAME.get(node.became, node.became)}{where and f' {where}'}"


#: What a node became, in words, with the ops behind it.
_BECAME = {
    "kernel": "computed by",
    "copy": "copied by",
    "view": "an index in",
    "part": "part of",
    "loop": "the loop",
    "cond": "the branch",
    "folded": "computed when it was compiled",
    "weights": "computed from params, before any run",
    "unused": "read by nothing",
}


def _variables(it: Explanation) -> Iterator[str]:
    for variable in it.variables:
        yield ""
        yield from _variable(variable)


def _variable(it: ExplainedVariable) -> Iterator[str]:
    top = "..." if it.max is None else it.max
    unknown = "known after a run" if it.is_late else "not bound"
    now = unknown if it.value is None else f"now {it.value}"
    kind = "late variable" if it.is_late else "variable" if it.next is None else "held variable"
    yield f"{kind} {it.name} in [{it.min}, {top}], {now}"
    if it.next is not None:
        yield f"  after a run it is {it.next}"
    if not it.changes:
        yield "  changes nothing"
    for change in it.changes:
        yield f"  {_change(change)}"
    for guard in it.guards:
        yield f"  must satisfy: {guard}"


def _change(it: Change) -> str:
    where = ", ".join(it.where[:_MAX_WHERE])
    if len(it.where) > _MAX_WHERE:
        where += f" and {len(it.where) - _MAX_WHERE} more"
    at = " .. ".join("?" if v is None else str(v) for v in (it.at_min, it.now, it.at_max))
    return f"{it.what} of {where} = {it.expression}: {at}"
