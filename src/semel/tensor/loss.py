"""Losses: how far predictions are from what they should be.

    x, target  --element or class losses-->  weighted  --reduction-->  one number

`reduction` is "mean" (the default), "sum" or "none". Half floats are taken through float32 and
rounded once at the end. Shapes of predictions and targets are the same: nothing broadcasts, as
a column of targets beside a row of predictions is a mistake in nearly all cases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import GraphError
from semel.ir.types import DType
from semel.ops.attrs import GatherAttrs
from semel.tensor.elementwise import choose
from semel.tensor.handle import (
    TensorLike,
    apply,
    convert,
    dim_value,
    lift,
    normalize_axis,
    scalar,
    weak_kind,
    weak_scalar,
    whole_number,
)
from semel.tensor.indexing import certain_rows, check_index
from semel.tensor.movement import along, may_agree, of_shape
from semel.tensor.reduce import as_float, drop_axes, rounded_to

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

REDUCTIONS = ("mean", "sum", "none")
#: Where torch stops: no element's logarithm counts for more.
_LEAST_LOG = -100.0


# ------------------------------------------------------------ element by element


def mse_loss(x: TensorLike, target: TensorLike, *, reduction: str = "mean") -> Tensor:
    """The squared difference."""
    x, y, dtype = _pair(x, target, "mse_loss")
    return _reduced((x - y).square(), reduction, dtype, "mse_loss")


def l1_loss(x: TensorLike, target: TensorLike, *, reduction: str = "mean") -> Tensor:
    """The absolute difference."""
    x, y, dtype = _pair(x, target, "l1_loss")
    return _reduced((x - y).abs(), reduction, dtype, "l1_loss")


def smooth_l1_loss(
    x: TensorLike, target: TensorLike, *, beta: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """The absolute difference less beta / 2, and below beta its square over 2 * beta."""
    where = "smooth_l1_loss"
    x, y, dtype = _pair(x, target, where)
    beta = _number(beta, "beta", where)
    apart = (x - y).abs()
    if beta > 0:
        apart = choose(apart < beta, apart * apart * (0.5 / beta), apart - 0.5 * beta)
    return _reduced(apart, reduction, dtype, where)


def huber_loss(
    x: TensorLike, target: TensorLike, *, delta: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Half the squared difference, and from delta on a line of slope delta."""
    where = "huber_loss"
    x, y, dtype = _pair(x, target, where)
    delta = _number(delta, "delta", where, least_excluded=True)
    apart = (x - y).abs()
    line = (apart - 0.5 * delta) * delta
    return _reduced(choose(apart <= delta, apart * apart * 0.5, line), reduction, dtype, where)


