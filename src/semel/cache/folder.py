"""A folder on disk that only we can change, held open while it is used.

    path  --PrivateFolder-->  read, replace, touch, remove, entries

What lies in such a folder is executed or believed, so a path is not enough: whoever may
rename one folder on the way to it can put another in its place between two looks. The way
is walked once, step by step and each step relative to the one before it; nobody but us and
root may be able to change any of them. From then on everything happens relative to the
descriptor of the folder, and each file is judged by the descriptor it is read from.

    a folder on the way    is ours or root's; writable by others only if sticky, as /tmp is
    a link on the way      is ours or root's
    the folder             is ours, 0700; made so whatever the umask
    a file in it           is ours, plain, not writable by others, and not too large

The descriptor is looked at again before every use: a program that closes all descriptors,
drops its privileges or removes the folder finds it opened anew, or refused. Nothing here
takes a lock, and a forked child uses its copy of the descriptor.

What breaks a rule is a `CacheError`; what the file system refuses is an `OSError`.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from semel.errors import CacheError

_ABANDONED_S = 3600  # a temporary file this old belongs to a process that died
_BESIDE = ".tmp"
_MAX_LINKS = 40
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

# A step needs no right to list the folder, where the system can tell the difference.
_STEP = os.O_DIRECTORY | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY)
# Not blocking: a FIFO is opened at once, seen for what it is, and closed.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
# What opening a link, a socket or a device without a driver says.
_NO_FILE = {errno.ELOOP, errno.ENXIO, errno.ENODEV}


class PrivateFolder:
    """The files of one folder by name; made, opened and checked at the first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: _Held | None = None

    def read(self, name: str, limit: int) -> bytes:
        """The bytes of a file of at most `limit` bytes."""
        held = self._open(create=False)
        handle = self._open_file(held, name)
        try:
            info = os.fstat(handle)
            doubt = _doubt(info, limit)
            if doubt:
                raise _refuse(self.path / name, doubt)
            return _read_all(handle, info.st_size)
        finally:
            os.close(handle)

    def replace(self, name: str, data: bytes) -> None:
        """Write beside the place, then rename: readers see a whole file, old or new."""
        held = self._open(create=True)
        beside = f".{secrets.token_hex(12)}{_BESIDE}"
        try:
            handle = os.open(beside, _NEW, 0o600, dir_fd=held.handle)
        except FileNotFoundError:
            self._held = None  # the folder was taken away; it is made again next time
            raise
        try:
            _write_all(handle, data)
            os.replace(beside, name, src_dir_fd=held.handle, dst_dir_fd=held.handle)
        except BaseException:
            with suppress(OSError):
                os.unlink(beside, dir_fd=held.handle)
            raise

    def touch(self, name: str) -> None:
        """Make the file the one used last."""
        held = self._open(create=False)
        os.utime(name, dir_fd=held.handle, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove whatever has this name: a file, a link itself, an empty folder."""
        held = self._open(create=False)
        try:
            os.unlink(name, dir_fd=held.handle)
        except IsADirectoryError:
            os.rmdir(name, dir_fd=held.handle)

    def entries(self, suffix: str | tuple[str, ...]) -> list[tuple[str, os.stat_result]]:
        """Names that end in `suffix`, with what `lstat` says; abandoned files go on the way."""
        held = self._open(create=False)
        # An open of its own: copies of a descriptor share one position in the listing.
        listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=held.handle)
        found = []
        try:
            with os.scandir(listing) as items:
                for item in items:
                    with suppress(FileNotFoundError):
                        info = item.stat(follow_symlinks=False)
                        if item.name.endswith(suffix):
                            found.append((item.name, info))
                        elif _is_abandoned(item.name, info):
                            os.unlink(item.name, dir_fd=listing)
        finally:
            os.close(listing)
        return found

    def _open(self, *, create: bool) -> _Held:
        """The descriptor, checked now; a caller keeps it open by keeping the value."""
        held, self._held = self._held, None
        info = None if held is None else held.look()
        if held is None or info is None:
            held = _Held(_walk(self.path, create=create))
            info = os.fstat(held.handle)
        if info.st_uid != os.geteuid():
            raise _refuse(self.path, f"must be ours, but belongs to user {info.st_uid}")
        if info.st_mode & _OTHERS_WRITE:
            raise _refuse_writable(self.path, info)
        if info.st_mode & 0o077:
            with suppress(OSError):  # a read-only disk; who may read it does no harm
                os.fchmod(held.handle, 0o700)
        self._held = held
        return held

    def _open_file(self, held: _Held, name: str) -> int:
        try:
            return os.open(name, _READ, dir_fd=held.handle)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise _refuse(self.path / name, "must be a plain file") from error
            raise


def is_doubtful(info: os.stat_result, limit: int) -> bool:
    """Whether `read` would refuse a file of which `lstat` says this."""
    return bool(_doubt(info, limit))


class _Held:
    """An open descriptor; the last reference that goes closes it."""

    __slots__ = ("__weakref__", "_closer", "_identity", "handle")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._identity = _identity(os.fstat(handle))
        self._closer = weakref.finalize(self, _close, handle, self._identity)

    def look(self) -> os.stat_result | None:
        """What the folder is now; None if it is gone, or the number is not ours any more."""
        try:
            info = os.fstat(self.handle)
        except OSError:
            info = None
        if info is None or _identity(info) != self._identity:
            self._closer.detach()  # the number may be given to anyone, to us too
            return None
        return info if info.st_nlink else None


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


def _close(handle: int, identity: tuple[int, int]) -> None:
    """Close a descriptor unless somebody else did, and the number may now be theirs."""
    with suppress(OSError):
        if _identity(os.fstat(handle)) == identity:
            os.close(handle)


# ------------------------------------------------------------------------------ the way


def _walk(path: Path, *, create: bool) -> int:
    """A descriptor of the folder at `path`, every step on the way to it checked.

    With `create`, what is missing is made, ours and private.
    """
    way = _Way()
    try:
        way.follow(_absolute(path).parts, create=create)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=way.at)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        code = getattr(error, "errno", None) or errno.EINVAL
        raise OSError(code, os.strerror(code), str(way.place)) from error
    finally:
        os.close(way.at)


def _absolute(path: Path) -> Path:
    return path if path.is_absolute() else Path.cwd() / path


class _Way:
    """Where a walk stands: the open folder `at`, and its `place` for messages."""

    def __init__(self) -> None:
        self.place = Path("/")
        self.at = os.open("/", _STEP)
        self._links = 0

    def follow(self, parts: Iterable[str], *, create: bool) -> None:
        for name in parts:
            self.place = self.place / name
            target = self._link(name, create=create)
            if target is None:
                self._enter(name)
            else:
                self.place = self.place.parent
                self.follow(Path(target).parts, create=create)

    def _link(self, name: str, *, create: bool) -> str | None:
        """Where the link of this name points; None if it is no link, made if it was missing."""
        try:
            info = os.stat(name, dir_fd=self.at, follow_symlinks=False)
        except FileNotFoundError:
            if not create:
                raise
            self._make(name)
            return None
        if not stat.S_ISLNK(info.st_mode):
            return None
        self._links += 1
        if self._links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if info.st_uid not in (0, os.geteuid()):
            raise _refuse(self.place, f"must be ours or root's, but is user {info.st_uid}'s link")
        return os.readlink(name, dir_fd=self.at)

    def _make(self, name: str) -> None:
        with suppress(FileExistsError):  # another process of ours was quicker
            os.mkdir(name, 0o700, dir_fd=self.at)
            os.chmod(name, 0o700, dir_fd=self.at)  # a umask may have taken away our own rights

    def _enter(self, name: str) -> None:
        step = os.open(name, _STEP, dir_fd=self.at)
        os.close(self.at)
        self.at = step
        info = os.fstat(step)
        if info.st_uid not in (0, os.geteuid()):
            raise _refuse(self.place, f"must be ours or root's, but belongs to user {info.st_uid}")
        if info.st_mode & _OTHERS_WRITE and not info.st_mode & stat.S_ISVTX:
            raise _refuse_writable(self.place, info)


# ---------------------------------------------------------------------------- the files


def _doubt(info: os.stat_result, limit: int) -> str:
    """Which rule a file breaks; empty for a sound one."""
    if not stat.S_ISREG(info.st_mode):
        return "must be a plain file"
    if info.st_uid != os.geteuid():
        return f"must be ours, but belongs to user {info.st_uid}"
    if info.st_mode & _OTHERS_WRITE:
        return f"must not be writable by others, got {_mode(info)}"
    if info.st_size > limit:
        return f"must have at most {limit} bytes, got {info.st_size}"
    return ""


def _refuse(path: Path, rule: str) -> CacheError:
    return CacheError("cache", f"{path} {rule}.")


def _refuse_writable(path: Path, info: os.stat_result) -> CacheError:
    return CacheError(
        "cache",
        f"{path} must not be writable by others, got {_mode(info)}.",
        hint="Take the right away (chmod go-w), or choose another SEMEL_CACHE_DIR.",
    )


def _mode(info: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(info.st_mode):o}"


def _is_abandoned(name: str, info: os.stat_result) -> bool:
    return (
        name.endswith(_BESIDE)
        and stat.S_ISREG(info.st_mode)
        and time.time() - info.st_mtime > _ABANDONED_S
    )


def _read_all(handle: int, size: int) -> bytes:
    """`size` bytes, or fewer if the file shrinks meanwhile."""
    parts = []
    while size and (part := os.read(handle, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write_all(handle: int, data: bytes) -> None:
    """Write a new file whole and close it; the umask does not decide who may read it."""
    try:
        os.fchmod(handle, 0o600)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(handle, rest) :]
    finally:
        os.close(handle)
