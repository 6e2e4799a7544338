"""All broken invariants of a graph at once, not only the first.

    Graph --verify_graph--> sentences, empty if all is well

`make_node` checks what it builds; this checks what passes made of it, from scratch: ops
are registered, attrs are of the op's class, operands come first, the inferred type is
the stored one, dims depend on variables only, equal computations are one node, and data
fits its declared type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from semel.errors import UserError
from semel.ir.expr import Index, atoms
from semel.ir.graph import Graph, Node, attr_bodies
from semel.ir.opdef import OPS


def verify_graph(graph: Graph) -> list[str]:
    """One sentence per violation, in the order of the nodes."""
    problems: list[str] = []
    seen: dict[Any, Node] = {}
    done: set[Node] = set()
    for number, node in enumerate(graph.nodes):
        problems += [f"%{number} {node.op.name}: {text}" for text in _node_problems(node, done)]
        twin = seen.setdefault((node.op.name, node.inputs, node.attrs), node)
        if twin is not node:
            problems.append(f"%{number} {node.op.name}: is computed twice.")
        done.add(node)
    problems += [
        f"output '{name}' is not computed."
        for node, name in zip(graph.outputs, graph.names, strict=True)
        if node not in done
    ]
    return problems


def _node_problems(node: Node, done: set[Node]) -> Iterator[str]:
    if OPS.get(node.op.name) is not node.op:
        yield "its op is not the registered one."
        return
    if not isinstance(node.attrs, node.op.attrs or type(None)):
        wanted = node.op.attrs.__name__ if node.op.attrs else "None"
        yield f"attrs must be {wanted}, got {node.attrs!r}."
        return
    for operand in node.inputs:
        if operand not in done:
            yield f"its operand {operand!r} comes after it."
    for dim in node.type.shape:
        if any(isinstance(atom, Index) for atom in atoms(dim)):
            yield f"dim {dim} of {node.type} holds a loop index."
    for body in attr_bodies(node.attrs):
        yield from (f"its body: {text}" for text in verify_graph(body))
    yield from _type_problems(node)


def _type_problems(node: Node) -> Iterator[str]:
    try:
        inferred = node.op.infer(node.attrs, *(n.type for n in node.inputs))
    except UserError as error:
        yield f"infer refuses it: {error}"
        return
    if inferred != node.type:
        yield f"has type {node.type}, infer gives {inferred}."
