"""Nodes in an order in which each finds its inputs computed.

    GraphProto in any order  --sort_nodes-->  the same, each node behind those that it reads

The standard asks for this order, but some exporters and converters leave another one, and other
runtimes put it right. A graph that is sorted stays as it is. One that cannot be sorted does too:
whoever walks it says which name nothing computes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from onnx import AttributeProto, GraphProto, NodeProto


def sort_nodes(graph: GraphProto) -> None:
    """Move nodes behind those whose outputs they read, here and in sub-graphs; else keep them."""
    nodes = list(graph.node)
    for node in nodes:
        for body in bodies_of(node):
            sort_nodes(body)
    makers = {name: k for k, node in enumerate(nodes) for name in node.output if name}
    needs = [{makers[name] for name in _reads(node) if name in makers} for node in nodes]
    if all(maker < k for k, found in enumerate(needs) for maker in found):
        return
    order = _sorted(needs)
    if len(order) == len(nodes):
        del graph.node[:]
        graph.node.extend(nodes[k] for k in order)


def bodies_of(node: NodeProto) -> Iterator[GraphProto]:
    """The sub-graphs of a node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _reads(node: NodeProto) -> Iterator[str]:
    """What a node reads, and what its sub-graphs may take from outside."""
    yield from node.input
    for body in bodies_of(node):
        read = {name for inner in body.node for name in _reads(inner)}
        read.update(value.name for value in body.output)
        own = {each.name for each in (*body.input, *body.initializer)}
        own.update(name for inner in body.node for name in inner.output)
        yield from sorted(read - own)


def _sorted(needs: list[set[int]]) -> list[int]:
    """Positions in order, each as early as it can; without rings, and what is behind them."""
    readers: list[list[int]] = [[] for _ in needs]
    for k, found in enumerate(needs):
        for maker in found:
            readers[maker].append(k)
    missing = [len(found) for found in needs]
    ready = [k for k, count in enumerate(missing) if not count]
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for k in readers[order[-1]]:
            missing[k] -= 1
            if not missing[k]:
                heapq.heappush(ready, k)
    return order
