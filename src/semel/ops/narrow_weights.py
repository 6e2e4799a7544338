"""Weights that are stored narrower than they are computed with.

    (cast(q) - zero) * scale  of weights  -->  is_widened: True

A contraction may read the narrow bytes and widen them in registers: memory holds, and every
run reads, a quarter of what the wide weights would take. Constant folding leaves such
weights alone because a fold never makes a program bigger.
"""

from __future__ import annotations

from itertools import pairwise

from semel.ir.expr import Dim, product
from semel.ir.graph import Node
from semel.ir.types import INT32, Shape
from semel.ops.stored import KNOWN

#: Work per element above which widened weights are worth storing.
_MAX_NODES = 12
_MAX_COST = 3
#: Bits of a word that numbers of few bits are held in.
WORD_BITS = 32


def is_widened(node: Node) -> bool:
    """Whether a node is cheap arithmetic on weights, with a cast from a narrower dtype.

    Numbers in words are narrower than the words: there are more of them than of bytes.
    """
    seen: set[Node] = set()
    stack, is_narrow, has_words, read = [node], False, False, 0
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        if current.op.name in KNOWN:
            read += 0 if current.op.is_literal else current.type.max_bytes or 0
            continue
        if current.op.kind != "elementwise" and not current.op.is_view:
            return False
        if (
            current.op.cost > _MAX_COST
            or sum(n.op.kind == "elementwise" for n in seen) > _MAX_NODES
        ):
            return False
        if current.op.converts:
            source = current.inputs[0].type.dtype
            is_narrow |= source.bits < current.type.dtype.bits
        has_words |= current.op.kind == "elementwise" and current.type.dtype == INT32
        stack.extend(current.inputs)
    return is_narrow or (has_words and 2 * read < (node.type.max_bytes or 0))


def block_sizes(right: Node, depth: Dim) -> tuple[Dim, ...] | None:
    """How widened weights split k into blocks that share a scale or a word, or None.

    Blocks of blocks if there are several: those of a scale are made of words.
    """
    if not isinstance(depth, int) or not is_widened(right):
        return None
    sizes: set[int] = set()
    stack = [right]
    while stack:
        node = stack.pop()
        if node.op.name == "reshape" and node.inputs[0].op.name == "expand":
            size = _block_size(node.inputs[0].type.shape, node.type.shape, depth)
            if size is not None:
                sizes.add(size)
                continue
        if node.op.kind == "elementwise" or node.op.is_view:
            stack.extend(node.inputs)
    ends = [depth, *sorted(sizes - {1, depth}, reverse=True)]
    if len(ends) == 1 or any(a % b for a, b in pairwise(ends)):
        return None
    return (*(a // b for a, b in pairwise(ends)), ends[-1])


def is_word(steps: Dim) -> bool:
    """Whether a loop over so many k takes a word of weights apart."""
    return isinstance(steps, int) and steps <= WORD_BITS // 2


def _block_size(source: Shape, shape: Shape, depth: int) -> int | None:
    """The size of blocks of k, the last axis but one of `shape`, which `source` has apart."""
    is_split = len(source) == len(shape) + 1 and source[-1] == shape[-1]
    if not is_split or shape[-2] != depth or product(source[-3:-1]) != depth:
        return None
    return source[-2] if isinstance(source[-2], int) else None
