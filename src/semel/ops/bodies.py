"""Bodies: the graphs that loops and branches hold in their attributes.

    body graph: inputs named by operand number, outputs the values of one run

What is the same for both: how a body is run by the references, checked, changed, and
made to compute fewer results. A node has one result: an op with several is several nodes with
equal operands and attributes that differ in `output`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from semel.errors import GraphError, UnsupportedError
from semel.ir import expr
from semel.ir.expr import Dim, Expr, Fn, Index, atoms, variables
from semel.ir.graph import (
    Graph,
    Node,
    attr_bodies,
    make_node,
    map_bodies,
    no_scope,
    rewrite,
    stands_for,
)
from semel.ir.types import TensorType
from semel.ops.attrs import InputAttrs, LoopAttrs, ScalarAttrs
from semel.ops.evaluate import run_graph
from semel.ops.filled import repeated
from semel.ops.guards import has_guards
from semel.ops.numerics import Array

Env = Mapping[Any, int]


def body_operand(number: int, kind: TensorType) -> Node:
    """What stands for operand `number` in a body."""
    return make_node("input", (), InputAttrs(str(number), kind))


def has_bodies(node: Node) -> bool:
    """Whether a node is a loop or a branch."""
    return node.op.has_bodies


def is_filled(node: Node) -> bool:
    """Whether a node is a number, seen through movement: nothing has to be read for it."""
    while node.op.kind == "movement" and len(node.inputs) == 1:
        node = node.inputs[0]
    return node.op.is_literal


def result_key(node: Node) -> Any:
    """Equal for the nodes that are results of one loop or branch."""
    return node.op.name, node.inputs, replace(node.attrs, output=0)


def run_body(body: Graph, operands: Sequence[Array], env: Env) -> list[Array]:
    """The values of one run, by the references."""
    arrays = {node.attrs.name: operands[int(node.attrs.name)] for node in body.inputs}
    found = run_graph(body, arrays, dict(env))
    return [found[n] for n in body.values]


# ---------------------------------------------------------------- what must hold


def check_body(
    where: str, body: Graph, types: Sequence[TensorType], hidden: Iterable[int] = ()
) -> None:
    """Inputs are operands, but for the `hidden` ones; no shape depends on a step, and none of a
    value on what only a run of the body finds out."""
    refused = set(hidden)
    for node in body.inputs:
        name = node.attrs.name
        known = int(name) if name.isdecimal() and int(name) < len(types) else None
        if known is None or known in refused or node.type != types[known]:
            found = "nothing" if known is None or known in refused else types[known]
            raise GraphError(where, f"operand {name} of the body is {node.type}, got {found}.")
    for node in body.nodes:
        for dim in node.type.shape:
            if any(isinstance(a, Index) for a in atoms(dim)):
                raise GraphError(where, f"shapes must not depend on the step, got {node.type}.")
    for node in body.values:
        if any(v in body.late for dim in node.type.shape for v in variables(dim)):
            raise UnsupportedError(
                where,
                f"what a body gives must have a shape that is known before it runs, got "
                f"{node.type}.",
                hint="Reduce it inside, or keep its shape with where(mask, x, fill).",
            )


def free_level(*bodies: Graph) -> int:
    """The least level of a loop around these bodies: above those of all loops in them."""
    found = 0
    for node in (n for body in bodies for n in body.nodes):
        if node.op.name == "loop":
            found = max(found, node.attrs.level + 1)
        else:
            found = max(found, free_level(*attr_bodies(node.attrs)))
    return found


def body_depth(body: Graph) -> int:
    """How deep bodies are inside each other, below this one."""
    inner = (b for node in body.nodes for b in attr_bodies(node.attrs))
    return max((body_depth(b) + 1 for b in inner), default=0)


def may_fail(node: Node) -> bool:
    """Whether computing a node may end a run, or not end: nobody may do so without need."""
    if node.op.may_fail or has_guards(node):
        return True
    if node.op.name == "loop" and node.attrs.has_condition:
        return True
    return any(may_fail(n) for body in attr_bodies(node.attrs) for n in body.nodes)


# ---------------------------------------------------------------- changes


def with_bodies(node: Node, change: Callable[[Graph], Graph]) -> Node:
    """The loop or branch with other bodies that compute the same."""
    attrs = map_bodies(node.attrs, change)
    return node if attrs == node.attrs else make_node(node.op.name, node.inputs, attrs)


def replace_operands(body: Graph, by: Mapping[str, Node]) -> Graph:
    """The body with other nodes in the place of these inputs."""

    def rule(node: Node) -> Node | None:
        return by.get(node.attrs.name) if node.op.name == "input" else None

    return rewrite(body, rule)


def replace_steps(body: Graph, by: Mapping[Index, Dim]) -> Graph:
    """The body, and those in it, with other expressions in the place of these steps."""

    def rule(node: Node) -> Node | None:
        attrs = _replaced(node.attrs, by)
        return None if attrs is node.attrs else make_node(node.op.name, node.inputs, attrs)

    made = rewrite(body, rule)
    guards = tuple((_replace_dim(amount, by), text) for amount, text in made.guards)
    return made if guards == made.guards else replace(made, guards=guards)


def _replaced(attrs: Any, by: Mapping[Index, Dim]) -> Any:
    """The attributes with atoms of their dims replaced; the same object if there are none."""
    inside = by
    if isinstance(attrs, LoopAttrs):
        moved = replace(attrs, trip=_replace_dim(attrs.trip, by))
        if moved.trip != attrs.trip:  # which is part of what its own step is
            inside = {**by, attrs.step: moved.step}
    changed = {}
    for each in fields(attrs) if attrs is not None else ():
        value = getattr(attrs, each.name)
        if isinstance(value, Graph):
            new: Any = replace_steps(value, inside)
        elif isinstance(value, tuple):
            new = tuple(_replace_dim(v, by) for v in value)
        else:
            new = _replace_dim(value, by)
        if new != value:
            changed[each.name] = new
    return replace(attrs, **changed) if changed else attrs


def _replace_dim(value: Any, by: Mapping[Index, Dim]) -> Any:
    return expr.substitute(value, by) if isinstance(value, (Index, Fn, Expr)) else value


def with_data_outside(node: Node) -> Node:
    """The loop or branch without data and numbers in its bodies: what they held are operands behind
    the others.

    So it is the same whatever the data is; passes bring inside what is known.
    """
    outside: list[Node] = []
    known: dict[Node, Node] = {}

    def operand(data: Node) -> Node:
        outside.append(data)
        return body_operand(len(node.inputs) + len(outside) - 1, data.type)

    def replaced(each: Node) -> Node | None:
        if each.op.is_literal:
            number = make_node("scalar", (), ScalarAttrs(each.attrs.value, each.attrs.dtype))
            return repeated(operand(number), each.attrs.shape)
        if each.op.name in ("constant", "param"):
            return operand(each)
        if not has_bodies(each):
            return None
        opened, count = with_data_outside(each), len(each.inputs)
        inputs = (*opened.inputs[:count], *map(operand, opened.inputs[count:]))
        return make_node(each.op.name, inputs, opened.attrs)

    def rule(each: Node) -> Node | None:
        if each not in known:
            known[each] = replaced(each) or each
        return known[each]

    with no_scope():
        attrs = map_bodies(node.attrs, lambda body: rewrite(body, rule))
        if not outside:
            return node
        made = make_node(node.op.name, (*node.inputs, *outside), attrs)
    stands_for(made, node)
    return made


def some_outputs(body: Graph, kept: Sequence[int]) -> Graph:
    """The body that computes these of its values only."""
    return body.with_values([body.values[k] for k in kept])
