"""Where an element of a result comes from: the index maps of ops, and their arithmetic.

    (node, operand, index of the result) --operand_index--> index of the operand

Movement costs nothing by itself: a consumer that wants element `i` of a permuted,
sliced or reshaped tensor asks here which element of the operand that is. The
scheduler uses the maps to see what can be fused, lowering uses them to make
addresses. The maps themselves are the ops' `index`. `pad`, `concat`, `gather` and `take_along`
also choose a value by index; their operand's index is what it is where that operand is chosen
at all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from semel.ir.expr import Dim, floordiv, mod, product
from semel.ir.graph import Node
from semel.ir.opdef import Indices
from semel.ir.types import Shape
from semel.ops.narrow_weights import block_sizes

__all__ = [
    "Fresh",
    "Gathered",
    "Indices",
    "contraction_index",
    "flat_index",
    "operand_index",
    "reshape_index",
    "reshape_runs",
    "unflatten",
]

#: Makes the atom for an index that is read from memory: (node, index of the index tensor).
Gathered = Callable[[Node, Indices], Dim]
#: Makes a loop index of its own, or 0 where there is one element.
Fresh = Callable[[Dim], Dim]


def operand_index(node: Node, operand: int, at: Indices, gathered: Gathered) -> Indices:
    """The index of operand number `operand` that result element `at` needs."""
    rule = node.op.index
    return at if rule is None else rule(node, operand, at, gathered)


def no_gather(node: Node, at: Indices) -> Dim:
    """For whoever asks for the index of a view: there is nothing to be read for it."""
    raise AssertionError(f"{node!r} is not a pure view")


def contraction_index(node: Node, fresh: Fresh) -> Dim:
    """The index along which a matmul contracts, made of one loop or of several.

    Where the left operand merges axes into the contracted one (the windows of a
    convolution), a loop per merged axis keeps the addresses affine; so does a loop per
    block of k where the right operand has a scale for each.
    """
    left = node.inputs[0]
    depth = left.type.shape[-1]
    if left.op.name == "reshape":  # the one op that merges axes
        source = left.inputs[0].type.shape
        for count in range(2, len(source) + 1):
            if product(source[-count:]) == depth and all(d != 1 for d in source[-count:]):
                parts = source[-count:]
                return flat_index(tuple(fresh(d) for d in parts), parts)
    blocks = block_sizes(node.inputs[1], depth)
    if blocks is not None:
        return flat_index(tuple(fresh(d) for d in blocks), blocks)
    return fresh(depth)


def flat_index(at: Indices, shape: Shape) -> Dim:
    """The row-major position of an element."""
    flat: Dim = 0
    for i, d in zip(at, shape, strict=True):
        flat = flat * d + i
    return flat


@lru_cache(maxsize=4096)  # loops have the same names in every graph
def reshape_index(at: Indices, source: Shape, target: Shape) -> Indices:
    """The index into `target` of the element at `at` in `source`, both row-major.

    Axes are matched in runs of equal size, so that division appears only inside a
    run that really merges or splits axes.
    """
    result: list[Dim] = []
    for i, run_i, j, run_j in reshape_runs(source, target):
        flat = flat_index(at[i:run_i], source[i:run_i])
        result += unflatten(flat, target[j:run_j])
    return tuple(result)


@lru_cache(maxsize=4096)  # schedule, lowering and layout ask for the same ones
def reshape_runs(source: Shape, target: Shape) -> tuple[tuple[int, int, int, int], ...]:
    """The shortest runs of axes that hold the same elements: (i, end, j, end) in each shape."""
    runs: list[tuple[int, int, int, int]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        run_i, run_j = _next_run(source, target, i, j)
        runs.append((i, run_i, j, run_j))
        i, j = run_i, run_j
    return tuple(runs)


def _next_run(source: Shape, target: Shape, i: int, j: int) -> tuple[int, int]:
    """The ends of the shortest runs from i and j that hold equally many elements."""
    for length in range(1, len(source) - i + len(target) - j + 1):
        for take_i in range(length + 1):
            end_i, end_j = i + take_i, j + length - take_i
            if end_i > len(source) or end_j > len(target):
                continue
            if product(source[i:end_i]) == product(target[j:end_j]):
                return end_i, end_j
    return len(source), len(target)


def unflatten(flat: Dim, shape: Shape) -> list[Dim]:
    """The index of row-major position `flat`; axes of size 1 have index 0.

    An axis of size 0 has no index, and whatever is computed there never runs.
    """
    result: list[Dim] = []
    rest = flat
    for position, dim in enumerate(reversed(shape)):
        if dim in (0, 1):
            result.append(0)
            continue
        is_first = all(d == 1 for d in shape[: len(shape) - 1 - position])
        if is_first:
            result.append(rest)
            rest = 0
        else:
            result.append(mod(rest, dim))
            rest = floordiv(rest, dim)
    return list(reversed(result))
