"""Random numbers, counter-based.

    key (uint32[2]), shape  --Philox-->  the same numbers, always

A number depends on its key and its place, on nothing else: no hidden state runs along, the
result is the same on every target and thread count, and a plan that executes twice with one
key draws the same numbers twice. To draw new ones at each run make the key an input:

    key = Tensor.input("key", (2,), "uint32")
    noise = semel.randn(4, 4, key=key)

Without a key a fresh constant one is taken from a process-wide sequence that `manual_seed`
restarts; it is fixed in the graph when the tensor is made. Use every key once: `split` makes
as many new ones of it as are needed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import GraphError
from semel.ir import questions
from semel.ir.expr import Dim
from semel.ir.types import FLOAT32, FLOAT64, UINT32, UINT64, DType, Shape, as_dtype, as_shape
from semel.locks import make_lock
from semel.ops.attrs import RandomBitsAttrs
from semel.tensor.elementwise import choose
from semel.tensor.handle import (
    Dims,
    DTypeLike,
    TensorLike,
    apply,
    constant,
    convert,
    is_integer,
    lift,
    scalar,
)
from semel.tensor.spelling import same_as, spelled

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

# Splitting must not reuse the words that drawing with the same key gives.
_SPLIT_DOMAIN = 0x9E3779B9
_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


class KeySequence:
    """Keys in an endless row, from a seed; safe to share by threads."""

    def __init__(self, seed: int = 0) -> None:
        self._lock = make_lock()
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """Begin again: the same seed gives the same keys."""
        with self._lock:
            self._seed = seed
            self._counter = itertools.count(1)

    def words(self) -> tuple[int, int]:
        """The two words of the next key."""
        with self._lock:
            state = self._seed + next(self._counter) * 0x9E3779B97F4A7C15
        mixed = mix(state & 0xFFFFFFFFFFFFFFFF)
        return mixed & 0xFFFFFFFF, mixed >> 32


def mix(state: int) -> int:
    """A bijection on 64 bits that sends neighbours far apart (the finaliser of SplitMix64)."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return state ^ (state >> 31)


_default = KeySequence()


def manual_seed(seed: int) -> None:
    """Restart the process-wide sequence of keys that draws without `key=` take from."""
    _default.restart(seed)


def key(seed: int) -> Tensor:
    """The key of a seed in [0, 2**64)."""
    if not is_integer(seed) or not 0 <= int(seed) < 1 << 64:
        raise GraphError("key", f"seed must be an int in [0, 2**64), got {seed!r}.")
    words = (int(seed) & 0xFFFFFFFF, int(seed) >> 32)
    return constant(np.array(words, np.uint32))


def split_key(key: TensorLike, count: int = 2) -> Tensor:
    """`count` new keys of one, as uint32[count, 2]; the old one must not be used again.

    >>> one, other = semel.split_key(semel.key(7)).unbind(0)
    >>> semel.rand(2, key=one).tolist() == semel.rand(2, key=other).tolist()
    False
    """
    domain = constant(np.array((0, _SPLIT_DOMAIN), np.uint32))
    return random_bits(_key(key) ^ domain, (count, 2))


def next_key() -> np.ndarray[Any, Any]:
    """The next key of the process-wide sequence."""
    return np.array(_default.words(), np.uint32)


def _key(key: TensorLike | None) -> Tensor:
    if key is None:
        trace = questions.answers()
        if trace is not None:
            drawn: Tensor = trace.fresh_key()
            return drawn
        return constant(next_key())
    lifted = lift(key)
    if lifted.shape != (2,) or lifted.dtype != UINT32:
        raise GraphError(
            "random",
            f"a key must be u32[2], got {lifted.type}.",
            hint="Make one by semel.key(seed).",
        )
    return lifted


def random_bits(key: Tensor, shape: Shape) -> Tensor:
    """32 random bits per element."""
    return apply("random_bits", key, attrs=RandomBitsAttrs(shape))


def _words(key: TensorLike | None, count: int, shape: Shape) -> list[Tensor]:
    """`count` independent tensors of 32 random bits per element."""
    return random_bits(_key(key), (count, *shape)).unbind(0)


