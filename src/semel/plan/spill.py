"""Weights written to a file that they are read from again, some at a time.

    Spill(arrays).write_to(None)    -->  StackFile without a name, in a directory with room
    Spill(arrays).write_to("file")  -->  that file: made, or found if it holds these very bytes

The first page says what the file is and what its contents hash to; each array begins at a page. A
file with a name appears whole or not at all, and is compared with the arrays before it is used
again. One without a name lies on a disk where there is one, else nothing would leave memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from semel.errors import DeviceError, InputError
from semel.runtime.forked_pages import PAGE_BYTES
from semel.runtime.stacks import StackFile
from semel.topics import Topic

_MAGIC = b"SEMELEXPERTS1\n"
_PIECE_BYTES = 16 << 20
_WHERE = "experts"
#: File systems without a disk.
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_MEMORY = Topic("memory")


class Spill:
    """Arrays, and where each lies in a file of them."""

    def __init__(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        self._arrays = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
        self.offsets: list[int] = []
        end = PAGE_BYTES
        for array in self._arrays:
            self.offsets.append(end)
            end += -(-array.size // PAGE_BYTES) * PAGE_BYTES
        self.size_bytes = end
        self._header: bytes | None = None

    def write_to(self, path: str | None) -> StackFile:
        """The file of that name, or one without a name."""
        return self.write("") if path is None else self._open(Path(path)) or self._make(Path(path))

    def write(self, directory: str) -> StackFile:
        """A file without a name, in this directory or, without one, in any that has room."""
        where = directory or self._with_room()
        try:
            with tempfile.TemporaryFile(dir=where) as file:
                self._fill(file.fileno(), where)
                return StackFile(os.dup(file.fileno()), where)
        except OSError as error:
            raise InputError(_WHERE, f"needs a directory to write to: {error}.") from error

    # ------------------------------------------------------------ files with a name

    @property
    def header(self) -> bytes:
        """The first page: two files of equal headers have equal contents."""
        if self._header is None:
            self._header = self._make_header()
        return self._header

    def _make_header(self) -> bytes:
        digest = hashlib.blake2b(digest_size=32)
        for array in self._arrays:
            digest.update(array.data)
        sizes = [array.size for array in self._arrays]
        text = json.dumps({"digest": digest.hexdigest(), "sizes": len(sizes), "sum": sum(sizes)})
        return (_MAGIC + text.encode()).ljust(PAGE_BYTES, b"\0")

    def _open(self, path: Path) -> StackFile | None:
        """The file, if it is there and holds these arrays; one that holds others is refused."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # it may be a pipe
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(_WHERE, f"'{path}' cannot be read: {error}.") from error
        try:
            is_same = self._is_in(fd)
        except OSError as error:
            os.close(fd)
            raise InputError(_WHERE, f"'{path}' cannot be read: {error}.") from error
        if not is_same:
            os.close(fd)
            raise InputError(
                _WHERE,
                f"'{path}' must hold the experts of this graph, it holds something else.",
                hint="Remove it, or name another file.",
            )
        return StackFile(fd, str(path.parent))

    def _is_in(self, fd: int) -> bool:
        """Whether a file holds these arrays: its first page is not believed, its bytes are."""
        if os.pread(fd, PAGE_BYTES, 0) != self.header or os.fstat(fd).st_size != self.size_bytes:
            return False
        for offset, array in zip(self.offsets, self._arrays, strict=True):
            for done in range(0, array.size, _PIECE_BYTES):
                piece = array[done : done + _PIECE_BYTES]
                if os.pread(fd, piece.size, offset + done) != piece.tobytes():
                    return False
        return True

    def _make(self, path: Path) -> StackFile:
        try:
            fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        except OSError as error:
            raise InputError(_WHERE, f"'{path}' cannot be written: {error}.") from error
        try:
            self._fill(fd, str(path.parent))
            os.pwrite(fd, self.header, 0)
            os.fsync(fd)
            Path(name).rename(path)
        except BaseException:
            os.close(fd)
            with suppress(OSError):
                Path(name).unlink()
            raise
        return StackFile(fd, str(path.parent))

    # ------------------------------------------------------------ bytes

    def _fill(self, fd: int, directory: str) -> None:
        """Write all arrays; room for them is taken before."""
        try:
            os.posix_fallocate(fd, 0, self.size_bytes)
            for offset, array in zip(self.offsets, self._arrays, strict=True):
                done = 0
                while done < array.size:
                    piece = array[done : done + _PIECE_BYTES]
                    done += os.pwrite(fd, piece.data, offset + done)
        except OSError as error:
            raise DeviceError(
                _WHERE,
                f"a file of {self.size_bytes} bytes must fit into {directory}: {error}.",
                hint="ExpertResidency(path=...) names a file where there is room.",
            ) from error

    def _with_room(self) -> str:
        places = list(dict.fromkeys((tempfile.gettempdir(), "/var/tmp")))
        free = {place: _free_bytes(place) for place in places}
        roomy = [place for place, size in free.items() if size >= self.size_bytes]
        for place in roomy:
            if not _is_in_memory(place):
                return place
        if roomy:
            _MEMORY.warning(
                "[experts] those that are not resident are in memory all the same: %s is no disk. "
                "ExpertResidency(path=...) names a file on one.",
                roomy[0],
            )
            return roomy[0]
        told = ", ".join(f"{size} in {place}" for place, size in free.items())
        raise DeviceError(
            _WHERE,
            f"need {self.size_bytes} bytes of a disk, there are {told}.",
            hint="ExpertResidency(path=...) names a file where there is room.",
        )


def _is_in_memory(directory: str) -> bool:
    """Whether files of a directory take memory and no disk, as the system says."""
    try:
        device = os.stat(directory).st_dev
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    kinds = {line.split(" - ")[-1].split()[0] for line in mounts if line.split()[2] == number}
    return not kinds.isdisjoint(_IN_MEMORY)


def _free_bytes(directory: str) -> int:
    try:
        found = os.statvfs(directory)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
