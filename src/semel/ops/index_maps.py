"""Where an element of a result comes from: index maps of the movement ops.

    (node, operand, index of the result) --operand_index--> index of the operand

Movement costs nothing by itself: a consumer that wants element `i` of a permuted,
sliced or reshaped tensor asks here which element of the operand that is. The
scheduler uses the maps to see what can be fused, lowering uses them to make
addresses. `pad`, `concat`, `gather` and `take_along` also choose a value by index;
their operand's index is what it is where that operand is chosen at all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from semel.ir.expr import Dim, floordiv, mod, product
from semel.ir.graph import Node
from semel.ir.types import Shape
from semel.ops.narrow import block_sizes

Indices = tuple[Dim, ...]
#: Makes the atom for an index that is read from memory: (node, index of the index tensor).
Gathered = Callable[[Node, Indices], Dim]


def operand_index(node: Node, operand: int, at: Indices, gathered: Gathered) -> Indices:
    """The index of operand number `operand` that result element `at` needs."""
    attrs = node.attrs
    match node.op.name:
        case "reshape":
            return reshape_index(at, node.type.shape, node.inputs[0].type.shape)
        case "permute":
            result: list[Dim] = [0] * len(at)
            for position, axis in enumerate(attrs.axes):
                result[axis] = at[position]
            return tuple(result)
        case "expand":
            shape = node.inputs[0].type.shape
            return tuple(0 if d == 1 else i for i, d in zip(at, shape, strict=True))
        case "slice":
            return tuple(
                start + i * step
                for i, start, step in zip(at, attrs.starts, attrs.steps, strict=True)
            )
        case "window":
            rank = len(at) - len(attrs.axes)
            source = list(at[:rank])
            for position, axis in enumerate(attrs.axes):
                inside = at[rank + position] * attrs.dilations[position]
                source[axis] = source[axis] * attrs.strides[position] + inside
            return tuple(source)
        case "pad":
            if operand == 1:
                return ()
            return tuple(i - b for i, b in zip(at, attrs.before, strict=True))
        case "concat":
            offset = concat_offsets(node)[operand]
            return tuple(i - offset if d == attrs.axis else i for d, i in enumerate(at))
        case "gather":
            rank = node.inputs[1].type.rank
            inner = at[attrs.axis : attrs.axis + rank]
            if operand == 1:
                return inner
            chosen = gathered(node, inner)
            return (*at[: attrs.axis], chosen, *at[attrs.axis + rank :])
        case "take_along":
            if operand == 1:
                return at
            chosen = gathered(node, at)
            return tuple(chosen if d == attrs.axis else i for d, i in enumerate(at))
        case "random_bits":
            return (0,)
        case _:
            return at


def contraction_index(node: Node, fresh: Callable[[Dim], Dim]) -> Dim:
    """The index along which a matmul contracts, made of one loop or of several.

    Where the left operand merges axes into the contracted one (the windows of a
    convolution), a loop per merged axis keeps the addresses affine; so does a loop per
    block of k where the right operand has a scale for each.
    """
    left = node.inputs[0]
    depth = left.type.shape[-1]
    if left.op.name == "reshape":
        source = left.inputs[0].type.shape
        for count in range(2, len(source) + 1):
            if product(source[-count:]) == depth and all(d != 1 for d in source[-count:]):
                parts = source[-count:]
                return flat_index(tuple(fresh(d) for d in parts), parts)
    blocks = block_sizes(node.inputs[1], depth)
    if blocks is not None and 1 not in blocks:
        return flat_index(tuple(fresh(d) for d in blocks), blocks)
    return fresh(depth)


def concat_offsets(node: Node) -> tuple[Dim, ...]:
    """Where each operand of a concat starts along the axis."""
    offsets: list[Dim] = []
    total: Dim = 0
    for operand in node.inputs:
        offsets.append(total)
        total = total + operand.type.shape[node.attrs.axis]
    return tuple(offsets)


def flat_index(at: Indices, shape: Shape) -> Dim:
    """The row-major position of an element."""
    flat: Dim = 0
    for i, d in zip(at, shape, strict=True):
        flat = flat * d + i
    return flat


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
