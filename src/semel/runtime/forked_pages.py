"""Mapped memory that shares what has not changed since it was forked, page by page.

    Pages(a).fork(Pages(b))  -->  b has the contents of a; what neither writes exists once

At a fork, what has changed since the last one is written to a file in memory, a *layer*, which
nobody changes any more. Both sides then see it through private mappings: a page that one of them
writes is copied by the system, for that side alone. The original stays at its address, so that
whoever points there never learns of it. A fork costs what has changed since the last one, and
nothing if nothing did; pages that were never written stay what they are, a reservation.

Which pages a process has written to, the system knows (`/proc/self/pagemap`); where it does not
say, all that is not zero counts. Layers are known by blocks of some pages, so that the number
of mappings stays small; a process may have some 65,000, and we take at most half of them, and a
quarter of the files that it may open. A layer goes when the last side drops it: files of memory
are counted by the system, across threads and forks of the process too.

Invariant: where `_numbers` names a layer, an unchanged page is that layer's, and where it names
none, it is zero. So a number is set before its mapping, and an interruption leaves pages that count
as changed. Why this way: docs/decisions/0065-copy-on-write.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import resource
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from semel.locks import make_lock
from semel.runtime.freed import when_freed
from semel.runtime.libc import map_over
from semel.runtime.memory import Bytes
from semel.runtime.words import address_of

PAGE_BYTES = mmap.PAGESIZE
BLOCK_BYTES = max(64 << 10, PAGE_BYTES)
#: More layers than these are joined at the next fork, all but the largest.
_MOST_LAYERS = 8
#: More mappings than these are not worth what is shared.
_MOST_RUNS = 4096
_PIECE_BYTES = 16 << 20
_NO_EXEC = 8  # MFD_NOEXEC_SEAL, which `os` does not name
# Of a word of the page map: the page is there, is swapped out, is one of a file.
_PRESENT, _SWAPPED, _OF_FILE = np.uint64(1 << 63), np.uint64(1 << 62), np.uint64(1 << 61)
_NONE = -1

Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Unshareable(Exception):  # noqa: N818
    """The system does not let these pages be shared: copy them."""


class _Count:
    """How many of something all pages have together; a lock, because forks happen on any thread."""

    def __init__(self) -> None:
        self._lock = make_lock()  # reentrant: a garbage collection inside may drop others
        self.now = 0

    def change(self, by: int) -> None:
        """So many more, or fewer."""
        with self._lock:
            self.now += by


_mappings, _files = _Count(), _Count()


@cache
def _most_mappings() -> int:
    """What leaves enough for everybody else."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text()) // 2
    except (OSError, ValueError):
        return 32_000


def _most_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft // 4 if soft != resource.RLIM_INFINITY else 1 << 20


class Layer:
    """Bytes that nobody changes, at the offsets where memory has them."""

    __slots__ = ("_token", "fd")

    def __init__(self, size_bytes: int) -> None:
        self.fd = _open_memory()
        _files.change(1)
        self._token = when_freed(_close, self.fd)
        os.ftruncate(self.fd, size_bytes)

    @property
    def size_bytes(self) -> int:
        """The memory that it takes."""
        return os.fstat(self.fd).st_blocks * 512

    def write(self, offset: int, data: Bytes) -> None:
        """Fill a part; only before it is sealed."""
        done = 0
        while done < data.size:
            done += os.pwrite(self.fd, data[done:].data, offset + done)

    def seal(self) -> None:
        """From now on it stays as it is, whoever holds the file."""
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)


def _close(fd: int) -> None:
    os.close(fd)
    _files.change(-1)


