"""Weights that are made together lie side by side, and give back what was theirs."""

from __future__ import annotations

import ctypes
import gc
import itertools
import mmap

import numpy as np
import pytest

import semel
from semel import Tensor
from semel.errors import OutOfMemoryError
from semel.plan.derive import SLAB_BYTES
from semel.plan.weights import Weight
from semel.runtime.slab import LARGE_PAGE_BYTES, allocate_slab


def test_blocks_are_zeroed_and_apart_and_begin_with_a_large_page() -> None:
    sizes = [1, 5000, 0, mmap.PAGESIZE, 3 << 20]
    blocks = allocate_slab(sizes)
    assert [block.bytes.size for block in blocks] == sizes
    assert blocks[0].address % LARGE_PAGE_BYTES == 0
    assert all(block.address % mmap.PAGESIZE == 0 for block in blocks)
    assert not any(block.bytes.any() for block in blocks)
    for number, block in enumerate(blocks):
        block.bytes[:] = number + 1
    assert [set(block.bytes.tolist()) for block in blocks] == [{1}, {2}, set(), {4}, {5}]


def test_what_is_dropped_gives_its_pages_back_and_leaves_its_neighbours() -> None:
    first, second, third = allocate_slab([9000, 9000, 9000])
    for block in (first, second, third):
        block.bytes[:] = 7
    address = second.address
    view = np.ndarray((10,), np.uint8, second.bytes.data)  # as weights and their readers hold it
    del second
    gc.collect()
    assert view.tolist() == [7] * 10
    del view, block
    gc.collect()
    assert ctypes.string_at(address, 9000) == bytes(9000)
    assert (first.bytes == 7).all() and (third.bytes == 7).all()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(OutOfMemoryError, match="cpu"):
        allocate_slab([1 << 60])


def test_weights_of_a_plan_share_large_pages_and_outlive_each_other() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((512, 768), dtype=np.float32) for _ in range(3)]
    assert sum(a.nbytes for a in arrays) > SLAB_BYTES
    x = Tensor.input("x", (1, 512))
    outputs = [x @ Tensor.param(f"w{i}", a) for i, a in enumerate(arrays)]
    plan = semel.prepare(outputs)
    places = sorted(w.array.ctypes.data for w in packed(plan))
    assert places[0] % LARGE_PAGE_BYTES == 0
    assert [b - a for a, b in itertools.pairwise(places)] == [arrays[0].nbytes] * 2
    data = rng.standard_normal((1, 512), dtype=np.float32)
    before = plan(x=data)
    plan.set_param("w1", arrays[0])
    after = plan(x=data)
    assert np.array_equal(after[0], before[0]) and np.array_equal(after[2], before[2])
    assert np.array_equal(after[1], after[0])


def packed(plan: semel.ExecutionPlan) -> list[Weight]:
    found = [value.weight for value in plan.program.values if value.place == "param"]
    return [weight for weight in found if weight is not None]
