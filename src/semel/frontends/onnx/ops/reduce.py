"""Operators along axes: reductions, running results, positions of extremes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from semel.frontends.onnx.node import Converter, Node
from semel.ir.expr import is_positive, product
from semel.ir.types import BOOL, FLOAT32, FLOAT64
from semel.tensor.handle import dim_value
from semel.tensor.reduce import reduce_axes
from semel.tensor.tensor import Tensor

#: Over these axes, which stay.
Reduction: TypeAlias = Callable[[Tensor, tuple[int, ...]], Tensor]


def _reduction(function: Reduction) -> Converter:
    def convert(node: Node) -> Tensor:
        x = node.tensor()
        axes = node.axes(1)
        if not axes:
            every = [] if node.flag("noop_with_empty_axes") else list(range(x.ndim))
            axes = every if axes is None or node.version >= 13 else []
        over = tuple(node.as_axis(axis, x.ndim) for axis in axes) if x.ndim else ()
        found = function(x, over).cast(x.dtype)
        return found if node.flag("keepdims", True) or not over else found.squeeze(over)

    return convert


def _sum(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x.sum(axes, True) if axes else x


def _product(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x.prod(axes, True) if axes else x


def _mean(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Integers divide toward zero, in a dtype that holds their sum."""
    if not axes:
        return x
    if x.dtype.is_float:
        return x.mean(axes, True)
    count = product(x.shape[axis] for axis in axes)
    return x.sum(axes, True).cast(FLOAT64) / dim_value(count, FLOAT64)


def _extreme(name: str) -> Reduction:
    """The largest or smallest; of no elements it is the other end of the dtype's range."""

    def reduce(x: Tensor, axes: tuple[int, ...]) -> Tensor:
        if x.dtype == BOOL:
            return (x.any if name == "reduce_max" else x.all)(axes, True) if axes else x
        some = all(is_positive(x.shape[axis]) for axis in axes)
        return reduce_axes(x, name, axes, True, propagate_nan=some)

    return reduce


def _in_float(x: Tensor) -> Tensor:
    return x if x.dtype.is_float else x.cast(FLOAT64)


def _log_sum(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return _sum(_in_float(x), axes).log()


def _log_sum_exp(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return _in_float(x).logsumexp(axes, True) if axes else x


def _arg(function: Callable[[Tensor, int, bool], Tensor]) -> Converter:
    def convert(node: Node) -> Tensor:
        x, axis, keep = node.tensor(), node.attr("axis", 0), node.flag("keepdims", True)
        if not node.flag("select_last_index"):
            return function(x, axis, keep)
        found: Tensor = -function(x.flip(axis), axis, keep) + (x.shape[axis] - 1)
        return found

    return convert


def _running(function: Callable[..., Tensor]) -> Converter:
    def convert(node: Node) -> Tensor:
        x = node.tensor()
        axis, is_reverse = node.as_axis(node.ints(1)[0], x.ndim), node.flag("reverse")
        work = x.cast(FLOAT32) if x.dtype.is_half else x
        work = work.flip(axis) if is_reverse else work
        found = function(work, axis, exclusive=node.flag("exclusive")).cast(x.dtype)
        return found.flip(axis) if is_reverse else found

    return convert


def _hardmax(node: Node) -> Tensor:
    """1 at the first largest element; before version 13, of all axes from `axis` on."""
    x = node.tensor()
    if node.version >= 13:
        return _is_largest(x, node.axis(x.ndim, -1))
    axis = node.axis(x.ndim, 1)
    flat = x.reshape(product(x.shape[:axis]), product(x.shape[axis:]))
    return _is_largest(flat, 1).reshape(x.shape)


def _is_largest(x: Tensor, axis: int) -> Tensor:
    place = Tensor.arange(x.shape[axis]).reshape(x.shape[axis], *(1,) * (x.ndim - axis - 1))
    return place.eq(x.argmax(axis, True)).cast(x.dtype)


CONVERTERS: dict[str, Converter] = {
    "ArgMax": _arg(Tensor.argmax),
    "ArgMin": _arg(Tensor.argmin),
    "CumProd": _running(Tensor.cumprod),
    "CumSum": _running(Tensor.cumsum),
    "Hardmax": _hardmax,
    "ReduceL1": _reduction(lambda x, axes: _sum(x.abs(), axes)),
    "ReduceL2": _reduction(lambda x, axes: _in_float(_sum(x * x, axes)).sqrt()),
    "ReduceLogSum": _reduction(_log_sum),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ReduceMax": _reduction(_extreme("reduce_max")),
    "ReduceMean": _reduction(_mean),
    "ReduceMin": _reduction(_extreme("reduce_min")),
    "ReduceProd": _reduction(_product),
    "ReduceSum": _reduction(_sum),
    "ReduceSumSquare": _reduction(lambda x, axes: _sum(x * x, axes)),
}
