"""Functions on tensors, for those who prefer `semel.exp(x)` to `x.exp()`.

    semel.f(x, ...)  ==  Tensor(x).f(...)

Each name stands for the method of the same name, except that the first argument may be an
array, a list or a number too. What makes tensors is the class method itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.tensor.handle import TensorLike
from semel.tensor.tensor import Tensor

Function = Callable[..., Tensor]


def _function(name: str) -> Function:
    method = getattr(Tensor, name)

    def call(x: TensorLike, *args: Any, **options: Any) -> Tensor:
        result: Tensor = method(Tensor._lift(x), *args, **options)
        return result

    call.__name__ = call.__qualname__ = name
    call.__doc__ = method.__doc__ or f"`Tensor.{name}` of anything that becomes a tensor."
    return call


absolute = _function("abs")
exp, exp2, expm1 = (_function(n) for n in ("exp", "exp2", "expm1"))
log, log2, log10, log1p = (_function(n) for n in ("log", "log2", "log10", "log1p"))
sqrt, rsqrt, square = (_function(n) for n in ("sqrt", "rsqrt", "square"))
sin, cos, tan = (_function(n) for n in ("sin", "cos", "tan"))
asin, acos, atan, atan2 = (_function(n) for n in ("asin", "acos", "atan", "atan2"))
sinh, cosh, tanh = (_function(n) for n in ("sinh", "cosh", "tanh"))
erf, sigmoid, relu, gelu, silu = (_function(n) for n in ("erf", "sigmoid", "relu", "gelu", "silu"))
floor, ceil, trunc, sign = (_function(n) for n in ("floor", "ceil", "trunc", "sign"))
isnan, isinf, isfinite = (_function(n) for n in ("isnan", "isinf", "isfinite"))
maximum, minimum, where = (_function(n) for n in ("maximum", "minimum", "where"))
clip, lerp = (_function(n) for n in ("clip", "lerp"))
logical_and, logical_or, logical_not, logical_xor = (
    _function(n) for n in ("logical_and", "logical_or", "logical_not", "logical_xor")
)
matmul, dot, outer = (_function(n) for n in ("matmul", "dot", "outer"))
softmax, log_softmax, layer_norm, rms_norm = (
    _function(n) for n in ("softmax", "log_softmax", "layer_norm", "rms_norm")
)
scaled_dot_product_attention = _function("scaled_dot_product_attention")
mean, std, var, logsumexp = (_function(n) for n in ("mean", "std", "var", "logsumexp"))
argmax, argmin = (_function(n) for n in ("argmax", "argmin"))
reshape, permute, broadcast_to, pad = (
    _function(n) for n in ("reshape", "permute", "broadcast_to", "pad")
)
flip, roll, tile, repeat = (_function(n) for n in ("flip", "roll", "tile", "repeat"))
take, take_along_axis, one_hot = (_function(n) for n in ("take", "take_along_axis", "one_hot"))
tril, triu, diag = (_function(n) for n in ("tril", "triu", "diag"))
argwhere, masked_select = (_function(n) for n in ("argwhere", "masked_select"))
cumsum, cumprod, sort, argsort = (_function(n) for n in ("cumsum", "cumprod", "sort", "argsort"))

zeros, ones, full, empty = Tensor.zeros, Tensor.ones, Tensor.full, Tensor.empty
zeros_like, ones_like, full_like = (_function(n) for n in ("zeros_like", "ones_like", "full_like"))
arange, linspace, eye, tri = Tensor.arange, Tensor.linspace, Tensor.eye, Tensor.tri
concat, stack, einsum, meshgrid = Tensor.concat, Tensor.stack, Tensor.einsum, Tensor.meshgrid
rand, randn, randint = Tensor.rand, Tensor.randn, Tensor.randint
key, split_key = Tensor.key, Tensor.split_key
from_dlpack = Tensor.from_dlpack
loop, while_loop, cond = Tensor.loop, Tensor.while_loop, Tensor.cond


def dropout(x: TensorLike, p: float, key: TensorLike | None = None) -> Tensor:
    """Zero each element with probability p, scale the others by 1 / (1 - p)."""
    return Tensor._lift(x).dropout(p, key)


def lstm(
    x: TensorLike, w: TensorLike, r: TensorLike, b: TensorLike | None = None, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """(Y, Y_h, Y_c) of a long short-term memory over x; see `Tensor.lstm`."""
    return Tensor._lift(x).lstm(w, r, b, **options)


def gru(
    x: TensorLike, w: TensorLike, r: TensorLike, b: TensorLike | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """(Y, Y_h) of gated recurrent units over x; see `Tensor.gru`."""
    return Tensor._lift(x).gru(w, r, b, **options)


def rnn(
    x: TensorLike, w: TensorLike, r: TensorLike, b: TensorLike | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """(Y, Y_h) of a simple recurrent network over x; see `Tensor.rnn`."""
    return Tensor._lift(x).rnn(w, r, b, **options)


def topk(x: TensorLike, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) elements in order, and their indices."""
    return Tensor._lift(x).topk(k, axis, largest)


def nonzero(x: TensorLike) -> tuple[Tensor, ...]:
    """np.nonzero: the indices of the elements that are not 0, one tensor per axis."""
    return Tensor._lift(x).nonzero()


def unique(
    x: TensorLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Any:
    """np.unique: the distinct elements in ascending order; see `Tensor.unique`."""
    return Tensor._lift(x).unique(return_index, return_inverse, return_counts)


def split(x: TensorLike, sections: Any, axis: int = 0) -> list[Tensor]:
    """Pieces of `sections` elements each, or of the sizes given."""
    return Tensor._lift(x).split(sections, axis)
