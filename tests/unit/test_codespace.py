"""Memory for code: few mappings, never writable and executable, gone with its last holder."""

from __future__ import annotations

import ctypes
import gc
import itertools
import mmap
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semel.devices.cpu import codespace
from semel.devices.cpu.codespace import CodeRange, CodeSpace
from semel.errors import DeviceError

PAGE = mmap.PAGESIZE
SLAB = 16 * PAGE


@pytest.fixture
def space() -> CodeSpace:
    return CodeSpace(SLAB)


def _maps(ranges: range) -> Iterator[tuple[range, str]]:
    """The mappings that lie in `ranges`, and what may be done there."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, access = line.split()[:2]
        start, end = (int(number, 16) for number in where.split("-"))
        if start < ranges.stop and ranges.start < end:
            yield range(start, end), access


def _access(address: int) -> str:
    return next((how for _, how in _maps(range(address, address + 1))), "")


def test_ranges_are_whole_pages_that_do_not_overlap(space: CodeSpace) -> None:
    rng = random.Random(1)
    held: list[CodeRange] = []
    for _ in range(300):
        if held and rng.random() < 0.45:
            held.pop(rng.randrange(len(held)))
        else:
            held.append(space.take(rng.randrange(1, 5 * PAGE)))
        assert all(r.address % PAGE == r.nbytes % PAGE == 0 for r in held)
        for a, b in itertools.pairwise(sorted((r.address, r.nbytes) for r in held)):
            assert a[0] + a[1] <= b[0]
        assert space.used_bytes == sum(r.nbytes for r in held)
    held.clear()
    assert (space.num_slabs, space.used_bytes) == (0, 0)


def test_a_range_can_be_touched_once_it_is_filled_and_is_never_writable_code(
    space: CodeSpace,
) -> None:
    found = space.take(3 * PAGE)
    assert _access(found.address) == "---p"
    found.fill(b"\x01" * (2 * PAGE + 5), 2 * PAGE)
    accesses = [_access(found.address + i * PAGE) for i in range(3)]
    assert accesses == ["r-xp", "r-xp", "rw-p"]
    assert ctypes.string_at(found.address + 2 * PAGE, 7) == b"\x01" * 5 + b"\0\0"


def test_neighbours_are_one_mapping(space: CodeSpace) -> None:
    held = [space.take(PAGE) for _ in range(16)]
    for found in held:
        found.fill(b"\x90", PAGE)
    start = min(found.address for found in held)
    # The system joins neighbours as a rule; where pages were shared with a child it may not.
    ways = [how for _, how in _maps(range(start, start + SLAB))]
    assert set(ways) == {"r-xp"} and len(ways) <= 4


def test_what_is_dropped_cannot_be_read_and_comes_back_zeroed(space: CodeSpace) -> None:
    kept, dropped = space.take(PAGE), space.take(PAGE)
    for found in (kept, dropped):
        found.fill(b"\xcc" * PAGE, PAGE)
    address = dropped.address
    del dropped, found
    assert (_access(address), _access(kept.address)) == ("---p", "r-xp")
    again = space.take(PAGE)
    assert again.address == address
    again.fill(b"", 0)
    assert ctypes.string_at(address, PAGE) == bytes(PAGE)


def test_free_neighbours_become_one_range(space: CodeSpace) -> None:
    held = [space.take(4 * PAGE) for _ in range(4)]
    last = held.pop()
    order = [1, 0, 0]
    for i in order:
        held.pop(i)
    assert space.take(12 * PAGE).address < last.address
    assert space.num_slabs == 1


def test_an_object_larger_than_a_slab_has_its_own(space: CodeSpace) -> None:
    large = space.take(SLAB + 1)
    assert (large.nbytes, space.num_slabs) == (SLAB + PAGE, 1)
    small = space.take(1)
    assert space.num_slabs == 2
    del large
    assert (space.num_slabs, space.used_bytes) == (1, small.nbytes)


def test_a_slab_goes_with_the_last_of_its_ranges(space: CodeSpace) -> None:
    held = [space.take(PAGE) for _ in range(3)]
    start = held[0].address
    while held:
        assert list(_maps(range(start, start + SLAB)))
        held.pop()
    assert _access(start) != "r-xp"
    assert space.num_slabs == 0


def _inside(space: CodeSpace, monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Do `action` once on this thread in the middle of a `take`, as a signal handler would."""
    find, actions = CodeSpace._find, [action]

    def interrupted(self: CodeSpace, size: int) -> int:
        while actions:
            actions.pop()()
        return find(self, size)

    monkeypatch.setattr(CodeSpace, "_find", interrupted)
    space.take(PAGE)


