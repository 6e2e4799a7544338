"""Memory for machine code: many objects in few mappings, given back when nobody holds it.

    CodeSpace.take(nbytes)  -->  CodeRange  --fill(image, code_bytes)-->  code that can run

A process may have some 65,000 mappings, so code lies in slabs: one mapping each, of which an
object takes whole pages. What is executable is never writable, page by page: the pages of a
new object are written first and made executable then, and those of its neighbours, which may
be running, are not touched. Pages of nobody can be neither read nor executed, so that a jump
to code that is gone fails at once.

A range goes back when its `CodeRange` is freed, and its slab with the last of them. Who may
drop it, and when, is the holder's affair: see `semel.runtime.kernel`. Invariants: to drop one is
never to wait, since it may happen on any thread at any moment, even inside `take`; the range is
left in a queue, which whoever holds the lock empties before and after. And nothing goes back once
the interpreter ends: daemon threads and workers may still be running what they run.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections import deque
from typing import Any

from semel.errors import DeviceError
from semel.locks import make_lock
from semel.runtime.freed import when_freed
from semel.runtime.libc import FAILED, MAP_FIXED, libc

SLAB_BYTES = 2 << 20

_PAGE = mmap.PAGESIZE
_PROT_NONE = 0
_WRITABLE = mmap.PROT_READ | mmap.PROT_WRITE
_EXECUTABLE = mmap.PROT_READ | mmap.PROT_EXEC
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_HINT = "Drop plans that are not needed, or raise the limit vm.max_map_count."


def round_to_pages(nbytes: int) -> int:
    """The bytes of the pages that hold `nbytes`."""
    return -(-nbytes // _PAGE) * _PAGE


class CodeRange:
    """Whole pages for one object, until this is dropped."""

    __slots__ = ("__weakref__", "_token", "address", "nbytes")

    def __init__(self, space: CodeSpace, address: int, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes
        self._token = when_freed(space.drop, address, nbytes)

    def fill(self, image: bytes, code_bytes: int) -> None:
        """Put `image` there: its first `code_bytes`, whole pages, can then run; the rest is data.

        What `image` does not reach is zero.
        """
        _protect(self.address, self.nbytes, _WRITABLE)
        ctypes.memmove(self.address, image, len(image))
        if code_bytes:
            _protect(self.address, code_bytes, _EXECUTABLE)


class CodeSpace:
    """Slabs, and what lies in them."""

    # Bound here: a destructor may run after the globals of this module are gone.
    _is_ending = staticmethod(sys.is_finalizing)

    def __init__(self, slab_bytes: int = SLAB_BYTES) -> None:
        self._slab_bytes = slab_bytes
        self._slabs: list[_Slab] = []
        self._dropped: deque[tuple[int, int]] = deque()
        self._refused: list[tuple[int, int]] = []  # what the system would not take back yet
        # Reentrant, so that a signal handler may fork or compile in the middle of anything;
        # `_is_inside` tells it that the lists are being changed further up its own stack.
        self._lock: Any = make_lock()
        self._is_inside = False

    @property
    def num_slabs(self) -> int:
        return len(self._slabs)

    @property
    def used_bytes(self) -> int:
        """Bytes in the pages that objects hold."""
        return sum(slab.used_bytes for slab in self._slabs)

    def take(self, nbytes: int) -> CodeRange:
        """Pages for an object of `nbytes`, which nobody can touch before they are filled."""
        size = max(round_to_pages(nbytes), _PAGE)
        try:
            with self._lock:
                return CodeRange(self, self._take(size), size)
        finally:
            self._tidy()

    def drop(self, address: int, nbytes: int) -> None:
        """Nobody holds this range any more. Called wherever its last holder goes."""
        if not self._is_ending():
            self._dropped.append((address, nbytes))
            self._tidy()

    def _tidy(self) -> None:
        """Give back what was dropped, unless somebody is at it, who will look again afterwards."""
        while self._dropped and not self._is_inside and self._try_to_reclaim():
            pass

    def _try_to_reclaim(self) -> bool:
        """Whether the lock could be had. A signal handler may raise just after it was taken."""
        is_ours = self._lock._is_owned()
        try:
            if is_ours or self._lock.acquire(blocking=False):
                self._is_inside = True
                self._reclaim()
                return True
            return False
        finally:
            if self._lock._is_owned():
                self._is_inside = False
                if not is_ours:
                    self._lock.release()

    def _reclaim(self) -> None:
        waiting, self._refused = self._refused, []
        while self._dropped:
            waiting.append(self._dropped.popleft())
        for address, nbytes in waiting:
            slab = next(slab for slab in self._slabs if slab.holds(address))
            try:
                slab.give_back(address, nbytes)
            except DeviceError:  # no room for one more mapping: later
                self._refused.append((address, nbytes))
            if slab.is_empty:
                self._slabs.remove(slab)
                slab.unmap()

    def _take(self, size: int) -> int:
        if self._is_inside:
            return self._grow(size).take(size)
        self._is_inside = True
        try:
            self._reclaim()
            return self._find(size)
        finally:
            self._is_inside = False

    def _find(self, size: int) -> int:
        for slab in self._slabs:
            address = slab.take(size)
            if address:
                return address
        return self._grow(size).take(size)

    def _grow(self, size: int) -> _Slab:
        slab = _Slab(max(size, self._slab_bytes))
        self._slabs.append(slab)
        return slab


class _Slab:
    """One mapping, and which of its pages are free: runs of them in order of address."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.base = _map(0, size)
        self._free = [(self.base, self.base + size)]

    @property
    def used_bytes(self) -> int:
        return self.size - sum(end - start for start, end in self._free)

    @property
    def is_empty(self) -> bool:
        return self.used_bytes == 0

    def holds(self, address: int) -> bool:
        return self.base <= address < self.base + self.size

    def take(self, size: int) -> int:
        """The address of the first free run of `size` bytes; 0 if there is none."""
        for i, (start, end) in enumerate(self._free):
            if end - start >= size:
                self._free[i : i + 1] = [(start + size, end)] if end - start > size else []
                return start
        return 0

    def give_back(self, address: int, nbytes: int) -> None:
        """Free a range. Fresh pages take its place: the old ones go back to the system."""
        _map(address, nbytes)
        runs: list[tuple[int, int]] = []
        for start, end in sorted([*self._free, (address, address + nbytes)]):
            if runs and runs[-1][1] == start:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((start, end))
        self._free = runs

    def unmap(self) -> None:
        libc().munmap(self.base, self.size)


# ---------------------------------------------------------------------- system calls


def _map(address: int, nbytes: int) -> int:
    """Pages that nobody can touch: at `address`, in place of what is there, or anywhere if 0."""
    flags = _RESERVED | (MAP_FIXED if address else 0)
    found = libc().mmap(address or None, nbytes, _PROT_NONE, flags, -1, 0)
    if found == FAILED:
        raise _refused("mmap", nbytes)
    return int(found)


def _protect(address: int, nbytes: int, how: int) -> None:
    if libc().mprotect(address, nbytes, how) != 0:
        raise _refused("mprotect", nbytes)


def _refused(call: str, nbytes: int) -> DeviceError:
    error = ctypes.get_errno()
    return DeviceError(
        call, f"{nbytes} bytes for code were refused: {os.strerror(error)}.", hint=_HINT
    )


#: All code of the process.
code_space = CodeSpace()
