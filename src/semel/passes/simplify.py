"""Algebraic simplification: fewer ops, the same bits.

    before                                  after
    %0 = input "x" : f32[4]                 %0 = input "x" : f32[4]
    %1 = neg %0 : f32[4]                    output %0
    %2 = neg %1 : f32[4]
    output %2

A rule looks at one node and its operands and gives an equal node, or None. For floats a
rule is here only if it changes no bit for any operand, infinities and signed zeros
included (a NaN stays a NaN): x + 0.0 is not x, for -0.0 + 0.0 is 0.0, but x - 0.0 is.
Integers wrap, so that they keep the laws of a ring. Guards of the original graph are
assumed to hold (see `semel.ops.guards`).

Common subexpressions and dead code need no pass: nodes are hash-consed, so that equal
computations are one node, and a graph holds only what its outputs reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from semel.ir.expr import add, mul
from semel.ir.graph import Graph, Node, make_node, rewrite
from semel.ir.opdef import OpDef
from semel.ir.types import DType, Shape, is_lossless
from semel.kernel.ir import COMBINES
from semel.ops.attrs import (
    CastAttrs,
    ExpandAttrs,
    PermuteAttrs,
    ReduceAttrs,
    ScalarAttrs,
    SliceAttrs,
)
from semel.ops.filled import filled
from semel.passes.patterns import expand_to, is_uniform, reshape_to, uniform

Rule = Callable[[Node], Node | None]
#: Each round rewrites every node; rules shrink the graph, so that few rounds are ever needed.
MAX_ROUNDS = 16


def simplify(graph: Graph) -> Graph:
    """Apply every rule until none fires."""
    settled: set[Node] = set()  # to which nothing more can be said, this time and the next

    def rule(node: Node) -> Node | None:
        if node in settled:
            return None
        found = _simplify_node(node)
        if found is None:
            settled.add(node)
        return found

    for _ in range(MAX_ROUNDS):
        simpler = rewrite(graph, rule)
        if simpler.outputs == graph.outputs:
            return simpler
        graph = simpler
    return graph


def _simplify_node(node: Node) -> Node | None:
    if 0 in node.type.shape and node.op.kind not in ("leaf", "update"):
        # What has no elements is not computed, and nothing is read for it; of a state, it is that.
        return filled(0, node.type.dtype, node.type.shape)
    for rule in _rules(node.op):
        found = rule(node)
        # Dims that agree only by a guard may differ in form: then the node keeps its own.
        if found is not None and found is not node and found.type == node.type:
            return found
    return None


@cache
def _rules(op: OpDef) -> tuple[Rule, ...]:
    """What may be said simpler of an op: what the table has, and what holds of its kind."""
    rules = list(RULES.get(op.name, ()))
    if op.is_view:
        rules.insert(0, _view_of_number)
    if op.is_pointwise:
        rules.append(_sink_expand)
    if op.kind == "reduce" and op.attrs is ReduceAttrs:
        rules.append(_reduce_nothing)
    return tuple(rules)


# ---------------------------------------------------------------- arithmetic


def _neutral(value: float | bool, *, right_only: bool = False, on: str = "biuf") -> Rule:
    """op(x, value) is x, and op(value, x) unless `right_only`, for dtypes of the kinds `on`."""

    def rule(node: Node) -> Node | None:
        x, y = node.inputs
        if node.type.dtype.kind not in on:
            return None
        if is_uniform(y, value):
            return x
        return y if not right_only and is_uniform(x, value) else None

    return rule


def _absorbing(value: int | bool, *, on: str = "biu") -> Rule:
    """op(x, value) and op(value, x) are value."""

    def rule(node: Node) -> Node | None:
        if node.type.dtype.kind not in on:
            return None
        return next((n for n in node.inputs if is_uniform(n, value)), None)

    return rule


def _same_operands(node: Node) -> Node | None:
    """max(x, x), and(x, x), ... are x."""
    return node.inputs[0] if node.inputs[0] is node.inputs[1] else None


def _self_inverse(node: Node) -> Node | None:
    """sub(x, x) and xor(x, x) are 0, but not for floats: inf - inf is NaN."""
    if node.inputs[0] is not node.inputs[1] or node.type.dtype.is_float:
        return None
    return filled(0, node.type.dtype, node.type.shape)


def _undo(node: Node) -> Node | None:
    """neg(neg x) and not(not x) are x."""
    inner = node.inputs[0]
    return inner.inputs[0] if inner.op is node.op else None


def _abs_of(node: Node) -> Node | None:
    """abs(abs x) is abs x, abs(neg x) is abs x."""
    inner = node.inputs[0]
    if inner.op.name == "abs":
        return inner
    return make_node("abs", inner.inputs) if inner.op.name == "neg" else None


_ROUNDINGS = ("floor", "ceil", "trunc", "rint")


def _round_of_round(node: Node) -> Node | None:
    """floor(rint x) is rint x: the operand is whole already."""
    inner = node.inputs[0]
    was_integer = inner.op.name == "cast" and not inner.inputs[0].type.dtype.is_float
    return inner if inner.op.name in _ROUNDINGS or was_integer else None


def _divide_by_power_of_two(node: Node) -> Node | None:
    """x / 4 is x * 0.25: both round the same real number, while 1/4 is exact."""
    divisor = uniform(node.inputs[1])
    if divisor is None or not divisor.value or not math.isfinite(divisor.value):
        return None
    reciprocal = ScalarAttrs(1 / divisor.value, divisor.dtype).value
    if abs(math.frexp(divisor.value)[0]) != 0.5 or reciprocal * divisor.value != 1:
        return None
    factor = filled(reciprocal, divisor.dtype, node.type.shape)
    return make_node("mul", (node.inputs[0], factor))


def _integer_power_of_two(node: Node) -> Node | None:
    """x idiv 2**k is x shr k, x imod 2**k is x and (2**k - 1): both round down."""
    divisor, dtype = uniform(node.inputs[1]), node.type.dtype
    if divisor is None or dtype.is_float:
        return None
    if divisor.value < 1 or divisor.value & (divisor.value - 1):
        return None
    if node.op.name == "imod":
        mask = filled(divisor.value - 1, dtype, node.type.shape)
        return make_node("and", (node.inputs[0], mask))
    shift = filled(divisor.value.bit_length() - 1, dtype, node.type.shape)
    return make_node("shr", (node.inputs[0], shift))


def _power(node: Node) -> Node | None:
    """pow(x, 1) is x, pow(x, 2) is x*x, pow(x, 0) is 1 even for NaN."""
    x, exponent = node.inputs
    if is_uniform(exponent, 1.0):
        return x
    if is_uniform(exponent, 2.0):
        return make_node("mul", (x, x))
    if is_uniform(exponent, 0.0) or is_uniform(exponent, -0.0):
        return filled(1.0, node.type.dtype, node.type.shape)
    return None


def _where(node: Node) -> Node | None:
    """where(true, a, b) is a; where(c, a, a) is a; where(not c, a, b) is where(c, b, a)."""
    condition, a, b = node.inputs
    known = uniform(condition)
    if known is not None:
        return a if known.value else b
    if a is b:
        return a
    return make_node("where", (condition.inputs[0], b, a)) if condition.op.name == "not" else None


# ---------------------------------------------------------------- casts


def _cast(node: Node) -> Node | None:
    """Drop a cast to the same dtype; merge two where the first one loses nothing."""
    x, target = node.inputs[0], node.attrs.dtype
    if x.type.dtype == target:
        return x
    if x.op.name != "cast":
        return None
    source, middle = x.inputs[0].type.dtype, x.type.dtype
    if _may_skip(source, middle, target):
        return make_node("cast", x.inputs, CastAttrs(target))
    return None


def _may_skip(source: DType, middle: DType, target: DType) -> bool:
    if source.is_integer and middle.is_integer and target.is_integer and target.bits <= middle.bits:
        return True  # wrapping twice is wrapping to the narrower one
    if not is_lossless(source, middle):
        return False
    # A float saturates where an integer wraps: skipping the float must not be noticed.
    saturates = middle.is_float and target.is_integer and not source.is_float
    return not saturates or is_lossless(source, target)


def _bitcast(node: Node) -> Node | None:
    """Only the last of several bitcasts matters; one to the same dtype is nothing."""
    x = node.inputs[0]
    if x.type.dtype == node.attrs.dtype:
        return x
    return make_node("bitcast", x.inputs, node.attrs) if x.op.name == "bitcast" else None


# ---------------------------------------------------------------- movement


def _reshape(node: Node) -> Node | None:
    x = node.inputs[0]
    if x.type.shape == node.type.shape:
        return x
    return reshape_to(x.inputs[0], node.type.shape) if x.op.name == "reshape" else None


def _permute(node: Node) -> Node | None:
    """Two orders are one; moving axes of size 1 among the others is a reshape."""
    x, axes = node.inputs[0], node.attrs.axes
    if axes == tuple(range(len(axes))):
        return x
    if x.op.name == "permute":
        return make_node("permute", x.inputs, PermuteAttrs(tuple(x.attrs.axes[a] for a in axes)))
    moved = [a for a in axes if x.type.shape[a] != 1]
    return reshape_to(x, node.type.shape) if moved == sorted(moved) else None


def _expand(node: Node) -> Node | None:
    x = node.inputs[0]
    if x.type.shape == node.type.shape:
        return x
    return expand_to(x.inputs[0], node.type.shape) if x.op.name == "expand" else None


def _slice(node: Node) -> Node | None:
    x, attrs = node.inputs[0], node.attrs
    if (
        x.type.shape == node.type.shape
        and all(start == 0 for start in attrs.starts)
        and all(step == 1 for step in attrs.steps)
    ):
        return x
    if x.op.name != "slice":
        return None
    inner = x.attrs
    starts = tuple(
        add(first, mul(start, step))
        for first, start, step in zip(inner.starts, attrs.starts, inner.steps, strict=True)
    )
    steps = tuple(a * b for a, b in zip(inner.steps, attrs.steps, strict=True))
    return make_node("slice", x.inputs, SliceAttrs(starts, attrs.sizes, steps))


def _pad(node: Node) -> Node | None:
    amounts = (*node.attrs.before, *node.attrs.after)
    return node.inputs[0] if all(a == 0 for a in amounts) else None


def _concat(node: Node) -> Node | None:
    """Drop operands of size 0; one operand is itself."""
    kept = [n for n in node.inputs if n.type.shape[node.attrs.axis] != 0]
    if len(kept) <= 1:
        return (kept or node.inputs)[0]
    return make_node("concat", kept, node.attrs) if len(kept) < len(node.inputs) else None


def _sink_expand(node: Node) -> Node | None:
    """exp(expand x) is expand(exp x): the same numbers, computed once each."""
    if not any(n.op.name == "expand" for n in node.inputs):
        return None
    if any(n.op.name != "expand" and not n.op.is_literal for n in node.inputs):
        return None
    sources = [_below_expand(n) for n in node.inputs]
    needed = tuple(
        1 if all(d == 1 for d in dims) else full_dim
        for full_dim, *dims in zip(node.type.shape, *(n.type.shape for n in sources), strict=True)
    )
    if needed == node.type.shape:
        return None
    inner = make_node(node.op.name, [_stretched(n, needed) for n in sources], node.attrs)
    return make_node("expand", (inner,), ExpandAttrs(node.type.shape))


def _stretched(node: Node, shape: Shape) -> Node:
    if node.op.is_literal:
        return filled(node.attrs.value, node.attrs.dtype, shape)
    return expand_to(node, shape)


def _below_expand(node: Node) -> Node:
    """What is repeated; of a number it is one."""
    if node.op.name == "expand":
        return node.inputs[0]
    return filled(node.attrs.value, node.attrs.dtype, (1,) * node.type.rank)


def _view_of_number(node: Node) -> Node | None:
    """However one looks at a number, it is that number."""
    if any(type(dim) is not int for dim in node.type.shape):
        return None  # there, views say of which size
    found = uniform(node)
    return None if found is None else filled(found.value, found.dtype, node.type.shape)


def _reduce_nothing(node: Node) -> Node | None:
    """A reduction over axes of size 1, or over none, is its operand.

    Not a sum of floats: it starts at 0.0, and 0.0 + -0.0 is 0.0. Nor what gives a position.
    """
    x, combiner = node.inputs[0], node.op.combiner
    assert combiner is not None
    combine = combiner(node.attrs).kernel
    if combine == "add" and x.type.dtype.is_float:
        return None
    if COMBINES[combine].num_locals > 1:
        return None
    return x if all(x.type.shape[a] == 1 for a in node.attrs.axes) else None


# ---------------------------------------------------------------- the table

RULES: dict[str, list[Rule]] = {
    "add": [_neutral(0, on="iu"), _neutral(-0.0, on="f")],
    "sub": [_neutral(0, right_only=True), _self_inverse],
    "mul": [_neutral(1), _absorbing(0)],
    "div": [_neutral(1, right_only=True), _divide_by_power_of_two],
    "idiv": [_neutral(1, right_only=True, on="iu"), _integer_power_of_two],
    "imod": [_integer_power_of_two],
    "pow": [_power],
    "max": [_same_operands],
    "min": [_same_operands],
    "and": [_same_operands, _absorbing(0), _neutral(True, on="b"), _neutral(-1, on="iu")],
    "or": [_same_operands, _neutral(0), _absorbing(True, on="b"), _absorbing(-1, on="iu")],
    "xor": [_self_inverse, _neutral(0)],
    "shl": [_neutral(0, right_only=True)],
    "shr": [_neutral(0, right_only=True)],
    "neg": [_undo],
    "not": [_undo],
    "abs": [_abs_of],
    "where": [_where],
    "cast": [_cast],
    "bitcast": [_bitcast],
    "reshape": [_reshape],
    "permute": [_permute],
    "expand": [_expand],
    "slice": [_slice],
    "pad": [_pad],
    "concat": [_concat],
    **{name: [_round_of_round] for name in _ROUNDINGS},
}
