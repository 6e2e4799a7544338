"""Host memory for plans and buffers.

    allocate(size_bytes)  -->  HostMemory

Every block starts on a cache line, is zeroed, is never smaller than a line and has a
line of slack after its end, so that a vector load that starts inside stays inside. Large
blocks are anonymous mappings: pages cost nothing until they are touched, and `discard` gives
them back while the address stays valid. `fork` makes a block that shares the pages which neither
side writes (`semel.runtime.forked_pages`). `counters()` says what is held: a block counts until it
is released or dropped.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from semel.errors import OutOfMemoryError
from semel.locks import make_lock
from semel.runtime.forked_pages import BLOCK_BYTES, PAGE_BYTES, Pages, Unshareable, written_bytes
from semel.runtime.free import HOST_DEVICE, check_free, free_bytes
from semel.runtime.memory import Bytes, HeldMemory
from semel.runtime.words import address_of

ALIGNMENT_BYTES = 64
SLACK_BYTES = 64
_MAPPED_FROM_BYTES = 256 << 10
#: From here on pages of 2 MiB pay: streaming kernels miss the TLB far less often.
_HUGE_FROM_BYTES = 4 << 20
_ids = itertools.count(1)


def take_storage_id() -> int:
    """A number for a new block of any device, which no other one has."""
    return next(_ids)


@dataclass(frozen=True, slots=True)
class AllocatorCounters:
    """Blocks and bytes held now, and blocks made since the process started."""

    live_blocks: int
    live_bytes: int
    total_blocks: int


class _Ledger:
    """The running counts; a lock, because blocks are made and dropped on any thread."""

    def __init__(self) -> None:
        # Reentrant: a garbage collection inside `add` may drop another block.
        self._lock = make_lock()
        self.blocks = self.bytes = self.total = 0

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self.blocks, self.bytes, self.total = (
                self.blocks + 1,
                self.bytes + size_bytes,
                self.total + 1,
            )

    def drop(self, size_bytes: int) -> None:
        with self._lock:
            self.blocks, self.bytes = self.blocks - 1, self.bytes - size_bytes


_ledger = _Ledger()


def counters() -> AllocatorCounters:
    """What this allocator holds now."""
    return AllocatorCounters(_ledger.blocks, _ledger.bytes, _ledger.total)


def advise_huge_pages(memory: mmap.mmap) -> None:
    """Ask for large pages; a system without them says no, and small ones serve."""
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)


class HostMemory(HeldMemory):
    """A block of the host (see `semel.runtime.memory`); `bytes` is the whole of it as uint8."""

    is_host = True

    __slots__ = (
        "__weakref__",
        "_counted_bytes",
        "_map",
        "_pages",
        "bytes",
        "id",
        "size_bytes",
    )

    # Bound here: a destructor may run after the globals of this module are gone.
    _drop = staticmethod(_ledger.drop)
    _map: mmap.mmap | None  #: if it is a mapping of its own
    _pages: Pages | None  #: once it was forked

    def __init__(self, size_bytes: int, *, mapped: bool = False) -> None:
        self._begin(size_bytes)
        whole = max(size_bytes, ALIGNMENT_BYTES) + SLACK_BYTES
        check_free(whole)
        try:
            if mapped or whole >= _MAPPED_FROM_BYTES:
                self._map = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                if whole >= _HUGE_FROM_BYTES:
                    advise_huge_pages(self._map)
                self.bytes: Bytes = np.frombuffer(self._map, np.uint8)
            else:
                raw = np.zeros(whole + ALIGNMENT_BYTES, np.uint8)
                skip = -address_of(raw) % ALIGNMENT_BYTES
                self.bytes = raw[skip : skip + whole]
        except (MemoryError, OSError, ValueError, OverflowError):
            raise OutOfMemoryError(HOST_DEVICE, size_bytes, free_bytes() or 0) from None
        self._counted_bytes = whole
        _ledger.add(whole)

    def _begin(self, size_bytes: int) -> None:
        """A block that has no bytes yet."""
        self.id, self.size_bytes, self._counted_bytes = take_storage_id(), size_bytes, 0
        self._holders = {}
        self._map = self._pages = None

    @staticmethod
    def over(array: Bytes) -> HostMemory:
        """Bytes that somebody else made: part of a mapped file, a caller's array.

        Not counted here. Kernels read and write only the elements they name, so that any
        address that suits the elements will do.
        """
        memory = HostMemory.__new__(HostMemory)
        memory._begin(array.size)
        memory.bytes = array
        return memory

    @property
    def address(self) -> int:
        return address_of(self.bytes)

    @property
    def is_alive(self) -> bool:
        return self.bytes.size > 0

    def copy_in(self, offset: int, source: np.ndarray[Any, Any]) -> None:
        np.ndarray(source.shape, source.dtype, self.bytes.data, offset)[...] = source

    def copy_out(self, offset: int, size_bytes: int) -> Bytes:
        return self.view(offset, size_bytes).copy()

    def copy_to(self, offset: int, target: Bytes) -> None:
        target[...] = self.bytes[offset : offset + target.size]

    def view(self, offset: int, size_bytes: int) -> Bytes:
        return self.bytes[offset : offset + size_bytes]

    def peek(self, offset: int, size_bytes: int) -> Bytes:
        return self.view(offset, size_bytes)

    def fill(self, byte: int, start: int = 0, end: int | None = None) -> None:
        """Let every byte in [start, end) be `byte`; whole pages of zeros take no memory."""
        last = self.bytes.size if end is None else end
        if byte == 0 and self._map is not None:
            first, behind = self._whole_pages(start, last)
            if first < behind:
                self.discard(first, behind)
                self.bytes[start:first] = 0
                start = behind
        self.bytes[start:last] = byte

    def seal(self) -> None:
        self.bytes.flags.writeable = False

    def duplicate(self) -> HostMemory:
        made = allocate(self.size_bytes)
        made.bytes[: self.size_bytes] = self.bytes[: self.size_bytes]
        return made

    def fork(self) -> HostMemory:
        """Like `duplicate`, but pages that neither side writes exist once.

        That pays from a few pages on; where the system does not allow it, what is not zero is
        copied. The address stays what it is.
        """
        if self._map is None or self.size_bytes < BLOCK_BYTES:
            return self.duplicate()
        try:
            made = self._again()
            self._forked().fork(made._forked())
        except Unshareable:
            made = self._again()
            _copy_filled(self.bytes, made.bytes)
        return made

    def _again(self) -> Self:
        return type(self)(self.size_bytes, mapped=True)

    def _forked(self) -> Pages:
        if self._pages is None:
            assert self._map is not None  # asked of mapped blocks only
            self._pages = Pages(self._map, self.bytes)
        return self._pages

    @property
    def own_bytes(self) -> int:
        found = written_bytes(self.address, self.bytes.size) if self._map is not None else None
        return self.bytes.size if found is None else found

    @property
    def shared_bytes(self) -> int:
        return 0 if self._pages is None else self._pages.shared_bytes

    def pin(self) -> object:
        return self.bytes

    def discard(self, start: int = 0, end: int | None = None) -> None:
        """Give the pages inside [start, end) back: they become zeros, addresses stay valid.

        Only blocks that are mappings of their own can do that.
        """
        if self._map is None:
            return
        first, last = self._whole_pages(start, len(self._map) if end is None else end)
        if first >= last:
            return
        if self._pages is None:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
        else:
            self._pages.clear(first, last)

    def _whole_pages(self, start: int, end: int) -> tuple[int, int]:
        """The part of [start, end) that can be given back."""
        grain = PAGE_BYTES if self._pages is None else BLOCK_BYTES
        is_last = end >= self.bytes.size
        return -(-start // grain) * grain, end if is_last else end // grain * grain

    def release(self) -> None:
        """Drop the block; its pages go back once no array views them."""
        self.bytes = np.empty(0, np.uint8)
        self._map = self._pages = None
        self._uncount()

    def _uncount(self) -> None:
        counted, self._counted_bytes = self._counted_bytes, 0
        if counted:
            self._drop(counted)

    def __del__(self) -> None:
        if getattr(self, "_counted_bytes", 0):
            self._uncount()


class LentMemory(HostMemory):
    """Memory that is a caller's `array`; another one of the same size may take its place.

    Its bytes are looked at less often than it is exchanged.
    """

    __slots__ = ("array",)

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._begin(array.nbytes)
        self.array = array

    @property
    def bytes(self) -> Bytes:
        return self.array.reshape(-1).view(np.uint8)

    @bytes.setter
    def bytes(self, value: Bytes) -> None:
        self.array = value


def _copy_filled(source: Bytes, to: Bytes) -> None:
    """Copy what is not zero into zeros."""
    for start in range(0, source.size, BLOCK_BYTES):
        block = source[start : start + BLOCK_BYTES]
        if block.any():
            to[start : start + BLOCK_BYTES] = block


def allocate(size_bytes: int, *, mapped: bool = False) -> HostMemory:
    """A zeroed block of at least `size_bytes`."""
    return HostMemory(size_bytes, mapped=mapped)


def align(size_bytes: int) -> int:
    """Round up to whole cache lines."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