def _uniform(words: list[Tensor], dtype: DType) -> Tensor:
    """[0, 1) with all the digits the dtype has, from one word (float64: two)."""
    digits = _DIGITS[dtype.name]
    bits = words[0] if len(words) == 1 else _wide(words)
    whole = bits >> (bits.dtype.bits - digits)
    return convert(whole, dtype) * 2.0**-digits


def uniform_words(key: TensorLike | None, shape: Shape) -> Tensor:
    """64 random bits per element."""
    return _wide(_words(key, 2, shape))


def _wide(words: list[Tensor]) -> Tensor:
    """Two words as one of 64 bits."""
    return (convert(words[0], UINT64) << 32) | convert(words[1], UINT64)


def rand(*shape: Dims, key: TensorLike | None = None, dtype: DTypeLike = "float32") -> Tensor:
    """Uniform in [0, 1)."""
    wanted = float_dtype(dtype, "rand")
    words = _words(key, 2 if wanted == FLOAT64 else 1, _shape(shape, "rand"))
    return _uniform(words, wanted)


def randn(*shape: Dims, key: TensorLike | None = None, dtype: DTypeLike = "float32") -> Tensor:
    """Normal with mean 0 and deviation 1, by the method of Box and Muller.

    >>> semel.randn(2, 3, key=semel.key(0)).shape
    (2, 3)
    """
    wanted = float_dtype(dtype, "randn")
    work = FLOAT64 if wanted == FLOAT64 else FLOAT32
    count = 2 if work == FLOAT64 else 1
    words = _words(key, 2 * count, _shape(shape, "randn"))
    first, second = _uniform(words[:count], work), _uniform(words[count:], work)
    radius = ((1 - first).log() * -2).sqrt()
    return convert(radius * (second * (2 * math.pi)).cos(), wanted)


@spelled(size="shape")
def randint(
    low: int,
    high: int | Sequence[Dim] | None = None,
    shape: Dims = (),
    *,
    key: TensorLike | None = None,
    dtype: DTypeLike = "int64",
    size: Dims = same_as("shape"),
) -> Tensor:
    """Integers in [low, high), uniform up to 2**-64 of the range.

    Without `high` they are in [0, low); a shape may stand in its place, as in PyTorch.
    """
    if isinstance(high, Sequence):
        shape, high = high, None
    if high is None:
        low, high = 0, low
    wanted = as_dtype(dtype, "randint")
    if not low < high or high - low >= 1 << 63:
        raise GraphError("randint", f"needs low < high, less than 2**63 apart, got {low}, {high}.")
    if not wanted.is_integer or not wanted.lowest <= low < high <= wanted.highest + 1:
        raise GraphError("randint", f"[{low}, {high}) must fit an integer dtype, got {wanted}.")
    words = _words(key, 2, as_shape(shape, "randint"))
    offset = _wide(words) % (high - low)
    return convert(offset, wanted) + scalar(low, wanted)


def dropout(x: TensorLike, p: float, key: TensorLike | None = None) -> Tensor:
    """Zero each element with probability p, scale the others by 1 / (1 - p)."""
    x = lift(x)
    if not 0 <= p <= 1:
        raise GraphError("dropout", f"p must lie in [0, 1], got {p}.")
    if p == 0:
        return x
    if p == 1:
        return x.zeros_like()
    kept = rand(x.shape, key=key) >= p
    return choose(kept, x * (1 / (1 - p)), 0)


def _shape(shape: tuple[Any, ...], where: str) -> Shape:
    wrapped = len(shape) == 1 and isinstance(shape[0], (tuple, list))
    return as_shape(shape[0] if wrapped else shape, where)


def float_dtype(dtype: DTypeLike, where: str) -> DType:
    """A float dtype that numbers can be drawn in."""
    wanted = as_dtype(dtype, where)
    if not wanted.is_float:
        raise GraphError(where, f"dtype must be a float, got {wanted}.")
    if wanted.is_narrow:
        raise GraphError(
            where,
            f"dtype must be a float of 16 bits or more, got {wanted}.",
            hint="Draw wider numbers and cast them.",
        )
    return wanted
