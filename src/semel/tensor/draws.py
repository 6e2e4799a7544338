"""Draws from distributions, and random orders.

    normal uniform exponential bernoulli multinomial choice     numbers of a distribution
    randperm permutation                                        orders
    gumbel_softmax                                              classes, softly

All of them are made of the uniform bits of `random.py`, and take their `key` as those do: the same
key gives the same draws, and without one a fresh key is fixed in the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.errors import GraphError
from semel.ir.expr import Dim, is_positive, product
from semel.ir.types import FLOAT64, INT64, as_shape
from semel.tensor.handle import (
    SYMBOLIC,
    Dims,
    DTypeLike,
    TensorLike,
    convert,
    is_integer,
    lift,
    normalize_axis,
    whole_dims,
)
from semel.tensor.indexing import certain_rows, iota
from semel.tensor.movement import along, broadcast_shapes, of_shape
from semel.tensor.random import float_dtype, rand, randn, uniform_words
from semel.tensor.reduce import as_float, rounded_to
from semel.tensor.select import first_places, order_of
from semel.tensor.spelling import AXIS, spelled

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

#: The largest number below 1 whose product with any total is below the total.
_BELOW_ONE = 1 - 2.0**-52


# ------------------------------------------------------------ numbers


def normal(
    mean: TensorLike = 0.0,
    std: TensorLike = 1.0,
    shape: Dims | None = None,
    *,
    key: TensorLike | None = None,
    dtype: DTypeLike = "float32",
) -> Tensor:
    """Normal numbers; without `shape`, one for each element of mean and std, which broadcast."""
    wanted = float_dtype(dtype, "normal")
    center, width = convert(lift(mean), wanted), convert(lift(std), wanted)
    dims = _drawn_shape((center, width), shape, "normal")
    return randn(dims, key=key, dtype=wanted) * width + center


def uniform(
    low: TensorLike = 0.0,
    high: TensorLike = 1.0,
    shape: Dims | None = None,
    *,
    key: TensorLike | None = None,
    dtype: DTypeLike = "float32",
) -> Tensor:
    """Uniform numbers in [low, high); without `shape`, one for each element of the bounds."""
    wanted = float_dtype(dtype, "uniform")
    start, end = convert(lift(low), wanted), convert(lift(high), wanted)
    dims = _drawn_shape((start, end), shape, "uniform")
    return rand(dims, key=key, dtype=wanted) * (end - start) + start


def exponential(
    scale: TensorLike = 1.0,
    shape: Dims | None = None,
    *,
    key: TensorLike | None = None,
    dtype: DTypeLike = "float32",
) -> Tensor:
    """Exponential numbers whose mean is `scale`; without `shape`, one for each element of it."""
    wanted = float_dtype(dtype, "exponential")
    mean = convert(lift(scale), wanted)
    dims = _drawn_shape((mean,), shape, "exponential")
    return -(-rand(dims, key=key, dtype=wanted)).log1p() * mean


def _drawn_shape(parameters: tuple[Tensor, ...], shape: Dims | None, where: str) -> Dims:
    own = broadcast_shapes([p.shape for p in parameters], where)
    if shape is None:
        return own
    wanted = as_shape(shape, where)
    broadcast_shapes([own, wanted], where)
    return wanted


def bernoulli(x: TensorLike, *, key: TensorLike | None = None) -> Tensor:
    """1 with the probability that each element says, else 0, in the dtype of x."""
    x = lift(x)
    chance = as_float(x)
    return convert(rand(x.shape, key=key, dtype=chance.dtype) < chance, x.dtype)


# ------------------------------------------------------------ classes


def multinomial(
    x: TensorLike,
    num_samples: Dim,
    replacement: bool = False,
    *,
    key: TensorLike | None = None,
) -> Tensor:
    """Classes (int64) by their weights, which stand along the last axis and need not add up to 1.

    Without `replacement` no class comes twice, and classes of weight 0 come when all others
    have: ask for no more than there are.
    """
    x, where = lift(x), "multinomial"
    if x.ndim < 1:
        raise GraphError(where, f"needs weights along an axis, got {x.type}.")
    (count,) = whole_dims(num_samples, "num_samples", where)
    weights, classes = convert(x, FLOAT64), x.shape[-1]
    if not replacement:
        if is_positive(count - classes):
            message = f"num_samples must be at most the {classes} classes, got {count}."
            raise GraphError(where, message, hint="Draw with replacement=True.")
        return _without_replacement(weights, count, key)
    ends = weights.cumsum(-1)
    total = ends.narrow(-1, classes - 1, 1)
    place = rand((*x.shape[:-1], count), key=key, dtype=FLOAT64).minimum(_BELOW_ONE) * total
    return (ends.unsqueeze(-2) <= place.unsqueeze(-1)).sum(-1)


def _without_replacement(weights: Tensor, count: Dim, key: TensorLike | None) -> Tensor:
    """The first in a race: each class arrives after an exponential time over its weight."""
    time = -(-rand(weights.shape, key=key, dtype=FLOAT64)).log1p() / weights
    axis = weights.ndim - 1
    return first_places(time, axis, False, count)


def choice(
    a: TensorLike,
    shape: Dims = (),
    replace: bool = True,
    p: TensorLike | None = None,
    axis: int = 0,
    *,
    key: TensorLike | None = None,
) -> Tensor:
    """Elements of a tensor along an axis, or of range(a), each as likely or by the weights `p`."""
    where, dims = "choice", as_shape(shape, "choice")
    is_count = is_integer(a) or isinstance(a, SYMBOLIC)
    source = iota(as_shape((a,), where), 0) if is_count else lift(a)
    i = normalize_axis(axis, source.ndim, where)
    length, count = source.shape[i], product(dims)
    if p is not None:
        weights = of_shape(lift(p), (length,), where, "p")
        chosen = multinomial(weights, count, replace, key=key)
    elif replace:
        drawn = rand((count,), key=key, dtype=FLOAT64)
        chosen = convert(drawn * length, INT64).minimum(length - 1)
    elif is_positive(count - length):
        message = f"without replacement there are {length} to choose from, got {count}."
        raise GraphError(where, message, hint="Draw with replace=True.")
    else:
        chosen = randperm(length, key=key).narrow(0, 0, count)
    found = certain_rows(source, chosen, i)
    return found.reshape((*source.shape[:i], *dims, *source.shape[i + 1 :]))


@spelled(dim="axis")
def gumbel_softmax(
    x: TensorLike,
    tau: float = 1.0,
    hard: bool = False,
    axis: int = -1,
    *,
    key: TensorLike | None = None,
    dim: int = AXIS,
) -> Tensor:
    """softmax((x + Gumbel noise) / tau); `hard` gives 1 to the largest and 0 to the others."""
    given, where = lift(x), "gumbel_softmax"
    if isinstance(tau, (str, bool)) or not tau > 0:
        raise GraphError(where, f"tau must be a number > 0, got {tau!r}.")
    x = as_float(given)
    i = normalize_axis(axis, x.ndim, where)
    # -log of an exponential number; of 1 - u, which is never 0.
    noise = -(-(1 - rand(x.shape, key=key, dtype=x.dtype)).log()).maximum(1e-30).log()
    soft = ((x + noise) * (1 / tau)).softmax(i)
    if hard:
        place = along(iota((x.shape[i],), 0), i, x.ndim)
        soft = convert(place.eq(soft.argmax(i, True)), x.dtype)
    return rounded_to(soft, given.dtype)


# ------------------------------------------------------------ orders


def randperm(n: Dim, *, key: TensorLike | None = None, dtype: DTypeLike = "int64") -> Tensor:
    """The numbers 0, 1, ..., n - 1 in a random order."""
    (count,) = as_shape((n,), "randperm")
    return order_of(uniform_words(key, (count,)), 0, False).cast(dtype)


def permutation(x: TensorLike, axis: int = 0, *, key: TensorLike | None = None) -> Tensor:
    """The slices of an axis in a random order; of a number, `randperm`."""
    if is_integer(x) or isinstance(x, SYMBOLIC):
        return randperm(x, key=key)  # type: ignore[arg-type]
    x = lift(x)
    i = normalize_axis(axis, x.ndim, "permutation")
    return certain_rows(x, randperm(x.shape[i], key=key), i)


# Second names.
shuffle = permutation
