"""System calls about mappings that Python's `mmap` has no words for.

map_over(address, nbytes, fd, offset)  -->  other pages in the place of those that are there
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache

MAP_FIXED = 0x10  # the same on every architecture that we have; `mmap` does not name it
FAILED = ctypes.c_void_p(-1).value
_WRITABLE = mmap.PROT_READ | mmap.PROT_WRITE


@cache
def libc() -> ctypes.CDLL:
    """The C library of this process, with the types of what we call."""
    library = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mmap.restype = pointer
    library.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_long]
    library.mprotect.argtypes = [pointer, size, number]
    library.madvise.argtypes = [pointer, size, number]
    library.munmap.argtypes = [pointer, size]
    return library


def map_over(address: int, nbytes: int, fd: int = -1, offset: int = 0) -> None:
    """Let pages of the process be a private view of a file, or fresh zeros.

    An OSError says that the system refused, which it does before anything changes.
    """
    flags = MAP_FIXED | mmap.MAP_PRIVATE | (mmap.MAP_ANONYMOUS if fd < 0 else 0)
    if libc().mmap(address, nbytes, _WRITABLE, flags, fd, offset) == FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
