"""Rounding to the half types, once.

numbers as float64  --round_to_half-->  float16 | bfloat16
"""

from __future__ import annotations

from typing import Any

import numpy as np

from semel.ir.types import DType

Array = np.ndarray[Any, Any]


def round_to_half(array: Array, target: DType) -> Array:
    """float16 or bfloat16 nearest to the number as a float64.

    NumPy's own conversions may go through float32 and round twice. To odd first, the
    second rounding is that of the exact number.
    """
    wide = np.asarray(array, np.float64)
    with np.errstate(all="ignore"):
        near = wide.astype(np.float32)
        bits = near.view(np.int32)
        inexact = (near != wide) & ~np.isnan(wide) & ((bits & 1) == 0)
        step = np.where(np.abs(near.astype(np.float64)) > np.abs(wide), -1, 1).astype(np.int32)
        odd = np.where(inexact, bits + step, bits).view(np.float32)
        return np.asarray(odd.astype(target.numpy))
