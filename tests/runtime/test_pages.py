"""Memory that is forked: contents are copied, pages that nobody writes are not."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.forks import in_child

from semel.runtime import forked_pages as pages
from semel.runtime.allocator import HostMemory, allocate
from semel.runtime.forked_pages import BLOCK_BYTES, PAGE_BYTES, Layer
from semel.runtime.libc import map_over

MIB = 1 << 20


def filled(size: int, used: int | None = None) -> HostMemory:
    memory = allocate(size, mapped=True)
    used = size if used is None else used
    memory.view(0, used)[:] = np.arange(used, dtype=np.uint64).astype(np.uint8) | 1
    return memory


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def layers(memory: HostMemory) -> list[Layer]:
    assert memory._pages is not None
    return list(memory._pages._layers.values())


@pytest.fixture
def is_told() -> None:
    if not Path("/proc/self/pagemap").exists():
        pytest.skip("this system does not say which pages were written")


# ---------------------------------------------------------------- contents


def test_neither_side_sees_what_the_other_writes() -> None:
    first = filled(MIB)
    address, expected = first.address, first.copy_out(0, MIB)
    second = first.fork()
    assert first.address == address != second.address
    first.view(5000, 10)[:] = 0
    second.view(MIB - 10, 10)[:] = 7
    changed = expected.copy()
    changed[5000:5010] = 0
    np.testing.assert_array_equal(first.view(0, MIB), changed)
    changed = expected.copy()
    changed[-10:] = 7
    np.testing.assert_array_equal(second.view(0, MIB), changed)


def test_a_small_block_is_copied() -> None:
    first = allocate(100)
    first.fill(3)
    second = first.fork()
    second.fill(4)
    assert first.view(0, 2).tolist() == [3, 3] and first.shared_bytes == 0


def without_page_map(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pages, "_written_pages", lambda *_: None)


def without_files(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(os, "memfd_create")


def without_mappings(patch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    patch.setattr(pages, "map_over", refuse)


def with_few_mappings(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pages, "_MOST_RUNS", 3)


def with_early_joins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pages, "_MOST_LAYERS", 2)


SYSTEMS = [None, without_page_map, without_files, without_mappings, with_few_mappings,
           with_early_joins]  # fmt: skip


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("system", SYSTEMS)
def test_forks_of_forks_hold_what_was_written(
    system: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against plain arrays: any blocks, any order of writes, zeros, forks and releases."""
    if callable(system):
        system(monkeypatch)
    rng = random.Random(11)
    size = 11 * BLOCK_BYTES + 5 * PAGE_BYTES + 17
    blocks = [(allocate(size, mapped=True), np.zeros(size, np.uint8))]
    files = open_files()
    for _ in range(150):
        memory, model = rng.choice(blocks)
        start = rng.randrange(size)
        end = min(size, start + rng.choice([1, PAGE_BYTES, 3 * BLOCK_BYTES, size]))
        match rng.randrange(5):
            case 0:
                forked = memory.fork()
                assert forked.size_bytes == size
                blocks.append((forked, model.copy()))
            case 1:
                memory.fill(0, start, end)
                model[start:end] = 0
            case 2 if len(blocks) > 4:
                memory.release()
                blocks = [pair for pair in blocks if pair[0] is not memory]
            case _:
                value = rng.randrange(1, 256)
                memory.view(start, end - start)[:] = value
                model[start:end] = value
        for memory, model in blocks:
            assert np.array_equal(memory.view(0, size), model)
    del memory, forked
    blocks.clear()
    assert open_files() == files


def test_a_fork_of_the_process_is_apart_from_both(is_told: None) -> None:
    first = filled(MIB)
    second = first.fork()
    expected = first.copy_out(0, MIB)

    def write() -> None:
        for memory in (first, second, second.fork()):
            np.testing.assert_array_equal(memory.view(0, MIB), expected)
            memory.view(0, MIB)[:] = 9

    in_child(write)
    for memory in (first, second):
        np.testing.assert_array_equal(memory.view(0, MIB), expected)


