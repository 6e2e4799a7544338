"""A stack of equal parts of which some are in memory: the others are in a file, at no cost.

    StackFile (all parts, on disk)  --StackMemory.bring-->  pages of a mapping  --drop-->  nothing

A stack lies in an anonymous mapping of its whole size: each part has its address, and pages behind
it while somebody holds it. Kernels read base + part * size as in any other memory, so that nothing
but time and memory depends on what is there. Who brings parts holds them, and must do so before
anybody reads them: a part that nobody holds reads as zeros.

Pages are counted exactly. One at the border of two parts goes when neither is held. Large pages
are used where every part that lies in one is held, and given up before one of those goes: so that
what the system has of the mapping is always the pages of the parts that are held.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from semel.errors import DeviceError, OutOfMemoryError
from semel.locks import make_lock
from semel.runtime.allocator import ALIGNMENT_BYTES, SLACK_BYTES, HostMemory
from semel.runtime.forked_pages import PAGE_BYTES
from semel.runtime.free import HOST_DEVICE, free_bytes
from semel.runtime.freed import when_freed
from semel.runtime.libc import libc
from semel.runtime.memory import Bytes
from semel.runtime.slab import LARGE_PAGE_BYTES
from semel.runtime.words import address_of

_PROT_NONE = 0  # `mmap` does not name it
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_POPULATE_WRITE = 23  # Linux 5.14; likewise
#: A process may have some 65,000 mappings: a stack takes no more than so many.
_MOST_RUNS = 128


class StackFile:
    """An open file with the parts of stacks, which goes with the last who reads from it."""

    __slots__ = ("_map", "_seen", "_token", "bytes", "directory", "fd")

    def __init__(self, fd: int, directory: str, seen: tuple[Bytes, int] | None = None) -> None:
        """`seen` are bytes that somebody has mapped of it, from an offset on."""
        self.fd, self.directory, self._seen = fd, directory, seen
        self._token = when_freed(os.close, fd)
        size = os.fstat(fd).st_size
        #: All of it, to be looked at by who saves it: runs never do.
        self._map = mmap.mmap(fd, size, prot=mmap.PROT_READ)
        self.bytes: Bytes = np.frombuffer(self._map, np.uint8)

    def offset_of(self, array: np.ndarray[Any, Any]) -> int | None:
        """Where in the file an array lies, if it is a view of what was seen of it."""
        if self._seen is None or not array.flags.c_contiguous:
            return None
        data, first = self._seen
        start = address_of(array) - address_of(data)
        return first + start if 0 <= start <= data.size - array.nbytes else None

    def forget(self) -> None:
        """Let nothing of it be in memory because somebody has looked at it."""
        _advise(self._map, mmap.MADV_DONTNEED)
        if self._seen is not None:
            data, _ = self._seen
            libc().madvise(address_of(data), data.size, mmap.MADV_DONTNEED)

    def read_into(self, to: Bytes, offset: int) -> None:
        """Fill an array with what lies there."""
        done = 0
        while done < to.size:
            try:
                count = os.preadv(self.fd, [to[done:].data], offset + done)
            except OSError as error:
                raise DeviceError("experts", f"their file cannot be read: {error}.") from error
            if count == 0:
                raise DeviceError("experts", "their file must not be cut off while it is used.")
            done += count


class StackMemory(HostMemory):
    """Memory for `count` parts of `part_bytes` each, which come from `file` at `offset`."""

    __slots__ = ("_file", "_first", "_holds", "_large", "_lock", "_offset", "count", "part_bytes")

    def __init__(self, file: StackFile | None, offset: int, count: int, part_bytes: int) -> None:
        self._begin(count * part_bytes)
        self._file, self._offset = file, offset
        self.count, self.part_bytes = count, part_bytes
        whole = max(self.size_bytes, ALIGNMENT_BYTES) + SLACK_BYTES
        self._map, self._first = _reserved(whole)
        self.bytes = np.frombuffer(self._map, np.uint8)[self._first : self._first + whole]
        self._lock = make_lock()
        self._holds = [0] * count
        #: Of each large page whether it is one; never of the last, which others share.
        self._large = np.zeros(self.size_bytes // LARGE_PAGE_BYTES, np.bool_)

    # ------------------------------------------------------------ what is there

    def held(self) -> tuple[int, ...]:
        """The parts that are in memory."""
        return tuple(part for part, holds in enumerate(self._holds) if holds)

    @property
    def held_bytes(self) -> int:
        """What the parts that are in memory take: whole pages."""
        with self._lock:
            spans = [self._pages_of(*run) for run in _runs(self.held())]
        total, end = 0, 0
        for first, last in spans:  # ascending; a page at a border may be in two of them
            total += max(last - max(first, end), 0)
            end = max(end, last)
        return total

    def room_of(self, part: int) -> int:
        """What a part takes if no neighbour is there: whole pages."""
        first, last = self._pages_of(part, part + 1)
        return last - first

    def mapped_bytes(self) -> int:
        """What the system says is in memory of the mapping."""
        assert self._map is not None
        start = self.address - self._first
        return _resident_bytes(start, start + len(self._map))

    # ------------------------------------------------------------ moves

    def bring(self, parts: Sequence[int]) -> int:
        """Hold these parts: when it returns they are in memory. All or none.

        How many nobody held, so that they had to be read.
        """
        with self._lock:
            fresh = [part for part in sorted(set(parts)) if not self._holds[part]]
            self._use_large_pages(fresh)
            try:
                for first, last in _runs(fresh):
                    self._read(first, last)
            except BaseException:
                self._give_back(fresh)
                raise
            for part in parts:
                self._holds[part] += 1
            return len(fresh)

    def drop(self, parts: Iterable[int]) -> None:
        """Hold these parts no more: those that nobody else holds leave memory."""
        with self._lock:
            gone = []
            for part in parts:
                self._holds[part] -= 1
                if not self._holds[part]:
                    gone.append(part)
            self._give_back(sorted(gone))

    def _read(self, first: int, last: int) -> None:
        if self._file is None or self._map is None:
            return
        low, high = self._pages_of(first, last)
        # All pages at once, which is a quarter faster than one after the other as they are filled.
        _advise(self._map, _POPULATE_WRITE, self._first + low, high - low)
        start, end = first * self.part_bytes, last * self.part_bytes
        self._file.read_into(self.bytes[start:end], self._offset + start)

    def _give_back(self, gone: Sequence[int]) -> None:
        """Let the pages go that no part which is held needs."""
        for run in _runs(gone):
            first, last = self._pages_of(*run)
            self._advise_large(first // LARGE_PAGE_BYTES, -(-last // LARGE_PAGE_BYTES), False)
            if self._is_needed(first):
                first += PAGE_BYTES
            if first < last and self._is_needed(last - PAGE_BYTES):
                last -= PAGE_BYTES
            if first < last:
                assert self._map is not None
                self._map.madvise(mmap.MADV_DONTNEED, self._first + first, last - first)

    def _is_needed(self, page: int) -> bool:
        """Whether part of a page belongs to a part that is held."""
        first, last = page // self.part_bytes, (page + PAGE_BYTES - 1) // self.part_bytes
        return any(self._holds[first : last + 1])

    def _pages_of(self, first: int, last: int) -> tuple[int, int]:
        """The pages that parts [first, last) lie in, as bytes."""
        start, end = first * self.part_bytes, last * self.part_bytes
        return start // PAGE_BYTES * PAGE_BYTES, -(-end // PAGE_BYTES) * PAGE_BYTES

    # ------------------------------------------------------------ large pages

    def _use_large_pages(self, fresh: Sequence[int]) -> None:
        """Ask for large pages where all parts are held once these are."""
        after = [holds > 0 for holds in self._holds]
        for part in fresh:
            after[part] = True
        size = self.part_bytes
        around = [part for part, is_there in enumerate(after) if is_there] if fresh else []
        for first, last in _runs(around):
            low = -(-first * size // LARGE_PAGE_BYTES)
            self._advise_large(low, last * size // LARGE_PAGE_BYTES, True)

    def _advise_large(self, first: int, last: int, wanted: bool) -> None:
        """Let these large pages be such, or small ones; nothing if they are."""
        flags = self._large[first:last]
        if bool(flags.all() if wanted else not flags.any()):
            return
        before = flags.copy()
        flags[:] = wanted
        if wanted and np.count_nonzero(np.diff(self._large)) > _MOST_RUNS:
            flags[:] = before
            return
        start = first * LARGE_PAGE_BYTES
        stop = min(last, self._large.size) * LARGE_PAGE_BYTES
        assert self._map is not None
        how = mmap.MADV_HUGEPAGE if wanted else mmap.MADV_NOHUGEPAGE
        _advise(self._map, how, self._first + start, stop - start)


def _advise(memory: mmap.mmap, how: int, start: int = 0, size: int | None = None) -> None:
    """Tell the system about pages; one that does not know the word does as well without."""
    with suppress(OSError):
        memory.madvise(how, start, len(memory) - start if size is None else size)


def _runs(parts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Parts that follow each other, of ascending ones: from and to."""
    first = last = None
    for part in parts:
        if last == part and first is not None:
            last = part + 1
            continue
        if first is not None and last is not None:
            yield first, last
        first, last = part, part + 1
    if first is not None and last is not None:
        yield first, last


def _reserved(size_bytes: int) -> tuple[mmap.mmap, int]:
    """Addresses that nothing is behind, and where among them `size_bytes` begin: at a large page.

    Pages that cannot be used are at both ends, so that the system joins it with no other mapping
    and what is in memory of it can be told.
    """
    size = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES + LARGE_PAGE_BYTES + 2 * PAGE_BYTES
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    try:
        made = mmap.mmap(-1, size, flags=flags)
    except (OSError, ValueError, OverflowError):
        raise OutOfMemoryError(HOST_DEVICE, size_bytes, free_bytes() or 0) from None
    start = address_of(np.frombuffer(made, np.uint8))
    for end in (start, start + size - PAGE_BYTES):
        libc().mprotect(end, PAGE_BYTES, _PROT_NONE)
    _advise(made, mmap.MADV_NOHUGEPAGE)
    return made, PAGE_BYTES + -(start + PAGE_BYTES) % LARGE_PAGE_BYTES


def _resident_bytes(low: int, high: int) -> int:
    """What is in memory of the mappings of this process in [low, high)."""
    total, is_inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-[0-9a-f]+ ", line)
        if head:
            is_inside = low <= int(head[1], 16) < high
        elif is_inside and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total