def test_a_destructor_inside_a_take_waits_for_its_end(
    space: CodeSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [space.take(PAGE)]
    seen: list[int] = []

    def drop() -> None:
        held.clear()
        seen.append(space.used_bytes)

    _inside(space, monkeypatch, drop)
    assert seen == [PAGE]
    assert (space.num_slabs, space.used_bytes) == (0, 0)


def test_a_take_inside_a_take_gets_pages_of_its_own(
    space: CodeSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[CodeRange] = []
    _inside(space, monkeypatch, lambda: held.append(space.take(PAGE)))
    held.append(space.take(PAGE))
    assert len({found.address for found in held}) == 2
    held.clear()
    assert (space.num_slabs, space.used_bytes) == (0, 0)


def test_a_destructor_does_not_wait_for_another_thread(space: CodeSpace) -> None:
    held = [space.take(PAGE)]
    with space._lock:
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join(100)
        assert not thread.is_alive()
        assert space.used_bytes == PAGE
    space.take(PAGE)
    assert space.used_bytes == 0


def test_cycles_that_hold_code_go_with_the_collector(space: CodeSpace) -> None:
    cycle: list[object] = [space.take(PAGE)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert space.num_slabs == 0


def test_a_refusal_is_typed_and_what_cannot_go_back_goes_later(
    space: CodeSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, dropped = space.take(PAGE), space.take(PAGE)
    with monkeypatch.context() as patch:
        patch.setattr(codespace, "_map", _no_room)
        del dropped
        assert space.used_bytes == 2 * PAGE
        with pytest.raises(DeviceError, match=rf"\[mmap\] {SLAB + PAGE} bytes .*max_map_count"):
            space.take(SLAB + 1)
    assert space.take(PAGE).nbytes == PAGE
    assert space.used_bytes == kept.nbytes


def _no_room(address: int, nbytes: int) -> int:
    raise codespace._refused("mmap", nbytes)


def test_nothing_goes_back_once_the_interpreter_ends(
    space: CodeSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = space.take(PAGE)
    found.fill(b"\x90", PAGE)
    address = found.address
    monkeypatch.setattr(CodeSpace, "_is_ending", staticmethod(lambda: True))
    del found
    assert _access(address) == "r-xp"


def test_threads_take_fill_and_drop_at_once(space: CodeSpace) -> None:
    wrong: list[bytes] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        held: list[tuple[CodeRange, bytes]] = []
        for _ in range(200):
            if held and rng.random() < 0.5:
                found, expected = held.pop(rng.randrange(len(held)))
                if ctypes.string_at(found.address, len(expected)) != expected:
                    wrong.append(expected)
            else:
                size = rng.randrange(1, 3 * PAGE)
                found, expected = space.take(size), bytes([rng.randrange(256)]) * size
                found.fill(expected, PAGE)
                held.append((found, expected))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert (space.num_slabs, space.used_bytes) == (0, 0)


def test_a_child_frees_and_takes_its_own_pages_only() -> None:
    held = [codespace.code_space.take(PAGE) for _ in range(2)]
    for found in held:
        found.fill(b"\x2a", PAGE)
    address = found.address
    child = os.fork()
    if not child:
        del found
        held.clear()
        fresh = codespace.code_space.take(PAGE)
        fresh.fill(b"\x07", PAGE)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ctypes.string_at(address, 1) == b"\x2a"


@pytest.mark.parametrize("when", ["taken", "busy", "held"])
def test_a_signal_beside_the_lock_leaves_it_to_others(
    when: str, space: CodeSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handlers raise where a call returns: after the lock was taken too."""
    lock, address = space._lock, space._take(PAGE)

    class Interrupted:
        _is_owned = staticmethod(lock._is_owned)
        release = staticmethod(lock.release)

        def acquire(self, blocking: bool = True) -> bool:
            assert not blocking
            if when == "taken":
                lock.acquire()
            raise KeyboardInterrupt

    monkeypatch.setattr(space, "_lock", Interrupted())
    space._dropped.append((address, PAGE))
    if when == "held":
        with lock:
            space._tidy()
        assert space.used_bytes == 0
    else:
        with pytest.raises(KeyboardInterrupt):
            space._tidy()
    assert not lock._is_owned() and not space._is_inside
