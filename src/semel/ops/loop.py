"""A loop over a body graph: recurrences.

    loop  initial states, captured values, body --> a final state, or a stacked result

    states = initial
    for step in range(trip):
        states, values = body(states, captured, step)
        result[step] = values                      # or result[trip - 1 - step]

The body is a graph of its own, and so may be optimised, scheduled and lowered by what does
that for graphs. A node has one result: a loop with several is several nodes with equal
operands and bodies that differ in `output`. Why this way: docs/decisions/0019-loops.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from semel.errors import GraphError, UnsupportedError
from semel.ir import expr
from semel.ir.expr import Dim, Expr, Fn, Index, atoms
from semel.ir.graph import Graph, Node, make_node, rewrite
from semel.ir.opdef import OpDef, register
from semel.ir.types import TensorType
from semel.ops.attrs import InputAttrs, LoopAttrs
from semel.ops.evaluate import evaluate_node
from semel.ops.guards import guards
from semel.ops.numerics import Array
from semel.ops.shapes import Requirement, at_most, check

Env = Mapping[Any, int]


# ---------------------------------------------------------------- types


def _infer(attrs: LoopAttrs, *types: TensorType) -> TensorType:
    states, body = attrs.num_states, attrs.body
    if len(body.outputs) != states + len(attrs.backward) or len(types) < states:
        raise GraphError(
            "loop",
            f"the body must give {states} states and {len(attrs.backward)} stacked values for "
            f"{len(types)} operands, it gives {len(body.outputs)} values.",
        )
    if not 0 <= attrs.output < len(body.outputs):
        raise GraphError(
            "loop", f"output must lie in [0, {len(body.outputs)}), got {attrs.output}."
        )
    _check_inputs(attrs, types)
    for k, node in enumerate(body.outputs[:states]):
        if node.type != types[k]:
            raise GraphError(
                "loop",
                f"state {k} must keep its type, it begins as {types[k]} and becomes {node.type}.",
            )
    for node in body.nodes:
        _check_node(node)
    for variable in body.variables:
        if variable.name.startswith("_step"):
            raise GraphError("loop", f"'{variable.name}' is a name that loops need for themselves.")
    check("loop", attrs, *types)
    kind = body.outputs[attrs.output].type
    if attrs.output < states:
        return kind
    return TensorType((attrs.trip, *kind.shape), kind.dtype)


def _check_inputs(attrs: LoopAttrs, types: Sequence[TensorType]) -> None:
    for node in attrs.body.inputs:
        name = node.attrs.name
        known = types[int(name)] if name.isdecimal() and int(name) < len(types) else None
        if node.type != known:
            found = "nothing" if known is None else known
            raise GraphError("loop", f"operand {name} of the body is {node.type}, got {found}.")


def _check_node(node: Node) -> None:
    if node.op.name == "loop":
        raise UnsupportedError(
            "loop",
            "a loop inside a loop is not supported.",
            hint="Let the inner one run over tensors that hold all iterations of the outer one.",
        )
    if node.op.name == "compact":
        raise UnsupportedError(
            "loop",
            f"a size that a run finds out ({node.type}) must not be made in a body.",
            hint="Select outside of the loop, or use where(mask, x, fill).",
        )
    for dim in node.type.shape:
        if any(isinstance(a, Index) for a in atoms(dim)):
            raise GraphError("loop", f"shapes must not depend on the step, got {node.type}.")


def _requirements(attrs: LoopAttrs, *types: TensorType) -> Iterator[Requirement]:
    yield at_most(0, attrs.trip, f"the number of iterations must be >= 0, got {attrs.trip}.")
    for amount, text in guards(attrs.body):
        if any(isinstance(a, Index) for a in atoms(amount)):
            raise GraphError("loop", f"must hold in every iteration: {text}")
        yield Requirement(amount, text)


# ---------------------------------------------------------------- reference


def _reference(node: Node, arrays: tuple[Array, ...], env: Env) -> Array:
    attrs: LoopAttrs = node.attrs
    states, captured = list(arrays[: attrs.num_states]), arrays[attrs.num_states :]
    trip = expr.evaluate(attrs.trip, env)
    shape = tuple(expr.evaluate(d, env) for d in node.type.shape)
    stacked = np.empty(shape, node.type.dtype.numpy)
    for step in range(trip):
        values = _run(attrs.body, (*states, *captured), {**env, attrs.step: step})
        if attrs.output >= attrs.num_states:
            is_backward = attrs.backward[attrs.output - attrs.num_states]
            stacked[trip - 1 - step if is_backward else step] = values[attrs.output]
        states = values[: attrs.num_states]
    return states[attrs.output] if attrs.output < attrs.num_states else stacked


def _run(body: Graph, operands: Sequence[Array], env: Env) -> list[Array]:
    values: dict[Node, Array] = {}
    for node in body.nodes:
        if node.op.name == "input":
            values[node] = operands[int(node.attrs.name)]
        else:
            values[node] = evaluate_node(node, tuple(values[n] for n in node.inputs), env)
    return [values[n] for n in body.outputs]


register(OpDef("loop", "opaque", LoopAttrs, _infer, _reference, cost=1, require=_requirements))


# ---------------------------------------------------------------- bodies


def loop_operand(number: int, kind: TensorType) -> Node:
    """What stands for operand `number` in a body."""
    return make_node("input", (), InputAttrs(str(number), kind))


def loop_key(node: Node) -> Any:
    """Equal for the nodes that are results of one loop."""
    return node.inputs, replace(node.attrs, output=0)


def with_body(node: Node, change: Callable[[Graph], Graph]) -> Node:
    """The loop with another body that computes the same."""
    body = change(node.attrs.body)
    if body == node.attrs.body:
        return node
    return make_node("loop", node.inputs, replace(node.attrs, body=body))


def replace_operands(body: Graph, by: Mapping[str, Node]) -> Graph:
    """The body with other nodes in the place of these inputs."""

    def rule(node: Node) -> Node | None:
        return by.get(node.attrs.name) if node.op.name == "input" else None

    return rewrite(body, rule)


def replace_step(body: Graph, step: Index, by: Dim) -> Graph:
    """The body with another expression in the place of its counter."""

    def rule(node: Node) -> Node | None:
        attrs = _replace_dims(node.attrs, {step: by})
        return None if attrs is node.attrs else make_node(node.op.name, node.inputs, attrs)

    return rewrite(body, rule)


def _replace_dims(attrs: Any, by: Mapping[Index, Dim]) -> Any:
    """The attributes with atoms of their dims replaced; the same object if there are none."""
    changed = {}
    for each in fields(attrs) if attrs is not None else ():
        value = getattr(attrs, each.name)
        if isinstance(value, tuple):
            new: Any = tuple(_replace_dim(v, by) for v in value)
        else:
            new = _replace_dim(value, by)
        if new != value:
            changed[each.name] = new
    return replace(attrs, **changed) if changed else attrs


def _replace_dim(value: Any, by: Mapping[Index, Dim]) -> Any:
    return expr.substitute(value, by) if isinstance(value, (Index, Fn, Expr)) else value


def live_loop(attrs: LoopAttrs, wanted: Sequence[int]) -> tuple[Graph, tuple[int, ...]]:
    """The body without what the `wanted` results do not need, and which outputs it kept.

    A state is needed if its final value is wanted, or if something needed reads it.
    """
    kept = set(wanted)
    while True:
        outputs = sorted(kept)
        body = Graph(tuple(attrs.body.outputs[k] for k in outputs), tuple(map(str, outputs)))
        read = {int(n.attrs.name) for n in body.inputs}
        needed = {k for k in read if k < attrs.num_states} - kept
        if not needed:
            return body, tuple(outputs)
        kept |= needed
