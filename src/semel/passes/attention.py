"""Find attention written out as matmul, softmax, matmul.

Before:  %m = reduce_max %s;  %e = exp(%s - %m);  %p = %e * (1 / reduce_sum %e);  matmul %p, %v
After:   softmax_matmul %s, %v

The scores %s may be anything; if they come from a matmul, scheduling takes that into
the same kernel, with the scale and the masks between. The weights %p must have no
other user. On the way

* masks that are -inf outside a band along the diagonal (causal, sliding window) become
  attributes, so that what they hide is never computed (`passes.mask_bands`),
* factors on queries and keys (sqrt(scale) on each, as exporters write it) move to the scores,
  so that both are read where they lie,
* `where(isnan(%p), 0, %p)`, which exporters write for rows that see nothing, becomes an
  attribute,
* weights that are rounded to a half type in between are not rounded any more: the result is
  computed in float32 and rounded once. It is closer to the truth, and not the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from semel.ir.graph import Graph, Node, make_node, rewrite, users
from semel.ir.types import DType
from semel.ops.attrs import AttentionAttrs, CastAttrs
from semel.ops.filled import filled
from semel.passes.mask_bands import Band, added_band, hidden_band, kept_band
from semel.passes.patterns import is_uniform, uniform

#: Elementwise ops between the contraction and the softmax that are looked through for factors.
MAX_BETWEEN = 8
#: Factors of this size are moved: larger and smaller ones may be there to keep products in range.
FACTORS = (2.0**-16, 2.0**16)
_PASSED = ("add", "sub", "mul", "div", "where", "tanh", "cast")


class _Alone(Protocol):
    """Whether a node has so few users, and is no output."""

    def __call__(self, node: Node, uses: int = 1) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Softmax:
    """A softmax over the last axis: of what, and whether NaN became 0."""

    scores: Node
    zero_if_nan: bool = False


def fuse_attention(graph: Graph) -> Graph:
    """Replace softmax followed by matmul wherever the weights are used only there."""
    counts = {node: len(found) for node, found in users(graph.nodes).items()}
    if "matmul" not in graph.ops:
        return graph
    outputs = set(graph.outputs)

    def is_alone(node: Node, uses: int = 1) -> bool:
        return counts.get(node, 1) <= uses and node not in outputs

    def rule(node: Node) -> Node | None:
        if node.op.name != "matmul" or not node.type.dtype.is_float:
            return None
        weights, values = node.inputs
        if not is_alone(weights):
            return None
        found = _find_softmax(weights, is_alone)
        return None if found is None else _attention(found, values, is_alone)

    return rewrite(graph, rule)


def _attention(found: _Softmax, values: Node, is_alone: _Alone) -> Node:
    dtype = values.type.dtype
    wide = found.scores.type.dtype
    scores, band = _without_bands(found.scores)
    scores = _without_factors(scores, is_alone, MAX_BETWEEN) or scores
    attrs = AttentionAttrs(band.left, band.right, zero_if_nan=found.zero_if_nan)
    widened = _cast(values, wide)
    return _cast(make_node("softmax_matmul", (scores, widened), attrs), dtype)


def _cast(node: Node, dtype: DType) -> Node:
    same = node.type.dtype == dtype
    return node if same else make_node("cast", (node,), CastAttrs(dtype))


# ---------------------------------------------------------------- the softmax


def _find_softmax(node: Node, is_alone: _Alone) -> _Softmax | None:
    """The softmax that `node` is, perhaps rounded, perhaps without NaN."""
    if node.op.name == "cast":
        inner = node.inputs[0]
        # From float32 to a half type, or nothing: never from a half type up.
        if inner.type.dtype.bits < node.type.dtype.bits or not inner.type.dtype.is_float:
            return None
        return _find_softmax(inner, is_alone) if is_alone(inner) else None
    if node.op.name == "where":
        condition, then, weights = node.inputs
        is_cleaned = condition.op.name == "isnan" and condition.inputs[0] is weights
        if not is_cleaned or not is_uniform(then, 0.0) or not is_alone(weights, 2):
            return None
        found = _find_softmax(weights, is_alone)
        return None if found is None else _Softmax(found.scores, zero_if_nan=True)
    scores = _softmax_operand(node)
    return None if scores is None or scores.type.dtype.is_half else _Softmax(scores)


def _softmax_operand(node: Node) -> Node | None:
    """The scores whose softmax over the last axis `node` is, or None."""
    if node.op.name == "mul":
        for exponentials, factor in (node.inputs, node.inputs[::-1]):
            total = _reciprocal_operand(_below_expand(factor))
            if total is not None and _reduces_last(total, "reduce_sum", exponentials):
                return _exponent(exponentials)
    if node.op.name == "div":
        exponentials, divisor = node.inputs
        if _reduces_last(_below_expand(divisor), "reduce_sum", exponentials):
            return _exponent(exponentials)
    return None


def _exponent(node: Node) -> Node | None:
    """s of exp(s - max(s))."""
    if node.op.name not in ("exp", "decay") or node.inputs[0].op.name != "sub":
        return None
    scores, top = node.inputs[0].inputs
    return scores if _reduces_last(_below_expand(top), "reduce_max", scores) else None


def _below_expand(node: Node) -> Node:
    return node.inputs[0] if node.op.name == "expand" else node


def _reciprocal_operand(node: Node) -> Node | None:
    if node.op.name != "div" or not is_uniform(node.inputs[0], 1.0):
        return None
    return node.inputs[1]


def _reduces_last(node: Node, name: str, operand: Node) -> bool:
    """Whether `node` reduces exactly the last axis of `operand`."""
    if node.op.name != name or node.inputs[0] is not operand:
        return False
    return bool(node.attrs.axes == (operand.type.rank - 1,))


# ---------------------------------------------------------------- masks


def _without_bands(scores: Node) -> tuple[Node, Band]:
    """The scores without masks that are bands, and all these as one."""
    band = Band()
    while True:
        found = _outer_band(scores)
        if found is None:
            return scores, band
        scores, mask = found
        band = band & mask


def _outer_band(node: Node) -> tuple[Node, Band] | None:
    """What the outermost mask is put on, and its band."""
    if node.op.name == "where":
        condition, a, b = node.inputs
        for kept, gone, find in ((a, b, kept_band), (b, a, hidden_band)):
            band = find(condition) if is_uniform(gone, float("-inf")) else None
            if band is not None:
                return kept, band
    if node.op.name == "add":
        for inner, mask in (node.inputs, node.inputs[::-1]):
            band = added_band(mask)
            if band is not None:
                return inner, band
    return None


# ---------------------------------------------------------------- factors


def _without_factors(node: Node, is_alone: _Alone, depth: int) -> Node | None:
    """The scores with factors of queries and keys moved behind the contraction, or None."""
    if node.op.name == "matmul":
        left, right = (_unscaled(n) for n in node.inputs)
        if left[1] == 1.0 and right[1] == 1.0:
            return None
        product = make_node("matmul", (left[0], right[0]))
        factor = filled(left[1] * right[1], node.type.dtype, node.type.shape)
        return make_node("mul", (product, factor))
    if depth == 0 or node.op.name not in _PASSED:
        return None
    for place, operand in enumerate(node.inputs):
        if operand.type.shape != node.type.shape or not is_alone(operand):
            continue
        found = _without_factors(operand, is_alone, depth - 1)
        if found is not None:
            inputs = [found if n == place else x for n, x in enumerate(node.inputs)]
            return make_node(node.op.name, inputs, node.attrs)
    return None


def _unscaled(node: Node) -> tuple[Node, float]:
    """The node without constant factors on it or below its views, and their product.

    Half types round what they multiply, integers wrap it: their factors stay.
    """
    if node.type.dtype.is_half or not node.type.dtype.is_float:
        return node, 1.0
    if node.op.is_view:
        inner, factor = _unscaled(node.inputs[0])
        moved = node if factor == 1.0 else make_node(node.op.name, (inner,), node.attrs)
        return moved, factor
    if node.op.name in ("mul", "div"):
        own = _factor(node.inputs[1])
        if own is not None:
            inner, factor = _unscaled(node.inputs[0])
            return inner, factor * own if node.op.name == "mul" else factor / own
        own = _factor(node.inputs[0]) if node.op.name == "mul" else None
        if own is not None:
            inner, factor = _unscaled(node.inputs[1])
            return inner, factor * own
    return node, 1.0


def _factor(node: Node) -> float | None:
    """The number that `node` repeats, if it is one of `FACTORS`."""
    number = uniform(node)
    if number is None or not FACTORS[0] <= abs(number.value) <= FACTORS[1]:
        return None
    return float(number.value)
