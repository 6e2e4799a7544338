"""Constant folding: what depends on sealed data alone is computed once, here.

    before                                    after
    %0 = constant @0 : f32[2] = [1.0, 4.0]    %0 = constant @0 : f32[2] = [1.0, 2.0]
    %1 = sqrt %0 : f32[2]                     output %0
    output %1

    %0 = scalar 2.0 : f32[]                   %0 = scalar 4.0 : f32[]
    %1 = expand (reshape %0) : f32[n,4]       %1 = expand (reshape %0) : f32[n,4]
    %2 = mul %1 %1 : f32[n,4]                 output %1
    output %2

A fold changes no bit: a run that was given the same numbers would compute the same. Where every
step is rounded correctly, NumPy's reference of the op says so; functions that are approximated
are interpreted, in the arithmetic that kernels have for them; sums, whose order counts, and
functions of large arrays are `stored`: kernels make them before any run. Inputs are never known.
What params determine is known by the time the graph is prepared, and its recipe is: it is
`stored`, too.
A constant of one number, perhaps repeated in a row, is a scalar. An op on uniform operands (one
repeated number) folds to a uniform result whatever its shape, symbolic ones too. Otherwise it must
be small: at most 64 KiB or the size of the constants it comes from, so that a fold never
makes a program bigger. Movement is not folded, since a consumer reads through it for
nothing; what is computed from moved constants is. A `check_index` that would fail is left
for the run to report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from semel.errors import IndexRangeError
from semel.ir.expr import atoms
from semel.ir.graph import Graph, Node, Storage, attr_dims, make_node, rewrite
from semel.kernel.interpret import evaluate_value
from semel.kernel.ir import Local, local
from semel.kernel.math import expand_math
from semel.ops.attrs import ConstantAttrs
from semel.ops.evaluate import evaluate_node
from semel.ops.filled import filled
from semel.ops.stored import KNOWN, WEIGHTS, is_known, stored
from semel.passes.patterns import uniform

SMALL_BYTES = 64 * 1024
#: Cheaper as arithmetic than as a load; and a loop may take its reference for ever.
_GENERATED = frozenset({"iota", "loop", "cond"})
#: Of what is not generated: the result depends on an element's index, so that uniform operands
#: do not make it uniform.
_BY_INDEX = frozenset({"random_bits"})

Array = np.ndarray[Any, Any]

#: What was multiplied, by the storage that holds the product: small ones.
_products: WeakKeyDictionary[Storage, Node] = WeakKeyDictionary()


def fold_constants(graph: Graph) -> Graph:
    """Replace every node that sealed data determines by its value, if that is small."""
    return rewrite(graph, _fold) if _has_known(graph) else graph


def _has_known(graph: Graph) -> bool:
    """Whether anything follows from leaves that need no run, but views of these."""
    known: set[Node] = set()
    for node in graph.nodes:
        if node.op.name == "constant":
            return True
        if node.inputs and not known.issuperset(node.inputs):
            continue
        if node.inputs and node.op.kind != "movement":
            return True
        if node.inputs or node.op.name in KNOWN:
            known.add(node)
    return False


def fold_node(node: Node) -> Node:
    """The value of a node, if sealed data or params determine it; else the node."""
    return _fold(node) or node


def _fold(node: Node) -> Node | None:
    if node.op.name == "constant":
        return _as_scalar(node)
    if node.op.kind in ("leaf", "movement") or node.op.name in _GENERATED:
        return None
    return _fold_uniform(node) or _fold_known(node)


def _fold_uniform(node: Node) -> Node | None:
    """Fold an elementwise op on repeated numbers: one evaluation on shape ()."""
    scalars = [uniform(n) for n in node.inputs]
    if node.op.kind != "elementwise" or node.op.name in _BY_INDEX:
        return None
    if any(s is None for s in scalars) or any(atoms(d) for d in attr_dims(node.attrs)):
        return None
    leaves = [filled(s.value, s.dtype, ()) for s in scalars if s is not None]
    value = _number(make_node(node.op.name, leaves, node.attrs))
    return None if value is None else filled(value.item(), node.type.dtype, node.type.shape)


def _fold_known(node: Node) -> Node | None:
    below = _below(node) if node.inputs and _is_static(node) else None
    if below is None:
        return None
    leaf_bytes = _known_bytes(node, below)
    size_bytes = node.type.max_bytes
    if size_bytes is None or size_bytes > max(SMALL_BYTES, leaf_bytes):
        return None
    leaves = {leaf.op.name for leaf in below if leaf.op.kind == "leaf"}
    # A sum of windows adds in an order of its own, and must see them.
    is_number = (_is_exact(node) or _is_interpreted(node)) and not any(n.op.slides for n in below)
    if not is_number or not leaves.isdisjoint(("param", "stored")):
        # What is made of scalars alone has no data that a kernel could read before any run.
        has_data = not leaves.isdisjoint(WEIGHTS)
        return stored(_with_products(node)) if has_data and is_known(node) else None
    value = _number(node)
    if value is None:
        return None
    storage = Storage(value)
    if node.op.is_product:
        _products[storage] = node
    folded = make_node("constant", (), ConstantAttrs(storage, node.type))
    return _as_scalar(folded) or folded


def _with_products(node: Node) -> Node:
    """The node over the products that it would have seen, had they not been folded before it.

    A sum of them rounds once (`semel.schedule.products`).
    """

    def rule(leaf: Node) -> Node | None:
        return _products.get(leaf.attrs.storage) if leaf.op.name == "constant" else None

    return rewrite(Graph((node,)), rule).outputs[0] if node.op.kind == "reduce" else node


def _as_scalar(node: Node) -> Node | None:
    """A constant of one number is one that other rules can see; so is one repeated in a row, as
    zero points of channels are."""
    array = node.attrs.storage.array
    if not 0 < array.nbytes <= SMALL_BYTES or array.size != max(array.shape, default=1):
        return None
    first = array.reshape(-1)[:1]
    if array.size > 1 and array.tobytes() != first.tobytes() * array.size:
        return None
    return filled(first.item(), node.type.dtype, node.type.shape)


def _is_static(node: Node) -> bool:
    dims = (*node.type.shape, *attr_dims(node.attrs))
    return not any(atoms(d) for d in dims)  # variables, and steps of loops


def _below(node: Node) -> list[Node] | None:
    """What a node is computed from, through movement, down to leaves; None if not all is known.

    Operands come before what moves them.
    """
    found: dict[Node, None] = {}
    stack = list(node.inputs)
    while stack:
        each = stack[-1]
        if each in found:
            stack.pop()
        elif each.op.name in KNOWN:
            found[stack.pop()] = None
        elif each.op.kind != "movement" or not _is_static(each):
            return None
        elif new := [n for n in each.inputs if n not in found]:
            stack += new
        else:
            found[stack.pop()] = None
    return list(found)


def _known_bytes(node: Node, below: Sequence[Node]) -> int:
    """Bytes of the constants a node is computed from, as often as it is."""
    sizes: dict[Node, int] = {}
    for each in below:
        kind = each.type
        sizes[each] = (
            sum(sizes[n] for n in each.inputs)
            if each.op.kind == "movement"
            else (kind.dtype.size_bytes if each.op.is_literal else kind.max_bytes) or 0
        )
    return sum(sizes[n] for n in node.inputs)


def _is_exact(node: Node) -> bool:
    """Whether the reference and every kernel give the same bits, whatever reads them."""
    if not any(n.type.dtype.is_float for n in (node, *node.inputs)):
        return True
    if node.op.kind == "elementwise":
        # A sum would have to see what a product was made from: large ones are not kept for that.
        is_opaque = node.op.is_product and not _is_small(node)
        return not node.op.is_approximate and not is_opaque
    rule = node.op.combiner if node.op.kind == "reduce" else None
    return rule is not None and not rule(node.attrs).rounds


def _is_interpreted(node: Node) -> bool:
    """Whether kernels compute an element by arithmetic alone, of which there is not much."""
    return node.op.is_pointwise and node.op.value is not None and _is_small(node)


def _is_small(node: Node) -> bool:
    return (node.type.max_bytes or 0) <= SMALL_BYTES


def _number(node: Node) -> Array | None:
    """The value of a node over leaves and movement; None if a check in it fails."""
    values: dict[Node, Array] = {}
    try:
        for each in Graph((node,)).nodes:
            operands = tuple(values[n] for n in each.inputs)
            by = _interpreted if each.op.is_approximate else _referred
            values[each] = by(each, operands)
    except IndexRangeError:
        return None
    return values[node]


def _referred(node: Node, operands: tuple[Array, ...]) -> Array:
    return evaluate_node(node, operands, {})


def _interpreted(node: Node, operands: tuple[Array, ...]) -> Array:
    """The value as kernels compute it, bit for bit."""
    leaves = [local(Local(f"x{i}", n.type.dtype)) for i, n in enumerate(node.inputs)]
    assert node.op.value is not None
    value = expand_math(node.op.value(*leaves))
    return evaluate_value(value, dict(zip(leaves, operands, strict=True)))
