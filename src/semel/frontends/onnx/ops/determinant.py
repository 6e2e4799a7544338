"""Det: elimination with the largest pivot, one column after the other."""

from __future__ import annotations

from typing import Any

from semel.frontends.onnx.node import Converter, Node
from semel.ir.expr import product
from semel.ir.types import FLOAT32
from semel.tensor.tensor import Tensor


def _det(node: Node) -> Tensor:
    x = node.tensor()
    size = x.shape[-1]
    work = x.cast(FLOAT32) if x.dtype.is_half else x
    batch = product(x.shape[:-2])
    matrices = work.reshape(batch, size, size)
    row, column = Tensor.arange(size).unsqueeze(1), Tensor.arange(size)

    def step(at: Any, states: tuple[Tensor, ...]) -> Any:
        matrix, found = states
        own = matrix.narrow(2, at, 1)
        left = (column >= at).where(own.reshape(batch, size).abs(), -1.0)
        best = left.argmax(1, True)
        order = column.eq(at).where(best, column.eq(best).where(at, column))
        turned = matrix.take_along_axis(order.unsqueeze(2), 1)
        pivot = turned.narrow(1, at, 1).narrow(2, at, 1)
        factor = turned.narrow(2, at, 1) / pivot.eq(0).where(1.0, pivot)
        after = turned - (row > at).where(factor, 0.0) * turned.narrow(1, at, 1)
        value = best.eq(at).where(pivot.reshape(batch, 1), -pivot.reshape(batch, 1))
        return [after, found * value], []

    start = Tensor.ones(batch, 1, dtype=work.dtype)
    (_, found), _ = Tensor.loop(size, [matrices, start], step)
    return found.reshape(x.shape[:-2]).cast(x.dtype)


CONVERTERS: dict[str, Converter] = {"Det": _det}
