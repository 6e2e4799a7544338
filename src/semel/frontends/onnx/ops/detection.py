"""NonMaxSuppression: boxes in order of their scores, each kept if it covers no kept one too much.

    scores --argsort--> boxes in order --loop: kept?--> mask --positions--> [found, 3]

All classes of all images go through one loop together; it ends after as many steps as some class
has boxes above the threshold.
"""

from __future__ import annotations

from typing import Any

from semel.frontends.onnx.node import Converter, Node
from semel.ir.types import BOOL, INT64
from semel.tensor.handle import lift
from semel.tensor.indexing import certain_rows
from semel.tensor.late import item_dim
from semel.tensor.tensor import Tensor


def _non_max_suppression(node: Node) -> Tensor:
    boxes, scores = node.tensor(0), node.tensor(1)
    classes, count = scores.shape[1:]
    order = scores.argsort(2, descending=True)
    ranked = scores.take_along_axis(order, 2)
    may_be = ranked > _number(node, 4) if node.has(4) else Tensor.ones(*scores.shape, dtype=BOOL)
    corners = [
        edge.unsqueeze(1).broadcast_to(scores.shape).take_along_axis(order, 2)
        for edge in _corners(boxes, node.flag("center_point_box"))
    ]
    kept = _kept(corners, may_be, _number(node, 3), _number(node, 2))
    image, kind, rank = kept.nonzero()
    place = order.reshape(-1).take((image * classes + kind) * count + rank, 0)
    return Tensor.stack([image, kind, place], 1)


def _number(node: Node, position: int) -> Any:
    return node.tensor(position).reshape(()) if node.has(position) else 0


def _corners(boxes: Tensor, is_centred: bool) -> list[Tensor]:
    """Left, top, right and bottom, whichever corners are given."""
    a, b, c, d = (boxes[:, :, k] for k in range(4))
    if is_centred:
        return [a - c / 2.0, b - d / 2.0, a + c / 2.0, b + d / 2.0]
    return [b.minimum(d), a.minimum(c), b.maximum(d), a.maximum(c)]


def _kept(corners: list[Tensor], may_be: Tensor, limit: Any, most: Any) -> Tensor:
    """Which of the ordered boxes [images, classes, boxes] are kept."""
    count = may_be.shape[2]
    steps = item_dim(may_be.cast(INT64).sum(2).max(), count)
    rank = Tensor.arange(count)
    left, top, right, bottom = corners
    area = (right - left) * (bottom - top)

    def step(at: Any, states: tuple[Tensor, ...]) -> Any:
        kept = states[0]
        here = lift(at).reshape(1)  # below `count`, as `steps` is at most that
        own = [certain_rows(edge, here, 2) for edge in corners]
        width = (right.minimum(own[2]) - left.maximum(own[0])).maximum(0.0)
        height = (bottom.minimum(own[3]) - top.maximum(own[1])).maximum(0.0)
        common = width * height
        union = area + certain_rows(area, here, 2) - common
        covers = kept & (common > 0) & (common / union > limit)
        is_kept = certain_rows(may_be, here, 2) & ~covers.any(2, True)
        is_kept = is_kept & (kept.sum(2, True) < most)
        return [kept | (is_kept & rank.eq(at))], []

    (found,), _ = Tensor.loop(steps, [Tensor.zeros(*may_be.shape, dtype=BOOL)], step)
    return found


CONVERTERS: dict[str, Converter] = {"NonMaxSuppression": _non_max_suppression}
