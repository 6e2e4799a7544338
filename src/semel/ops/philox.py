"""Philox4x32-10: random words as a pure function of a counter and a key.

    counter (4 x uint32), key (2 x uint32)  -->  4 x uint32

Ten rounds of multiply and xor (Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", 2011). There is no state, so that element i is the same whoever computes it,
in whatever order, on whatever device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from semel.ir.types import UINT32, UINT64
from semel.kernel import values as kernel
from semel.kernel.values import Value

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

Words = np.ndarray[Any, Any]


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, ...]:
    """The four random words for each counter."""
    c0, c1, c2, c3 = (np.asarray(c, np.uint64) for c in counter)
    for round_number in range(ROUNDS):
        k0, k1 = ((k + w * round_number) & 0xFFFFFFFF for k, w in zip(key, WEYL, strict=True))
        product0 = c0 * np.uint64(MULTIPLIERS[0])
        product1 = c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            (product1 >> _HALF) ^ c1 ^ np.uint64(k0),
            product1 & _MASK,
            (product0 >> _HALF) ^ c3 ^ np.uint64(k1),
            product0 & _MASK,
        )
    return tuple(c.astype(np.uint32) for c in (c0, c1, c2, c3))


def random_words(num_elements: int, key: Words) -> Words:
    """Word 0 for the counters (i, 0, 0, 0), i < num_elements, with i split in two words."""
    index = np.arange(num_elements, dtype=np.uint64)
    zero = np.zeros_like(index)
    counter = (index & _MASK, index >> _HALF, zero, zero)
    return philox(counter, (int(key[0]), int(key[1])))[0]


def philox_value(position: Value, key0: Value, key1: Value) -> Value:
    """Word 0 for the counter (low, high, 0, 0) of a uint64 position: one uint32 per element."""
    mask = kernel.const(UINT64, 0xFFFFFFFF)
    wide = [position & mask, position >> 32, kernel.const(UINT64, 0), kernel.const(UINT64, 0)]
    keys = [kernel.cast(key0, UINT64), kernel.cast(key1, UINT64)]
    for _ in range(ROUNDS):
        first = wide[0] * MULTIPLIERS[0]
        second = wide[2] * MULTIPLIERS[1]
        wide = [
            (second >> 32) ^ wide[1] ^ keys[0],
            second & mask,
            (first >> 32) ^ wide[3] ^ keys[1],
            first & mask,
        ]
        keys = [(k + w) & mask for k, w in zip(keys, WEYL, strict=True)]
    return kernel.cast(wide[0], UINT32)
