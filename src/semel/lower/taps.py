"""Taps of windows that meet nothing but padding are left out.

    rows of a convolution of a padded image  -->  which of the first taps meet the image

A window at the upper edge of an image has taps above it, and one at the lower edge below it: zeros,
times weights. Rows that are computed together skip the taps that none of them needs, so that sums
are over fewer products, of which those left out are zeros: no bit changes, unless a weight is
infinite or no number. On maps of 7 and 14 lines this is every tenth to twenty-fifth product.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from semel.ir.expr import Dim, Index, atoms, ceildiv, linear_coefficient, maximum, minimum, product
from semel.ir.graph import Node
from semel.ops.index_maps import Indices, contraction_index, no_gather, operand_index

#: Fewer products at a tap are not worth asking for.
LEAST_PRODUCTS = 128


@dataclass(frozen=True, slots=True)
class Taps:
    """Line `stride * line + dilation * tap - before` of the image is what a tap of a line meets.

    The image has `size` lines. `inner` rows are one line, of which there are `lines` in an image.
    """

    count: int
    before: Dim
    size: Dim
    stride: int
    dilation: int
    lines: Dim
    inner: Dim

    def needed(self, base: Dim, height: int) -> tuple[Dim, Dim]:
        """From and to which tap rows `base` to `base + height - 1` meet the image at all."""
        line = base // self.inner
        first = line % self.lines
        last = first + (base + height - 1) // self.inner - line
        # Rows of two images are of the last line of one and the first of the other.
        is_within = 1 - minimum(last // self.lines, 1)
        upper, lower = first * is_within, minimum(last, self.lines - 1)
        begin = maximum(ceildiv(self.before - self.stride * lower, self.dilation), 0)
        room = self.before + self.size - 1 - self.stride * upper
        return begin, minimum(room // self.dilation + 1, self.count)


def find_taps(
    node: Node, at: Indices, loadable: Collection[Node], rows: Sequence[Index]
) -> Taps | None:
    """The taps of the outermost loop over k, if the left operand is windows of a padded image.

    `rows` are the loops over rows, the last of them the innermost.
    """
    loops: list[Index] = []

    def fresh(extent: Dim) -> Dim:
        loops.append(Index(f"tap{len(loops)}", extent))
        return loops[-1]

    where: Indices = (*at[:-1], contraction_index(node, fresh))
    image, depth = node.inputs[0], node.inputs[0].type.shape[-1]
    while image not in loadable and image.op.is_view:
        where, image = operand_index(image, 0, where, no_gather), image.inputs[0]
    tap = loops[0]
    if image.op.name != "pad" or image not in loadable or len(loops) < 2:
        return None
    if not isinstance(depth, int) or not isinstance(tap.extent, int):
        return None
    fill = image.inputs[1]
    if not fill.op.is_literal or fill.attrs.value != 0 or depth < LEAST_PRODUCTS * tap.extent:
        return None
    for axis, place in enumerate(where):
        before, size = image.attrs.before[axis], image.inputs[0].type.shape[axis]
        found = [row for row in rows if row in atoms(place)]
        dilation = linear_coefficient(place, tap)
        if not isinstance(dilation, int) or dilation < 1 or len(found) != 1:
            continue
        stride = linear_coefficient(place, found[0])
        if not isinstance(stride, int) or place != stride * found[0] + dilation * tap:
            continue
        if before == 0 and image.attrs.after[axis] == 0:
            return None
        inner = product(row.extent for row in rows[rows.index(found[0]) + 1 :])
        return Taps(tap.extent, before, size, stride, dilation, found[0].extent, inner)
    return None
