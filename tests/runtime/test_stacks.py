"""Stacks of which some parts are in memory: their bytes, their pages, and who holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from semel.errors import DeviceError
from semel.plan.spill import Spill
from semel.runtime.forked_pages import PAGE_BYTES
from semel.runtime.slab import LARGE_PAGE_BYTES
from semel.runtime.stacks import StackMemory

Array = np.ndarray[Any, Any]
#: Several parts in a page, parts that share pages, parts of whole pages, parts of large pages.
SIZES = [(40, 200), (7, PAGE_BYTES + 64), (5, 4 * PAGE_BYTES), (4, LARGE_PAGE_BYTES + 3000 * 64)]


def stack(count: int, size: int) -> tuple[Array, StackMemory]:
    data = np.random.default_rng(size).integers(0, 256, (count, size), np.uint8)
    spill = Spill([np.ones(10), data])
    return data, StackMemory(spill.write(""), spill.offsets[1], count, size)


def pages_of(parts: Any, size: int) -> int:
    """The bytes of all pages that these parts lie in, counted one by one."""
    found = {
        p for e in parts for p in range(e * size // PAGE_BYTES, -(-(e + 1) * size // PAGE_BYTES))
    }
    return len(found) * PAGE_BYTES


def check(data: Array, memory: StackMemory, held: set[int]) -> None:
    size = data.shape[1]
    assert set(memory.held()) == held
    assert memory.held_bytes == memory.mapped_bytes() == pages_of(held, size)
    for part in held:
        np.testing.assert_array_equal(memory.view(part * size, size), data[part])
    assert memory.mapped_bytes() == pages_of(held, size)


@pytest.mark.parametrize(("count", "size"), SIZES)
def test_what_is_held_is_in_memory_and_nothing_else(count: int, size: int) -> None:
    data, memory = stack(count, size)
    rng, held = np.random.default_rng(1), set[int]()
    for step in range(12):
        wanted = set(np.flatnonzero(rng.random(count) < (step % 4) / 3).tolist())
        memory.bring(sorted(wanted - held))
        memory.drop(sorted(held - wanted))
        held = wanted
        check(data, memory, held)


def test_a_part_goes_with_the_last_who_holds_it() -> None:
    data, memory = stack(3, 5000)
    memory.bring([0, 1])
    memory.bring([1, 2])
    memory.drop([0, 1])
    check(data, memory, {1, 2})
    memory.drop([1, 2])
    check(data, memory, set())


def test_whole_stacks_have_large_pages() -> None:
    data, memory = stack(8, 3 * LARGE_PAGE_BYTES // 4)
    memory.bring(range(8))
    assert memory._large.all() and memory._large.size == 6
    check(data, memory, set(range(8)))
    memory.drop([2])  # of which the second large page has a part, and the third
    assert memory._large.tolist() == [True, False, False, True, True, True]
    check(data, memory, set(range(8)) - {2})


def test_a_file_that_cannot_be_read_leaves_everything_as_it_was() -> None:
    data, memory = stack(4, 9000)
    memory.bring([0])
    assert memory._file is not None
    good, memory._file.fd = memory._file.fd, -1
    with pytest.raises(DeviceError, match="cannot be read"):
        memory.bring([1, 2])
    memory._file.fd = good
    check(data, memory, {0})
    memory.bring([1, 2])
    check(data, memory, {0, 1, 2})