def binary_cross_entropy(
    x: TensorLike,
    target: TensorLike,
    *,
    weight: TensorLike | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-(t * log(x) + (1 - t) * log(1 - x)) of probabilities; no logarithm is below -100."""
    where = "binary_cross_entropy"
    x, y, dtype = _pair(x, target, where)
    yes, no = x.log().maximum(_LEAST_LOG), (-x).log1p().maximum(_LEAST_LOG)
    losses = -(y * yes + (1 - y) * no)
    return _reduced(_weighted(losses, weight), reduction, dtype, where)


def binary_cross_entropy_with_logits(
    x: TensorLike,
    target: TensorLike,
    *,
    weight: TensorLike | None = None,
    pos_weight: TensorLike | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`binary_cross_entropy` of sigmoid(x), without overflow.

    `pos_weight` multiplies what targets of 1 count, and broadcasts, as `weight` does.
    """
    where = "binary_cross_entropy_with_logits"
    x, y, dtype = _pair(x, target, where)
    tail = (-x.abs()).exp().log1p() + (-x).relu()
    if pos_weight is not None:
        tail = tail * (y * (as_float(lift(pos_weight)) - 1) + 1)
    losses = (1 - y) * x + tail
    return _reduced(_weighted(losses, weight), reduction, dtype, where)


def kl_div(
    x: TensorLike, target: TensorLike, *, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """target * (log(target) - x), where x are logarithms, and with `log_target` the target too.

    `reduction` may be "batchmean" as well: the sum over the size of the first axis, which is
    the divergence of distributions along the others.
    """
    where = "kl_div"
    x, y, dtype = _pair(x, target, where)
    if log_target:
        losses = y.exp() * (y - x)
    else:
        some = choose(y.eq(0), 1, y)  # 0 * log(0) is 0
        losses = y * some.log() - y * x
    if reduction != "batchmean":
        return _reduced(losses, reduction, dtype, where, also="batchmean")
    if not x.ndim:
        raise GraphError(where, f"batchmean needs at least 1 axis, got {x.type}.")
    return rounded_to(losses.sum() / dim_value(x.shape[0], losses.dtype), dtype)


# ------------------------------------------------------------ classes


def cross_entropy(
    x: TensorLike,
    target: TensorLike,
    *,
    weight: TensorLike | None = None,
    axis: int = -1,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log_softmax at the target classes, which stand along `axis` of x.

    Targets are integers, without that axis, or floats in the shape of x: the probability of each
    class. `weight` has what each class counts; the mean is then over the weights.
    Targets equal to `ignore_index` give 0 and do not count in the mean (NaN if none is
    left). Any other class out of range is an IndexRangeError: none counts from the end.
    `label_smoothing`, in [0, 1], is how much of each target is given to all classes evenly.
    """
    where = "cross_entropy"
    x = lift(x)
    i = normalize_axis(axis, x.ndim, where)
    logs = as_float(x).log_softmax(i)
    smoothing = _number(label_smoothing, "label_smoothing", where)
    if smoothing > 1:
        raise GraphError(where, f"label_smoothing must lie in [0, 1], got {smoothing}.")
    classes = lift(target)
    if classes.dtype.is_float and classes.ndim == x.ndim:
        return _soft(logs, classes, weight, i, reduction, smoothing, x.dtype)
    chosen = _Classes(logs, classes, weight, i, ignore_index, where)
    found = chosen.reduced(chosen.losses(), reduction)
    if smoothing:
        count = dim_value(x.shape[i], logs.dtype)
        even = chosen.reduced(chosen.even(), reduction) / count
        found = found * (1 - smoothing) + even * smoothing
    return rounded_to(found, x.dtype)


def nll_loss(
    x: TensorLike,
    target: TensorLike,
    *,
    weight: TensorLike | None = None,
    axis: int = -1,
    reduction: str = "mean",
    ignore_index: int | None = -100,
) -> Tensor:
    """-x at the target classes, which stand along `axis`: `cross_entropy` of log probabilities."""
    x = lift(x)
    i = normalize_axis(axis, x.ndim, "nll_loss")
    chosen = _Classes(as_float(x), lift(target), weight, i, ignore_index, "nll_loss")
    return rounded_to(chosen.reduced(chosen.losses(), reduction), x.dtype)


class _Classes:
    """Log probabilities, the class that each place should have, and what it counts."""

    def __init__(
        self,
        logs: Tensor,
        target: Tensor,
        weight: TensorLike | None,
        axis: int,
        ignore_index: int | None,
        where: str,
    ) -> None:
        self.logs, self.axis, self.where = logs, axis, where
        target = _target(logs, target, axis, where)
        self.counts: Tensor | None = None
        if ignore_index is not None:
            self.counts = target.ne(whole_number(ignore_index, "ignore_index", where))
            target = choose(self.counts, target, scalar(0, target.dtype))
        self.index = check_index(target.unsqueeze(axis), logs.shape[axis], where, "class")
        self.weight = _class_weight(logs, weight, axis, where)

    def losses(self) -> Tensor:
        """Of each place, weighted."""
        attrs = GatherAttrs(self.axis)
        found = -drop_axes(apply("take_along", self.logs, self.index, attrs=attrs), (self.axis,))
        return self._counted(found if self.weight is None else found * self._own_weight())

    def even(self) -> Tensor:
        """The loss of each place if all classes were meant, weighted."""
        wide = self.logs
        if self.weight is not None:
            wide = wide * along(self.weight, self.axis, wide.ndim)
        return self._counted(-wide.sum(self.axis))

    def reduced(self, losses: Tensor, reduction: str) -> Tensor:
        """What there is of the losses; a mean is over what the places count."""
        if reduction != "mean" or (self.counts is None and self.weight is None):
            return _reduced(losses, reduction, losses.dtype, self.where)
        one = scalar(1, losses.dtype) if self.weight is None else self._own_weight()
        total = self._counted(one.broadcast_to(losses.shape)).sum()
        return losses.sum() / total

    def _own_weight(self) -> Tensor:
        assert self.weight is not None
        return certain_rows(self.weight, drop_axes(self.index, (self.axis,)), 0)

    def _counted(self, x: Tensor) -> Tensor:
        return x if self.counts is None else choose(self.counts, x, scalar(0, x.dtype))


def _soft(
    logs: Tensor,
    target: Tensor,
    weight: TensorLike | None,
    axis: int,
    reduction: str,
    smoothing: float,
    dtype: DType,
) -> Tensor:
    """Cross entropy with the probability of every class."""
    where = "cross_entropy"
    wanted = convert(of_shape(target, logs.shape, where, "target"), logs.dtype)
    if smoothing:
        wanted = wanted * (1 - smoothing) + smoothing / dim_value(logs.shape[axis], logs.dtype)
    factors = _class_weight(logs, weight, axis, where)
    terms = logs * wanted
    terms = terms if factors is None else terms * along(factors, axis, logs.ndim)
    return _reduced(-terms.sum(axis), reduction, dtype, where)


def _target(logs: Tensor, target: Tensor, axis: int, where: str) -> Tensor:
    """One class for each place."""
    shape = (*logs.shape[:axis], *logs.shape[axis + 1 :])
    if not target.dtype.is_integer:
        raise GraphError(where, f"every class must be an integer, got {target.type}.")
    if not may_agree(target.shape, shape) and logs.ndim > 2 and axis == logs.ndim - 1:
        others = (logs.shape[0], *logs.shape[2:])
        if may_agree(target.shape, others):
            message = f"target must have the shape of x without its axis {axis}, got {target.type}."
            raise GraphError(where, message, hint="Say that classes stand along axis 1: axis=1.")
    return of_shape(target, shape, where, "target")


def _class_weight(logs: Tensor, weight: TensorLike | None, axis: int, where: str) -> Tensor | None:
    if weight is None:
        return None
    return convert(of_shape(lift(weight), (logs.shape[axis],), where, "weight"), logs.dtype)


# ------------------------------------------------------------ what they share


def _pair(x: TensorLike, target: TensorLike, where: str) -> tuple[Tensor, Tensor, DType]:
    """Both as floats of one dtype and shape, and the dtype of the result."""
    given = lift(x)
    x = as_float(given)
    if weak_kind(target):
        return x, weak_scalar(target, x.dtype).broadcast_to(x.shape), given.dtype
    y = as_float(of_shape(lift(target), x.shape, where, "target"))
    if y.dtype.bits > x.dtype.bits:
        return convert(x, y.dtype), y, y.dtype
    return x, convert(y, x.dtype), given.dtype


def _weighted(losses: Tensor, weight: TensorLike | None) -> Tensor:
    return losses if weight is None else losses * weight


def _reduced(losses: Tensor, reduction: str, dtype: DType, where: str, also: str = "") -> Tensor:
    match reduction:
        case "none":
            return rounded_to(losses, dtype)
        case "sum":
            return rounded_to(losses.sum(), dtype)
        case "mean":
            return rounded_to(losses.mean(), dtype)
    known = f"mean, sum, {also} or none" if also else "mean, sum or none"
    raise GraphError(where, f"reduction must be {known}, got {reduction!r}.")


def _number(value: Any, name: str, where: str, *, least_excluded: bool = False) -> float:
    """A plain number that is not negative, or a GraphError that names it."""
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if is_number and (value > 0 or (value == 0 and not least_excluded)):
        return float(value)
    raise GraphError(
        where, f"{name} must be a number {'>' if least_excluded else '>='} 0, got {value!r}."
    )
