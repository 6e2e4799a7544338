"""Dtypes of at most eight bits: how their numbers lie in a byte, and casts to and from them.

    array of numbers  --to_narrow-->  array of a narrow dtype  --from_narrow-->  float32 | int32

An element is a byte, as ml_dtypes has it; of a dtype with fewer bits it is the low ones, and the
others mean nothing. `FLOATS` is all that anybody needs to know about the floats among them: these
functions say in NumPy what `semel.kernel.math.narrow` says in values of kernels, for every row of
the table alike.

A number becomes a float32, then the nearest float, of two the even one, and what is past the
largest the largest (NaN stays NaN where there is one, and is a zero where there is none).
float8_e8m0fnu has powers of two only: the float32 loses its sign and is rounded up.
An integer keeps its low bits, and so does a float once it is a whole number; NaN and infinities
give 0.
That is what ONNX says of a Cast; why not otherwise: docs/decisions/0110-narrow-dtypes.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from semel.ir.types import (
    FLOAT4_E2M1FN,
    FLOAT8_E4M3FN,
    FLOAT8_E4M3FNUZ,
    FLOAT8_E5M2,
    FLOAT8_E5M2FNUZ,
    FLOAT8_E8M0FNU,
    DType,
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class FloatForm:
    """Sign, exponent and mantissa of a narrow float, from the highest bit to the lowest.

    `largest` is the code of the largest number, `past` that of what is too large if nothing
    saturates, and `nan` that of NaN, each without its sign. Without `signed_zero` the code of -0 is
    the only NaN.
    """

    mantissa: int
    bias: int
    sign: int
    largest: int
    past: int
    nan: int | None
    signed_zero: bool = True

    @property
    def mask(self) -> int:
        """The bits that mean something, but for the sign."""
        return self.sign - 1

    @property
    def fits_half(self) -> bool:
        """Whether float16 has the same codes for exponents: of 31 it has no numbers."""
        return self.largest >> self.mantissa < 31

    @property
    def highest(self) -> float:
        """The largest number."""
        return self._number(0)

    @property
    def limit(self) -> float:
        """The number half way to the one after the largest: what is larger is too large."""
        return self._number(0.5)

    def _number(self, past: float) -> float:
        """The largest number and a part of its last place."""
        exponent = self.largest >> self.mantissa
        whole = (1 << self.mantissa) | (self.largest & ((1 << self.mantissa) - 1))
        return float((whole + past) * 2.0 ** (exponent - self.bias - self.mantissa))

    @property
    def limit_is_past(self) -> bool:
        """Whether half way is too large already: the largest is odd."""
        return self.largest & 1 == 1


#: All narrow floats but float8_e8m0fnu, which has an exponent and nothing else.
FLOATS: dict[DType, FloatForm] = {
    FLOAT8_E4M3FN: FloatForm(3, 7, 0x80, 0x7E, 0x7F, 0x7F),
    FLOAT8_E4M3FNUZ: FloatForm(3, 8, 0x80, 0x7F, 0x80, 0x80, signed_zero=False),
    FLOAT8_E5M2: FloatForm(2, 15, 0x80, 0x7B, 0x7C, 0x7E),
    FLOAT8_E5M2FNUZ: FloatForm(2, 16, 0x80, 0x7F, 0x80, 0x80, signed_zero=False),
    FLOAT4_E2M1FN: FloatForm(1, 1, 0x08, 0x07, 0x07, None),
}
#: The bits of 2**-127 as a float32: its smallest number, and no normal one of float32.
SMALLEST_POWER = 0x00400000


def from_narrow(array: Array, dtype: DType) -> Array:
    """The numbers in the dtype that is computed with; every one of them is exact there."""
    if dtype.bits < 8:  # ml_dtypes takes a float's other bits for its sign
        mask = np.uint8((1 << dtype.bits) - 1)
        array = np.asarray(np.asarray(array).view(np.uint8) & mask).view(dtype.numpy)
    with np.errstate(invalid="ignore"):  # a NaN may be a signalling one
        return array.astype(dtype.compute.numpy)


def as_dtype_array(array: Array, dtype: DType) -> Array:
    """What NumPy makes of an array in another dtype, and of narrow ones what is said here."""
    return to_narrow(array, dtype) if dtype.is_narrow else array.astype(dtype.numpy, copy=False)


def to_narrow(array: Any, dtype: DType) -> Array:
    """The numbers, of any dtype that NumPy computes with, as the top of this file says."""
    given = np.asarray(array)
    with np.errstate(all="ignore"):
        if dtype.is_float:
            single = given.astype(np.float32)
            if dtype == FLOAT8_E8M0FNU:
                return _rounded_up(single).view(dtype.numpy)
            return np.asarray(np.clip(single, dtype.lowest, dtype.highest).astype(dtype.numpy))
        if given.dtype.kind not in "biu":
            low = np.mod(np.trunc(given.astype(np.float64)), float(1 << dtype.bits))
            given = np.nan_to_num(low)  # of NaN and infinities
        low = given.astype(np.uint8) & np.uint8((1 << dtype.bits) - 1)
        return np.asarray(low).view(dtype.numpy)


def _rounded_up(array: Array) -> Array:
    """The biased exponents of the next powers of two, at most 254; 255 is NaN, also for inf."""
    size = array.view(np.uint32) & np.uint32(0x7FFFFFFF)
    exponent = np.minimum((size + np.uint32(0x7FFFFF)) >> np.uint32(23), np.uint32(254))
    exponent = np.where(size > SMALLEST_POWER, exponent, np.uint32(0))
    return np.where(size >= 0x7F800000, np.uint32(255), exponent).astype(np.uint8)
