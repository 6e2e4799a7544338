"""Layers of experts: how one is written, and where the routers of a graph are.

    moe(x, up, down, logits=..., k=2, layer=0)  -->  Tensor, and what its tokens are weighted with
    ir.Graph  --find_routers-->  FoundRouter{layer, ids, weights}, in the order of the layers

A router is known by what its ids are for: `group_rows` sorts tokens by their expert, whoever chose
it. So it is found in every graph with a `grouped_matmul`, however the ids came about, and nothing
else is taken for one. Products with the same ids are of one layer. A layer has the number that it
was given, or the next that is free, in the order of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from semel.errors import GraphError, InputError
from semel.ir.fields import take, take_int
from semel.ir.graph import Graph, Node, users
from semel.ops.grouped import source_of
from semel.tensor.activations import silu
from semel.tensor.handle import TensorLike, lift
from semel.tensor.nn import softmax
from semel.tensor.order import topk
from semel.tensor.tensor import Tensor

#: What the results of experts pass through before they are weighted.
_SAME_NUMBERS = ("reshape", "cast")


@dataclass(frozen=True, slots=True)
class Router:
    """A layer of a plan: `k` of `num_experts` for each token, under these names of kept values."""

    layer: int
    num_experts: int
    k: int
    ids: str
    weights: str | None = None

    def __post_init__(self) -> None:
        for what, least in (("layer", 0), ("num_experts", 1), ("k", 1)):
            if take_int("router", what, getattr(self, what)) < least:
                raise InputError("router", f"{what} must be at least {least}, got {self!r}.")
        take("router", "ids", str, self.ids)
        if self.weights is not None:
            take("router", "weights", str, self.weights)


@dataclass(frozen=True, slots=True)
class FoundRouter:
    """A router in a graph: `ids` are flat, of `k` experts for each token; so are its weights."""

    layer: int
    num_experts: int
    k: int
    ids: Node
    weights: Node | None

    def kept(self) -> tuple[Router, dict[str, Node]]:
        """Its record, and what must be kept under which names."""
        ids, weights = (f"moe layer {self.layer} {what}" for what in ("ids", "weights"))
        keep = {ids: self.ids}
        if self.weights is not None:
            keep[weights] = self.weights
        named = None if self.weights is None else weights
        return Router(self.layer, self.num_experts, self.k, ids, named), keep


def find_routers(graph: Graph, weights: Mapping[Node, Node]) -> tuple[FoundRouter, ...]:
    """The routers of a graph by their layers; `weights` are those that are known, by ids."""
    known = {source_of(ids): node for ids, node in weights.items()}
    lists: dict[tuple[Node, int], list[Node]] = {}
    repeats: dict[Node, int] = {}
    for node in graph.nodes:
        if node.op.name == "group_rows" and isinstance(node.attrs.groups, int):
            key = source_of(node.inputs[0]), node.attrs.groups
            lists.setdefault(key, []).append(node)
        elif node.op.name == "grouped_matmul":
            rows = node.inputs[2]
            repeats[rows] = max(node.attrs.repeat, repeats.get(rows, 1))
    layers = _numbered([_layer(nodes) for nodes in lists.values()])
    readers = users(graph.nodes)
    found = [
        FoundRouter(
            layer,
            experts,
            max(repeats.get(node, 1) for node in nodes),
            nodes[0].inputs[0],
            known.get(source) or _weights_of(nodes, readers),
        )
        for layer, ((source, experts), nodes) in zip(layers, lists.items(), strict=True)
    ]
    return tuple(sorted(found, key=lambda router: router.layer))


def _weights_of(lists: list[Node], readers: Mapping[Node, list[Node]]) -> Node | None:
    """What the results of a layer are multiplied with, one number for each id, if it is one thing.

    That is how a graph weights its experts that nobody has told so: an imported one, say.
    """
    ids = lists[0].inputs[0]
    count, source = ids.type.num_elements, source_of(ids)
    found: dict[Node, None] = {}
    for product in (reader for node in lists for reader in readers[node]):
        ways = [product]
        for node in ways:  # which grows
            for reader in readers[node]:
                if reader.op.name in _SAME_NUMBERS:
                    ways.append(reader)
                elif reader.op.name == "add":
                    if _is_looked_up(_other(reader, node), source):  # the bias of each expert
                        ways.append(reader)
                elif reader.op.name == "mul":
                    other = _repeated_below(_other(reader, node))
                    if other is not None and other.type.num_elements == count:
                        found[other] = None
    return next(iter(found)) if len(found) == 1 else None


def _other(reader: Node, node: Node) -> Node:
    left, right = reader.inputs
    return right if left is node else left


def _is_looked_up(node: Node, source: Node) -> bool:
    """Whether these numbers were found by ids from there."""
    while node.op.name in ("expand", *_SAME_NUMBERS):
        node = node.inputs[0]
    return bool(node.op.gathers) and source_of(node.inputs[1]) is source


def _repeated_below(node: Node) -> Node | None:
    """What a node repeats along an axis; None if it repeats nothing."""
    is_repeated = False
    while node.op.name in ("expand", *_SAME_NUMBERS):
        is_repeated = is_repeated or node.op.name == "expand"
        node = node.inputs[0]
    return node if is_repeated and node.type.dtype.is_float else None


def _layer(lists: list[Node]) -> int | None:
    """The number that a layer was given."""
    given = sorted({n.attrs.layer for n in lists if n.attrs.layer is not None})
    if len(given) > 1:
        numbers = " and ".join(map(str, given))
        raise GraphError("moe", f"the same ids must be of one layer, got layers {numbers}.")
    return given[0] if given else None


def _numbered(given: list[int | None]) -> list[int]:
    taken = [layer for layer in given if layer is not None]
    for layer in taken:
        if taken.count(layer) > 1:
            raise GraphError(
                "moe",
                f"each router must have a layer of its own, got layer {layer} for several.",
                hint="Give each another number, or none.",
            )
    free = (n for n in range(len(given) + len(taken)) if n not in taken)
    return [next(free) if layer is None else layer for layer in given]


# ------------------------------------------------------------ a layer, written


@dataclass(frozen=True, slots=True)
class Routing:
    """Which experts a token goes to, and how much each counts: (..., k) both."""

    ids: Tensor
    weights: Tensor | None

    @staticmethod
    def of(
        logits: TensorLike | None, k: int | None, ids: TensorLike | None, weights: Any
    ) -> Routing:
        """The k largest of all logits, which count by their softmax; or as given."""
        if logits is not None and ids is not None:
            raise GraphError("moe", "needs either logits of the router and k, or ids, got both.")
        if ids is not None:
            if k is not None:
                raise GraphError("moe", f"k is the last dim of ids, it cannot be given, got {k}.")
            routing = Routing(lift(ids), None if weights is None else lift(weights))
            if routing.weights is not None and routing.weights.shape != routing.ids.shape:
                raise GraphError(
                    "moe",
                    f"needs one weight for each id, got {routing.weights.type} for "
                    f"{routing.ids.type}.",
                )
            return routing
        if logits is None:
            raise GraphError("moe", "needs either logits of the router and k, or ids.")
        if weights is not None:
            raise GraphError("moe", "weights follow from logits, they cannot be given too.")
        if k is None:
            raise GraphError("moe", "needs k, how many experts each token goes to.")
        chosen, found = topk(lift(logits), k)
        return Routing(found, softmax(chosen))


def experts_of(
    x: TensorLike,
    up: TensorLike,
    down: TensorLike,
    routing: Routing,
    gate: TensorLike | None,
    activation: Callable[[Tensor], Tensor] | None,
    layer: int | None,
) -> Tensor:
    """What the experts of each token make of it, weighted and added up."""
    act = activation or silu
    x, ids = lift(x), routing.ids
    if ids.ndim != x.ndim:
        raise GraphError(
            "moe", f"needs k ids in the last axis for each row of {x.type}, got {ids.type}."
        )
    wide = x.grouped_matmul(up, ids, layer=layer)
    gated = None if gate is None else x.grouped_matmul(gate, ids, layer=layer)
    hidden = act(wide) if gated is None else act(gated) * wide
    made = hidden.grouped_matmul(down, ids, layer=layer)
    if routing.weights is not None:
        made = made * routing.weights.unsqueeze(-1)
    return made.sum(-2)
