"""Where a mask is true, run by run: the kernel of `compact`.

    mask [n], starts [runs]  -->  out [late]

A tile is one run of the mask. It writes the positions of its true elements to scratch, without a
branch on data (a false element is overwritten by the next), and copies them to the place where
the runs before it end. So tiles do not wait for each other, and give the same positions in
whichever order they run.
"""

from __future__ import annotations

from semel.ir.expr import Index, ceildiv, minimum
from semel.ir.graph import Node
from semel.ir.target import Target
from semel.ir.types import INT64
from semel.kernel import ir
from semel.kernel.ir import Buffer, Local, Statement
from semel.lower.lowered import Names


def lower_compact(
    node: Node, buffers: dict[Node, Buffer], names: Names, target: Target
) -> tuple[Index, list[Buffer], tuple[Statement, ...]]:
    """The tile's index, scratch and body."""
    mask, starts, _ = node.inputs
    (size,), (length,) = node.type.shape, mask.type.shape
    width: int = node.attrs.tile
    tile = Index("tile", ceildiv(length, width))
    found = Buffer("s0", INT64, width, "s")
    count = Local(names("c"), INT64)
    i, place = Index(names("i"), width), Index(names("p"), width)
    is_true = ir.cast(ir.load(buffers[mask], tile * width + i), INT64)
    look: tuple[Statement, ...] = (
        ir.Bind(place, ir.local(count)),
        ir.Store(found, place, ir.index(tile * width + i)),
        ir.Assign(count, ir.local(count) + is_true),
    )
    start, stop = Index(names("b"), size + 1), Index(names("b"), width + 1)
    j = Index(names("j"), width)
    copy = ir.Store(buffers[node], start + j, ir.load(found, j))
    body: tuple[Statement, ...] = (
        ir.Declare(count, ir.const(INT64, 0)),
        ir.Loop(i, 0, minimum(length - tile * width, width), look),
        ir.Bind(start, ir.load(buffers[starts], tile)),
        ir.Bind(stop, ir.local(count)),
        # Not past the end, whatever the starts say.
        ir.Loop(j, 0, minimum(stop, size - start), (copy,), target.vector_bits // 64),
    )
    return tile, [found], body
