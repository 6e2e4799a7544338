"""Sums of products: an fma for each element, wherever the product is read besides.

    reduce_sum(views of mul(a, b))  --summed_product-->  mul(a, b)

Such a sum rounds once where a product and a sum would round twice. That is part of what the graph
means and must not depend on who computes the product: so the kernel of the sum always does it
itself, from the operands, also where another kernel stores the product or nothing is fused. What
counts is the graph: the sum, the product, and views between them that repeat no element.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from semel.ir.expr import Dim, Fn, Index, terms
from semel.ir.graph import Node
from semel.ops.attrs import ExpandAttrs
from semel.ops.index_maps import Indices, no_gather, operand_index
from semel.schedule.group import MAX_INDEX_TERMS


def summed_product(node: Node) -> Node | None:
    """The product that a reduction adds up without rounding it first; None: there is none."""
    rule, dtype = node.op.combiner, node.type.dtype
    if rule is None or not dtype.is_float or dtype.is_half or rule(node.attrs).kernel != "add":
        return None
    *_, (last, _) = views_below(node, _plain(node.inputs[0]))
    return last if last.op.is_product else None


def views_below(node: Node, at: Indices) -> Iterator[tuple[Node, Indices]]:
    """A reduction's operand, and what it is a view of, each with the index that `at` becomes."""
    operand, plain = node.inputs[0], _plain(node.inputs[0])
    yield operand, at
    while operand.op.is_view and not isinstance(operand.attrs, ExpandAttrs):
        plain = operand_index(operand, 0, plain, no_gather)
        if any(count_terms(i) > MAX_INDEX_TERMS for i in plain):
            return  # by the shapes alone, so that the answer is the same for all kernels
        at = operand_index(operand, 0, at, no_gather)
        operand = operand.inputs[0]
        yield operand, at


def _plain(node: Node) -> Indices:
    """An index of its own for every axis."""
    return tuple(0 if n == 1 else Index(f"p{d}", n) for d, n in enumerate(node.type.shape))


def count_terms(index: Dim) -> int:
    """The size of an index expression, counted until it is past the limit."""
    if isinstance(index, (int, Index)):
        return 0 if isinstance(index, int) else 1
    return _count_terms(index)


@lru_cache(maxsize=4096)  # loops have the same names in every graph
def _count_terms(index: Dim) -> int:
    count = 0
    stack: list[Dim] = [index]
    while stack and count <= MAX_INDEX_TERMS:
        dim = stack.pop()
        for monomial, _ in [] if isinstance(dim, int) else terms(dim):
            count += 1
            stack.extend(a for atom in monomial if isinstance(atom, Fn) for a in atom.args)
    return count
