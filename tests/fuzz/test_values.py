"""Random arithmetic on the special values of every dtype: what NumPy gives, to the bit.

The reference is NumPy itself, not our definition of the ops.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.fuzz.long import long, search

from semel import Tensor
from semel.ir.graph import Graph
from semel.ir.types import as_dtype

Pair = tuple[Callable[..., Any], Callable[..., Any]]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64")
HALVES = ("float16", "bfloat16")

ARITHMETIC: dict[str, Pair] = {
    "add": (lambda x, y: x + y, np.add),
    "sub": (lambda x, y: x - y, np.subtract),
    "mul": (lambda x, y: x * y, np.multiply),
    # Of two zeros NumPy gives either, by dtype and position; + 0 makes it the positive one.
    "maximum": (lambda x, y: x.maximum(y) + 0, lambda x, y: np.maximum(x, y) + x.dtype.type(0)),
    "minimum": (lambda x, y: x.minimum(y) + 0, lambda x, y: np.minimum(x, y) + x.dtype.type(0)),
    "fmod": (lambda x, y: x.fmod(y), np.fmod),
    "neg": (lambda x, y: -x, lambda x, y: np.negative(x)),
    "abs": (lambda x, y: abs(x), lambda x, y: np.abs(x)),
    "sign": (lambda x, y: x.sign(), lambda x, y: np.sign(x) + x.dtype.type(0)),
    "where_lt": (lambda x, y: (x < y).where(x, y), lambda x, y: np.where(x < y, x, y)),
    "where_eq": (lambda x, y: (x == y).where(-x, y), lambda x, y: np.where(x == y, -x, y)),
    "where_ge": (lambda x, y: (x >= y).where(y, x), lambda x, y: np.where(x >= y, y, x)),
}
INTEGER_ONLY: dict[str, Pair] = {
    "floordiv": (lambda x, y: x // y, np.floor_divide),
    "mod": (lambda x, y: x % y, np.remainder),
    "and": (lambda x, y: x & y, np.bitwise_and),
    "or": (lambda x, y: x | y, np.bitwise_or),
    "xor": (lambda x, y: x ^ y, np.bitwise_xor),
    "not": (lambda x, y: ~x, lambda x, y: np.bitwise_not(x)),
    "shl": (lambda x, y: x << (y & 7), lambda x, y: np.left_shift(x, y & 7)),
    "shr": (lambda x, y: x >> (y & 7), lambda x, y: np.right_shift(x, y & 7)),
}
FLOAT_ONLY: dict[str, Pair] = {
    "div": (lambda x, y: x / y, np.divide),
    "sqrt": (lambda x, y: x.sqrt(), lambda x, y: np.sqrt(x)),
    "floor": (lambda x, y: x.floor(), lambda x, y: np.floor(x)),
    "ceil": (lambda x, y: x.ceil(), lambda x, y: np.ceil(x)),
    "trunc": (lambda x, y: x.trunc(), lambda x, y: np.trunc(x)),
    "round": (lambda x, y: x.round(), lambda x, y: np.rint(x)),
    # The sign of a NaN that was computed is nobody's.
    "copysign": (
        lambda x, y: x.copysign(y.isnan().where(x, y)),
        lambda x, y: np.copysign(x, np.where(np.isnan(y), x, y)),
    ),
    "isnan": (lambda x, y: x.isnan().where(y, x), lambda x, y: np.where(np.isnan(x), y, x)),
}


def special_values(dtype: str) -> np.ndarray:
    kind = as_dtype(dtype)
    if kind.is_integer:
        low, high = int(kind.lowest), int(kind.highest)
        near = {low, low + 1, -100, -7, -2, -1, 0, 1, 2, 3, 7, 100, high // 2, high - 1, high}
        return np.array(sorted(v for v in near if low <= v <= high), kind.numpy)
    values = [0.0, -0.0, 1, -1, 0.5, -2.5, 3, 1e-40, -5e-324, 1e30, -3e38, 65504, 2.0**-24,
              1 + 2.0**-10, np.inf, -np.inf, np.nan, 16777217, 4503599627370497.5]  # fmt: skip
    with np.errstate(over="ignore"):
        return np.array(values).astype(kind.numpy)


def check_values(seed: int) -> None:
    """One random expression over three arrays of special values."""
    rng = Random(seed)
    dtype = rng.choice((*INTEGERS, *FLOATS, *FLOATS, *HALVES))
    special = special_values(dtype)
    size = rng.choice((1, 5, 33, 130))
    data = {n: special[[rng.randrange(special.size) for _ in range(size)]] for n in "abc"}
    table = ARITHMETIC | (INTEGER_ONLY if dtype in INTEGERS else FLOAT_ONLY)
    tensors: list[Any] = [Tensor.input(n, (size,), dtype) for n in "abc"]
    arrays: list[Any] = list(data.values())
    # A chain of halves may keep more bits than each of its steps has.
    names = [rng.choice(list(table)) for _ in range(1 if dtype in HALVES else rng.randint(1, 6))]
    with np.errstate(all="ignore"):
        for name in names:
            i, j = rng.randrange(len(arrays)), rng.randrange(len(arrays))
            ours, theirs = table[name]
            tensors.append(ours(tensors[i], tensors[j]))
            arrays.append(theirs(arrays[i], arrays[j]).astype(arrays[0].dtype, copy=False))
        got = tensors[-1]
        used = {node.attrs.name: data[node.attrs.name] for node in Graph((got.node,)).inputs}
        found = got.prepare(threads=1, fusion=rng.random() < 0.7)(**used)
    want = arrays[-1]
    is_nan = want != want
    signs = np.signbit(found.astype(np.float64)) == np.signbit(want.astype(np.float64))
    wrong = ~np.where(is_nan, found != found, (found == want) & signs)
    assert not wrong.any(), f"{dtype} {names}: {found[wrong][:5]}, NumPy has {want[wrong][:5]}"


@pytest.mark.parametrize("seed", range(60))
def test_special_values_go_where_numpy_sends_them(seed: int) -> None:
    check_values(seed)


@long
def test_new_arithmetic_on_special_values() -> None:
    search(check_values)
