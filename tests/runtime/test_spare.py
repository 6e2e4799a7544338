"""Memory that waits for the next array: nobody else's, bounded, and given back."""

from __future__ import annotations

import gc
import threading
from typing import Literal

import numpy as np
import pytest

from semel import Tensor
from semel.runtime.spare import SpareMemory, spare_memory


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def test_the_next_array_of_a_size_has_the_memory_of_one_that_went() -> None:
    spare = SpareMemory()
    held = spare.empty(100)
    gone = spare.empty(4096)
    assert address(gone) % 64 == 0 and gone.shape == (4096,) and gone.flags.writeable
    where = address(gone)
    del gone
    assert spare.waiting_bytes == 4096
    assert address(spare.empty(4096)) == where
    assert held.size == 100


def test_memory_with_a_view_is_nobody_elses() -> None:
    spare = SpareMemory()
    first = spare.empty(4096)
    view = first[:4000].view(np.float32).reshape(10, 100)[3:]
    view[...] = 7
    del first
    second = spare.empty(4096)
    second[...] = 0
    assert spare.waiting_bytes == 0
    assert (view == 7).all()


def test_what_waits_is_bounded() -> None:
    spare = SpareMemory(max_bytes=10_000)
    held = [spare.empty(4000) for _ in range(4)]
    del held[1:]
    assert spare.waiting_bytes == 8000


def test_sizes_that_nobody_asks_for_make_room() -> None:
    spare = SpareMemory(max_bytes=10_000)
    held = [spare.empty(5000) for _ in range(3)]
    del held[1:]
    for _ in range(3):
        held.append(spare.empty(9000))
        held.pop()
    assert spare.waiting_bytes == 9000


def test_what_waits_goes_with_the_last_array() -> None:
    spare = SpareMemory()
    arrays = [spare.empty(1000) for _ in range(3)]
    arrays.pop()
    assert spare.waiting_bytes == 1000
    arrays.clear()
    assert spare.waiting_bytes == 0


def test_arrays_come_and_go_on_many_threads() -> None:
    spare = SpareMemory()
    held = spare.empty(64)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(300):
            mine = spare.empty(256)
            mine[...] = number
            if (mine != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    # Each has two for a moment: the next one, and the one before that goes.
    assert held.size + spare.waiting_bytes <= 64 + 4 * 2 * 256


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_that_is_set_stays_its_owners(keep: bool, order: Literal["C", "F"]) -> None:
    """It is packed from where it lies, or copied; what happens to it later is nobody's business."""
    x = np.ones((2, 64), np.float32)
    weight = Tensor.param("w", np.zeros((64, 64), np.float32))
    y = Tensor.input("x", x.shape) @ weight
    plan = (y + weight.sum(0)).prepare(keep_params=keep)
    array = np.full((64, 64), 3, np.float32, order=order)
    plan.set_param("w", array)
    assert array.flags.writeable
    array[...] = 7
    assert (plan(x=x) == 2 * 64 * 3).all()


def test_weights_that_replace_others_have_their_memory_and_clones_keep_theirs() -> None:
    gc.collect()
    before = spare_memory.waiting_bytes
    shape = (64, 64)
    x = np.ones((2, 64), np.float32)
    weight = Tensor.param("w", np.zeros(shape, np.float32))
    plan = (Tensor.input("x", x.shape) @ weight).prepare(keep_params=True)
    clones = []
    for number in range(6):
        plan.set_param("w", np.full(shape, number, np.float32))
        if number in (1, 3):
            clones.append((number, plan.clone()))
    for number, clone in [*clones, (5, plan)]:
        assert (clone(x=x) == 64 * number).all()
    assert spare_memory.waiting_bytes > 0
    del plan, clone, clones
    gc.collect()
    assert spare_memory.waiting_bytes <= before