class Interrupted:
    """`map_over` that raises at its n-th call, before or after it has mapped."""

    def __init__(self, error: type[BaseException], number: int, is_after: bool) -> None:
        self.error, self.left, self.is_after = error, number, is_after

    def __call__(self, *where: int) -> None:
        self.left -= 1
        if self.left < 0 and not self.is_after:
            raise self.error
        map_over(*where)
        if self.left < 0:
            raise self.error


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("number", range(0, 12, 2))
def test_an_interruption_loses_nothing(
    number: int, error: type[BaseException], is_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal before or after any mapping, or a system that refuses it: contents stay."""
    rng = random.Random(number)
    size = 9 * BLOCK_BYTES
    memory, model = allocate(size, mapped=True), np.zeros(size, np.uint8)
    family = [memory]
    for _ in range(3):  # layers, changes and zeros side by side
        for block in range(0, size, BLOCK_BYTES):
            value = rng.choice([None, None, 0, 7, 9])
            if value is not None:
                memory.view(block, BLOCK_BYTES)[:] = model[block : block + BLOCK_BYTES] = value
        family.append(memory.fork())
        memory.view(2 * BLOCK_BYTES + 5, 9)[:] = model[2 * BLOCK_BYTES + 5 :][:9] = 3
    with monkeypatch.context() as patch, contextlib.suppress(error):
        patch.setattr(pages, "map_over", Interrupted(error, number, is_after))
        assert np.array_equal(memory.fork().view(0, size), model)
    for one in (memory, memory.fork(), memory):
        assert np.array_equal(one.view(0, size), model)


def test_threads_fork_one_family_at_a_time_each_its_own() -> None:
    first = filled(MIB)
    family = [first.fork() for _ in range(4)]
    wrong: list[int] = []

    def work(number: int, memory: HostMemory) -> None:
        for step in range(20):
            memory.view(step * 40_000, 100)[:] = number
            child = memory.fork()
            if not np.array_equal(child.view(0, MIB), memory.view(0, MIB)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(family)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---------------------------------------------------------------- memory


def test_forks_take_what_they_change(is_told: None) -> None:
    first = filled(4 * MIB, used=MIB)
    forks = [first.fork() for _ in range(5)]
    assert first.own_bytes == 0 and first.shared_bytes == MIB
    for number, fork in enumerate(forks):
        fork.view(0, number * PAGE_BYTES)[:] = 5
        assert fork.shared_bytes == MIB  # the same: one layer for all
        assert fork.own_bytes == number * PAGE_BYTES
    assert len({id(layer) for fork in forks for layer in layers(fork)}) == 1


def test_a_fork_copies_what_changed_since_the_last(is_told: None) -> None:
    memory = filled(4 * MIB, used=MIB)
    kept = memory.fork()
    memory.view(MIB, 100)[:] = 1  # as rows that are appended
    again = memory.fork()
    assert memory.shared_bytes == MIB + BLOCK_BYTES and kept.shared_bytes == MIB
    assert len({id(layer) for m in (memory, kept, again) for layer in layers(m)}) == 2


def test_layers_are_joined_but_for_the_largest(is_told: None) -> None:
    memory = filled(4 * MIB, used=MIB)
    kept = memory.fork()
    for step in range(40):
        memory.view(MIB + 40_000 * step, 100)[:] = step + 1
        memory.fork()
        assert len(layers(memory)) <= 8
    base = layers(kept)[0]
    assert base in layers(memory)
    assert kept.view(MIB, 1)[0] == 0 and memory.view(MIB + 40_000 * 39, 1)[0] == 40


def test_zeros_take_nothing(is_told: None) -> None:
    memory = allocate(64 * MIB, mapped=True)
    memory.fill(0)
    assert memory.own_bytes == 0
    memory.fill(3, 0, 3 * MIB)
    memory.fork().view(0, 1)
    memory.fill(0, 100, 2 * MIB)
    assert (
        memory.view(0, 2 * MIB + 1)[[0, 99, 100, 2 * MIB - 1, 2 * MIB]] == [3, 3, 0, 0, 3]
    ).all()
    assert memory.own_bytes <= 2 * BLOCK_BYTES
    memory.discard()
    assert memory.own_bytes == memory.shared_bytes == 0


def test_what_is_read_but_never_written_is_not_shared_as_memory(is_told: None) -> None:
    memory = allocate(4 * MIB, mapped=True)
    assert not memory.view(0, 4 * MIB).any()
    fork = memory.fork()
    assert fork.shared_bytes == 0 and not fork.view(0, 4 * MIB).any()


def test_nobody_can_write_to_a_layer() -> None:
    memory = filled(MIB)
    fork = memory.fork()
    (layer,) = layers(fork)
    with pytest.raises(PermissionError, match="not permitted"):
        os.pwrite(layer.fd, b"x", 0)
    with pytest.raises(PermissionError, match="not permitted"):
        mmap.mmap(layer.fd, PAGE_BYTES)


def test_a_process_keeps_mappings_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    before = pages._mappings.now
    monkeypatch.setattr(pages, "_most_mappings", lambda: before + 9)
    memory = filled(MIB)  # two mappings: what is shared, and the rest
    forks = [memory.fork() for _ in range(4)]
    assert [fork.shared_bytes for fork in forks] == [MIB, MIB, 0, 0]
    assert all(np.array_equal(fork.view(0, MIB), memory.view(0, MIB)) for fork in forks)
    assert pages._mappings.now == before + 6
    forks.clear()
    assert pages._mappings.now == before + 2


def test_a_process_keeps_files_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    before = pages._files.now
    monkeypatch.setattr(pages, "_most_files", lambda: before + 2)
    family = [filled(MIB) for _ in range(3)]
    forks = [memory.fork() for memory in family]
    assert [fork.shared_bytes for fork in forks] == [MIB, MIB, 0]
    assert family[0].fork().shared_bytes == MIB  # which needs none
    assert all(np.array_equal(f.view(0, MIB), family[0].view(0, MIB)) for f in forks)
    forks.clear()
    family.clear()
    assert pages._files.now == before
