"""Arrays of 64-bit words that native code reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from semel.ir import abi

Words = np.ndarray[Any, np.dtype[np.int64]]


def aligned_words(count: int) -> Words:
    """Zeroed words that start on a cache line."""
    raw = np.zeros(count + 8, np.int64)
    skip = (-raw.ctypes.data % 64) // abi.WORD_BYTES
    return raw[skip : skip + count]


def packed(items: Sequence[Any], width: int) -> Words:
    """Records of `width` numbers each, one after the other; never empty."""
    array = aligned_words(max(len(items) * width, 1))
    if items:
        array[:] = np.array(items, np.int64).reshape(-1)
    return array
