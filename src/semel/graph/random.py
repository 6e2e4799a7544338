"""A random key that is kept between runs: each has numbers of its own, and all can be had again.

    seed  -->  state: a counter of 64 bits in two words  --Philox-->  the key of this run

The counter goes on by an odd number, so that no run of the next 2**64 has the key of another one.
What a run draws with is not the counter but 64 bits drawn with it: splitting or drawing with this
key never meets the keys of other runs. The counter is exchanged, so that a run that fails leaves it
as it was.
"""

from __future__ import annotations

import numpy as np

from semel.errors import GraphError
from semel.graph.state import State
from semel.ops.numerics import Array
from semel.tensor.handle import constant, convert, is_integer
from semel.tensor.movement import stack
from semel.tensor.random import mix, random_bits
from semel.tensor.tensor import Tensor

#: Drawing with the counter must not give what others draw with an equal key.
_RUN_DOMAIN = 0x85EBCA6B
#: The step of the counter: odd, and with bits all over.
_STEP = 0x9E3779B97F4A7C15


def first_counter(seed: int) -> Array:
    """Where the runs of a seed begin: seeds side by side begin far apart."""
    if not is_integer(seed) or not 0 <= int(seed) < 1 << 64:
        raise GraphError("random_key", f"seed must be an int in [0, 2**64), got {seed!r}.")
    mixed = mix(int(seed) ^ _STEP)
    return np.array((mixed & 0xFFFFFFFF, mixed >> 32), np.uint32)


def run_key(counter: State) -> Tensor:
    """The key of this run; the next run has another one."""
    low, high = (_word(_STEP & 0xFFFFFFFF), _word(_STEP >> 32))
    next_low = counter[0] + low
    carry = convert(next_low < low, next_low.dtype)
    counter.replace(stack([next_low, counter[1] + high + carry]))
    return random_bits(counter ^ constant(np.array((0, _RUN_DOMAIN), np.uint32)), (2,))


def _word(value: int) -> Tensor:
    return constant(np.array(value, np.uint32))
