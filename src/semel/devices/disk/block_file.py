"""A file that blocks of bytes are kept in.

    StoreFile(path).take(size) --> Region --read, write--> arrays

What was in the file before is never touched by a new block: blocks lie behind it, and when the last
one is gone the file is as long as it was. One that is not there is made with the first block, and
removed again with the last. Bytes go by `pread` and `pwrite`, piece by piece: a
mapping would be faster by nothing, and would end the process, not the call, where somebody has
made the file shorter.

Whoever puts blocks into a file has it alone: another process, or the child of a fork, is refused
before two of them write to the same bytes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from bisect import insort
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from semel.errors import DeviceError, OutOfMemoryError
from semel.locks import make_lock
from semel.runtime.memory import Bytes

#: Bytes that go in one call: so often a copy looks whether it is still wanted.
PIECE_BYTES = 1 << 20
_ALIGNMENT_BYTES = 4096
_NO_FILE = -1
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StoreFile:
    """One open file. `name` is what its device is called, for errors."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path
        self._lock = make_lock()
        self._used: list[tuple[int, int]] = []  # where blocks lie, in order
        self._is_writeable, self._fd = self._open()
        self._pid = os.getpid()
        self._is_made = False  # by us, who remove it when nothing is in it
        self._is_taking = False  # a block: a collector that drops the last one leaves the file
        self._is_ours = False  # nobody else puts blocks into it
        self._first = 0  # where the first block lies, once it is ours
        self._before = 0  # how long the file was then

    def _open(self) -> tuple[bool, int]:
        """Whether it can be written, and its number; none if there is no file yet."""
        try:
            return True, self._checked(os.open(self.path, os.O_RDWR | os.O_CLOEXEC))
        except FileNotFoundError as error:
            if not os.path.isdir(self._folder):
                raise self._cannot_open(error) from error
            return True, _NO_FILE
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ETXTBSY):
                raise self._cannot_open(error) from error
        try:  # what cannot be written can be read
            return False, self._checked(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise self._cannot_open(error) from error

    @property
    def _folder(self) -> str:
        return os.path.dirname(self.path) or "."

    def _make(self) -> None:
        """Make the file, for its first block, unless somebody has made it meanwhile."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._fd = self._checked(os.open(self.path, flags, 0o666))
            self._is_made = True
        except FileExistsError:
            self._is_writeable, self._fd = self._open()
        except OSError as error:
            raise self._cannot_open(error) from error

    def _remove_if_empty(self) -> None:
        """Remove a file that was made here and holds nothing any more."""
        is_wanted = self._is_taking or self._used or not (self._is_made and self._is_ours)
        if is_wanted or self.size_bytes:
            return
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._fd), os.stat(self.path)):
                os.unlink(self.path)
        os.close(self._fd)
        self._fd, self._is_made, self._is_ours = _NO_FILE, False, False

    def _checked(self, fd: int) -> int:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise DeviceError(
            self.name, f"{self.path} must be a file, and is something else.", device=self.name
        )

    def _cannot_open(self, error: OSError) -> DeviceError:
        folder = self._folder
        hint = "" if os.path.isdir(folder) else f"There is no folder {folder}."
        return DeviceError(
            self.name,
            f"{self.path} cannot be opened: {error.strerror}.",
            hint=hint,
            device=self.name,
        )

    # ------------------------------------------------------------ blocks

    @property
    def size_bytes(self) -> int:
        """How long the file is now."""
        return 0 if self._fd == _NO_FILE else os.fstat(self._fd).st_size

    def free_bytes(self) -> int:
        """What the file system has room for."""
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize

    def take(self, size_bytes: int) -> Region:
        """So many bytes of zeros, that nobody else has."""
        if size_bytes <= 0:
            return Region(self, 0, 0)
        with self._lock:
            try:
                self._is_taking = True
                region, is_behind = self._take(size_bytes)
            finally:
                self._is_taking = False
                self._remove_if_empty()
        if not is_behind:
            region.fill(0, 0, size_bytes)
        return region

    def _take(self, size_bytes: int) -> tuple[Region, bool]:
        """A block, and whether it lies behind all others and is zeros."""
        self._have_alone()
        start, is_behind = self._find_gap(size_bytes)
        end = start + _aligned(size_bytes)
        # Noted first: a collector that drops another block meanwhile must not cut this one off.
        insort(self._used, (start, end))
        try:
            if is_behind:
                os.posix_fallocate(self._fd, start, end - start)
        except OSError as error:
            self._used.remove((start, end))
            os.ftruncate(self._fd, self._end())
            if error.errno in _FULL:
                raise OutOfMemoryError(self.name, size_bytes, self.free_bytes()) from error
            raise self.failed("grow", error) from error
        return Region(self, start, size_bytes, is_owned=True), is_behind

    def window(self, start: int, size_bytes: int) -> Region:
        """Bytes that are in the file already."""
        with self._lock:
            if self._fd == _NO_FILE:  # somebody may have made it meanwhile
                self._is_writeable, self._fd = self._open()
            held = self.size_bytes
        if start < 0 or size_bytes < 0 or start + size_bytes > held:
            raise DeviceError(
                self.name,
                f"[{start}, {start + size_bytes}) must lie within the file's {held} bytes.",
                device=self.name,
            )
        return Region(self, start, size_bytes)

    def give_back(self, start: int, size_bytes: int) -> None:
        """Let others have the bytes of a block; the file gets shorter if it was the last."""
        if os.getpid() != self._pid:
            return  # it is the parent's
        with self._lock:
            self._used.remove((start, start + _aligned(size_bytes)))
            if self.size_bytes > self._end():
                os.ftruncate(self._fd, self._end())
            self._remove_if_empty()

    def _end(self) -> int:
        return self._used[-1][1] if self._used else self._before

    def _find_gap(self, size_bytes: int) -> tuple[int, bool]:
        """Where there is room, and whether that is behind all blocks."""
        at = self._first
        for start, end in self._used:
            if start - at >= _aligned(size_bytes):
                return at, False
            at = end
        return at, True

    def _have_alone(self) -> None:
        """Be the one who puts blocks into the file."""
        if os.getpid() != self._pid:
            raise DeviceError(
                self.name,
                "was opened before a fork, so that blocks of the child would lie on those of the "
                "parent.",
                hint="Use another file in the child.",
                device=self.name,
            )
        if not self._is_writeable:
            raise DeviceError(
                self.name,
                f"{self.path} cannot be written, so nothing can be put there; what is in it can "
                "be read.",
                hint="Buffer.from_file() reads what is there.",
                device=self.name,
            )
        if self._is_ours:
            return
        if self._fd == _NO_FILE:
            self._make()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DeviceError(
                self.name,
                f"another process keeps its blocks in {self.path}.",
                hint="Use another file.",
                device=self.name,
            ) from error
        except OSError as error:
            raise self.failed("lock", error) from error
        self._before = self.size_bytes
        self._first = _aligned(self._before)
        self._is_ours = True

    # ------------------------------------------------------------ bytes

    def read(self, start: int, to: memoryview) -> None:
        """Fill `to` with what is at `start`; at most a piece, or Python waits for long."""
        done = 0
        while done < len(to):
            try:
                count = os.preadv(self._fd, [to[done:]], start + done)
            except OSError as error:
                raise self.failed("read", error) from error
            if not count:
                raise DeviceError(
                    self.name,
                    f"{self.path} must have {start + len(to)} bytes, and has {self.size_bytes}: "
                    "somebody has made it shorter.",
                    device=self.name,
                )
            done += count

    def write(self, start: int, source: memoryview) -> None:
        """Let `source` be at `start`."""
        if not self._is_writeable:
            raise DeviceError(
                self.name, f"{self.path} cannot be written, it can be read.", device=self.name
            )
        done = 0
        while done < len(source):
            try:
                done += os.pwritev(self._fd, [source[done:]], start + done)
            except OSError as error:
                raise self.failed("write", error) from error

    def failed(self, what: str, error: OSError) -> DeviceError:
        """The error of a call of the system."""
        return DeviceError(
            self.name, f"cannot {what} {self.path}: {error.strerror}.", device=self.name
        )


class Region:
    """Bytes of a file, counted from where they begin; its room is free when nobody holds it."""

    __slots__ = ("__weakref__", "_is_owned", "file", "size_bytes", "start")

    _is_ending = staticmethod(sys.is_finalizing)

    def __init__(
        self, file: StoreFile, start: int, size_bytes: int, *, is_owned: bool = False
    ) -> None:
        self.file, self.start, self.size_bytes = file, start, size_bytes
        self._is_owned = is_owned

    def __del__(self) -> None:
        if getattr(self, "_is_owned", False):
            try:
                self.file.give_back(self.start, self.size_bytes)
            except (AttributeError, TypeError):
                if not self._is_ending():  # else the globals of this module may be gone
                    raise

    def read(self, offset: int, to: memoryview) -> None:
        """Fill `to` from `offset` on."""
        for at, end in pieces(len(to)):
            self.file.read(self.start + offset + at, to[at:end])

    def write(self, offset: int, source: memoryview) -> None:
        """Put `source` at `offset`."""
        for at, end in pieces(len(source)):
            self.file.write(self.start + offset + at, source[at:end])

    def fill(self, byte: int, start: int, end: int) -> None:
        """Let every byte in [start, end) be `byte`."""
        piece = memoryview(bytes([byte]) * min(PIECE_BYTES, max(end - start, 0)))
        for at, stop in pieces(end - start):
            self.file.write(self.start + start + at, piece[: stop - at])

    def copy_to(self, other: Region) -> None:
        """The same contents there, by way of one piece of memory."""
        piece = memoryview(bytearray(min(PIECE_BYTES, self.size_bytes)))
        for at, end in pieces(self.size_bytes):
            self.read(at, piece[: end - at])
            other.write(at, piece[: end - at])


def pieces(size_bytes: int) -> Iterator[tuple[int, int]]:
    """A range of bytes, cut."""
    for start in range(0, size_bytes, PIECE_BYTES):
        yield start, min(start + PIECE_BYTES, size_bytes)


def as_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """The bytes of an array, compact and in C order."""
    flat: Bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat.data)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