def _open_memory() -> int:
    """A file in memory that cannot be executed, where the system knows how to say so."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("semel", flags | _NO_EXEC)
    except OSError:
        return os.memfd_create("semel", flags)


class Pages:
    """The pages of one anonymous mapping, some of which are those of layers."""

    # Bound here: a destructor may run after the globals of this module are gone.
    _change = staticmethod(_mappings.change)

    def __init__(self, mapping: mmap.mmap, whole: Bytes) -> None:
        self._map, self._bytes = mapping, whole
        self._address = address_of(whole)
        self._size = -(-whole.size // PAGE_BYTES) * PAGE_BYTES
        self._layers: dict[int, Layer] = {}
        self._next = self._counted = 0
        #: The layer of each block, by its number.
        self._numbers = np.full(-(-self._size // BLOCK_BYTES), _NONE, np.int32)
        self._use_small_pages(0, self._size)

    # ------------------------------------------------------------ forks

    def fork(self, made: Pages) -> None:
        """Let `made`, of this size and all zeros, have these contents.

        Nobody writes here meanwhile. `Unshareable` says that `made` must be filled otherwise; here
        nothing is lost.
        """
        try:
            changed = self._changed_blocks() | self._joined_blocks()
            filled = self._filled_blocks(changed)
            wanted = np.where(filled, self._next, np.where(changed, _NONE, self._numbers))
            if not _has_room(2 * _count_runs(wanted), bool(filled.any())):
                raise Unshareable
            self._give_back(changed & ~filled)
            self._freeze(filled)
            made._follow(self)
        except (OSError, AttributeError) as error:  # no such files, or no more of them
            raise Unshareable from error

    def _joined_blocks(self) -> Flags:
        """Blocks of layers that are to be one: what is shared with most stays where it is."""
        if len(self._layers) < _MOST_LAYERS:
            return np.zeros(self._numbers.size, np.bool_)
        largest = max(self._layers, key=lambda number: self._layers[number].size_bytes)
        found: Flags = (self._numbers != _NONE) & (self._numbers != largest)
        return found

    def _freeze(self, blocks: Flags) -> None:
        """Put what these blocks hold into a layer, and let them be views of it."""
        if not blocks.any():
            return
        layer = Layer(self._size)
        number, self._next = self._next, self._next + 1
        self._layers[number] = layer
        for start, end in self._pieces(blocks):
            layer.write(start, self._part(start, end))
            self._show(number, start, end)
        layer.seal()
        self._tidy()

    def _follow(self, other: Pages) -> None:
        """Be a view of the same layers."""
        self._layers, self._next = dict(other._layers), other._next
        for number in self._layers:
            for start, end in self._runs(other._numbers == number):
                self._show(number, start, end)
        self._tidy()

    def _show(self, number: int, start: int, end: int) -> None:
        self._numbers[start // BLOCK_BYTES : -(-end // BLOCK_BYTES)] = number
        map_over(self._address + start, end - start, self._layers[number].fd, start)

    def _tidy(self) -> None:
        """Drop layers that nothing here is a view of any more, and count the mappings."""
        used = set(np.unique(self._numbers).tolist())
        self._layers = {n: layer for n, layer in self._layers.items() if n in used}
        before, self._counted = self._counted, _count_runs(self._numbers)
        _mappings.change(self._counted - before)

    def __del__(self) -> None:
        self._change(-getattr(self, "_counted", 0))

    # ------------------------------------------------------------ zeros

    def clear(self, start: int, end: int) -> None:
        """Let whole blocks be zeros that take no memory."""
        blocks = np.zeros(self._numbers.size, np.bool_)
        blocks[start // BLOCK_BYTES : -(-end // BLOCK_BYTES)] = True
        self._give_back(blocks)
        self._tidy()

    def _give_back(self, blocks: Flags) -> None:
        for start, end in self._runs(blocks):
            self._numbers[start // BLOCK_BYTES : -(-end // BLOCK_BYTES)] = _NONE
            try:
                map_over(self._address + start, end - start)
                self._use_small_pages(start, end)
            except OSError:  # too many mappings: zeros that take memory
                self._part(start, end)[:] = 0

    def _use_small_pages(self, start: int, end: int) -> None:
        """One row that is appended must not cost 2 MiB in each of many forks."""
        with contextlib.suppress(OSError, AttributeError):
            self._map.madvise(mmap.MADV_NOHUGEPAGE, start, end - start)

    # ------------------------------------------------------------ what is where

    @property
    def shared_bytes(self) -> int:
        """What the layers take that it is a view of."""
        return sum(layer.size_bytes for layer in self._layers.values())

    def _changed_blocks(self) -> Flags:
        """Blocks with pages that were written since they were last shared."""
        written = _written_pages(self._address, self._size)
        if written is None:
            return np.ones(self._numbers.size, np.bool_)
        whole = np.zeros(self._numbers.size * (BLOCK_BYTES // PAGE_BYTES), np.bool_)
        whole[: written.size] = written
        found: Flags = np.logical_or.reduce(whole.reshape(self._numbers.size, -1), axis=1)
        return found

    def _filled_blocks(self, blocks: Flags) -> Flags:
        """Those of the blocks that are not all zeros."""
        found = np.zeros(blocks.size, np.bool_)
        for start, end in self._pieces(blocks):
            words = self._part(start, end)
            full = words.size // BLOCK_BYTES
            first = start // BLOCK_BYTES
            whole = words[: full * BLOCK_BYTES].view(np.uint64).reshape(full, BLOCK_BYTES // 8)
            found[first : first + full] = np.bitwise_or.reduce(whole, axis=1) != 0
            if words.size % BLOCK_BYTES:  # the last block of all
                found[first + full] = words[full * BLOCK_BYTES :].any()
        return found

    def _part(self, start: int, end: int) -> Bytes:
        return self._bytes[start:end]

    def _runs(self, blocks: Flags) -> Iterator[tuple[int, int]]:
        """Bytes from and to, of blocks that follow each other."""
        edges = np.flatnonzero(np.diff(blocks, prepend=False, append=False)) * BLOCK_BYTES
        for start, end in edges.reshape(-1, 2).tolist():
            yield start, min(end, self._size)

    def _pieces(self, blocks: Flags) -> Iterator[tuple[int, int]]:
        """The same in pieces, so that what is copied twice for a moment is not much."""
        for start, end in self._runs(blocks):
            for at in range(start, end, _PIECE_BYTES):
                yield at, min(at + _PIECE_BYTES, end)


def _has_room(mappings: int, is_file_wanted: bool) -> bool:
    """Whether a fork may take so many mappings, for both sides, and a file."""
    if mappings > 2 * _MOST_RUNS or _mappings.now + mappings > _most_mappings():
        return False
    return not is_file_wanted or _files.now < _most_files()


def _count_runs(numbers: np.ndarray[Any, Any]) -> int:
    """How many mappings there are, about."""
    return int(np.count_nonzero(np.diff(numbers, prepend=_NONE)))


def written_bytes(address: int, size_bytes: int) -> int | None:
    """How much of these pages is memory that this process alone has; None if nobody says."""
    written = _written_pages(address, size_bytes)
    return None if written is None else int(np.count_nonzero(written)) * PAGE_BYTES


def _written_pages(address: int, size_bytes: int) -> Flags | None:
    """Which pages of private mappings were written to, or read where nothing was."""
    count = -(-size_bytes // PAGE_BYTES)
    try:
        fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.pread(fd, count * 8, address // PAGE_BYTES * 8)
    except OSError:
        return None
    finally:
        os.close(fd)
    if len(data) != count * 8:
        return None
    words = np.frombuffer(data, np.uint64)
    found: Flags = ((words & (_PRESENT | _SWAPPED)) != 0) & ((words & _OF_FILE) == 0)
    return found
