"""What a graph was made with, as something that a run is given.

    Outline, numbers to lift  --lift_graph-->  Graph of inputs and variables

Every array becomes an input. A lifted scalar becomes an input of shape (), a lifted start of
a slice a variable with the bounds that the operand leaves it, and so does what a pad puts in
front, in a result of the same size. The others stay what they are.

Which scalars may be lifted is said in `semel.compiler.numbers`. The start of a slice that has no
room to move stays what it is.

Nodes that are made here say as their origin which place in the outline they stand for. A program
of them serves graphs from many lines; `lines_of` tells those of one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from semel.errors import VariableError
from semel.ir.expr import Dim, Variable
from semel.ir.graph import Graph, Node, make_again, make_node
from semel.ir.late import substitute_attrs
from semel.ir.outline import Outline
from semel.ir.types import TensorType
from semel.ops.attrs import InputAttrs, PadAttrs, SliceAttrs
from semel.ops.filled import repeated
from semel.plan.program import Program
from semel.plan.rows import PreparedKernel, PreparedOp
from semel.plan.tree import map_rows


def data_name(place: int) -> str:
    """The input that an array of the outline becomes."""
    return f"data{place}"


def number_name(place: int) -> str:
    """The input or the variable that a number of the outline becomes."""
    return f"number{place}"


# ---------------------------------------------------------------- starts


def movable_starts(outline: Outline) -> frozenset[int]:
    """Places of the numbers that are starts with room to move: these can become variables."""
    return frozenset(k for k, low, high in _starts(outline) if low < high)


def _starts(outline: Outline) -> Iterator[tuple[int, int, int]]:
    """Place, least and largest number of each axis of each slice and pad."""
    for place, slot in outline.slots.items():
        node = outline.nodes[place]
        attrs, shape = node.attrs, node.inputs[0].type.shape if node.inputs else ()
        if node.op.name == "slice":
            for k, axis in enumerate(zip(shape, attrs.sizes, attrs.steps, strict=True), slot):
                yield k, *_bounds(*axis)
        if node.op.name == "pad":
            for k, (before, after) in enumerate(zip(attrs.before, attrs.after, strict=True), slot):
                yield k, 0, before + after


def _bounds(dim: Dim, size: Dim, step: int) -> tuple[int, int]:
    """The least and the largest start of so many elements; equal if there is no choice."""
    if not isinstance(dim, int) or not isinstance(size, int) or size == 0:
        return 0, 0
    reach = (size - 1) * abs(step)
    return (0, dim - 1 - reach) if step > 0 else (reach, dim - 1)


# ---------------------------------------------------------------- the graph


def lift_graph(outline: Outline, lifted: Collection[int]) -> Graph:
    """The graph whose arrays, and these of its numbers, are given at each run."""
    bounds = {k: (low, high) for k, low, high in _starts(outline)}
    new: list[Node] = []
    for place, (node, wires) in enumerate(zip(outline.nodes, outline.wires, strict=True)):
        inputs = tuple(new[i] for i in wires)
        attrs = substitute_attrs(node.attrs, outline.late) if node.rule.late else node.attrs
        made = _lifted(node, attrs, outline.slots.get(place), inputs, lifted, bounds)
        if made is not node:
            made.origins, made.made_by = (_token(place),), node.made_by
        new.append(made)
    late = tuple(outline.late.values())
    outputs = (*(new[place] for place in outline.counts), new[-1])
    return Graph(outputs, (*(v.name for v in late), "output0"), late)


def _lifted(
    node: Node,
    attrs: Any,
    slot: int | None,
    inputs: tuple[Node, ...],
    lifted: Collection[int],
    bounds: Mapping[int, tuple[int, int]],
) -> Node:
    name = node.op.name
    if slot is not None and name in ("constant", "param"):
        return make_node("input", (), InputAttrs(data_name(slot), node.type))
    if slot is not None and name == "scalar" and slot in lifted:
        given = InputAttrs(number_name(slot), TensorType((), attrs.dtype))
        return repeated(make_node("input", (), given), attrs.shape)
    if slot is not None and name == "slice":
        starts = tuple(
            Variable(number_name(k), *bounds[k]) if k in lifted else start
            for k, start in enumerate(attrs.starts, slot)
        )
        attrs = SliceAttrs(starts, attrs.sizes, attrs.steps)
    if slot is not None and name == "pad":
        before = tuple(
            Variable(number_name(k), *bounds[k]) if k in lifted else number
            for k, number in enumerate(attrs.before, slot)
        )
        rooms = (bounds[k][1] for k in range(slot, slot + len(before)))
        attrs = PadAttrs(before, tuple(room - b for room, b in zip(rooms, before, strict=True)))
    return make_again(node, inputs, attrs)


# ---------------------------------------------------------------- lines


def _token(place: int) -> str:
    return f"%{place}"


def _lines(outline: Outline) -> dict[str, str]:
    """The line of each node, by what stands for it."""
    return {
        _token(place): node.origins[0] if node.origins else ""
        for place, node in enumerate(outline.nodes)
    }


def with_lines(error: VariableError, outline: Outline) -> VariableError:
    """The error of a guard, with the line of this outline's node."""
    lines = _lines(outline)
    text = re.sub(r" \((%\d+)\)", lambda found: f" ({lines[found[1]]})", str(error))
    error.args = (text.replace(" ()", ""),)
    return error


def lines_of(program: Program, outline: Outline) -> Program:
    """The program with the lines of this outline's nodes."""
    lines = _lines(outline)

    def named(origins: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(lines.get(origin, origin) for origin in origins)

    def renamed(row: PreparedOp) -> PreparedOp:
        if not isinstance(row, PreparedKernel):
            return row
        notes = replace(row.notes, check_origins=named(row.notes.check_origins))
        return replace(row, ast=named(row.origins), notes=notes)

    return replace(program, rows=map_rows(program.rows, renamed))
