"""Compiled kernels by content: in memory, and on disk between processes.

    cache_key(text, target)  -->  key
    KernelCache.get(key)     -->  object code, or None
    KernelCache.put(key, object code)

A cache never decides whether a prepare works: no disk, a full one, a read-only one or
somebody else's directory leave the in-memory half, and `status` says why. An entry that
is in doubt in any way is removed and counts as a miss; a stale one cannot be found,
because the key covers everything that machine code depends on, down to the sources of
the code generator.

Entries are written beside their place and renamed into it, so that processes sharing a
directory see whole entries or none; there is no lock. The directory is private (0700)
and must be ours, since we execute what lies in it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from semel.config import settings
from semel.errors import CacheError
from semel.ir.signature import ABI_VERSION
from semel.ir.target import Target
from semel.locks import make_lock

FORMAT_VERSION = 1
MEMORY_BYTES = 128 << 20

# magic, format version, digest of the key, payload bytes, digest of the payload
_HEADER = struct.Struct("<8sI32sQ32s")
_MAGIC = b"SEMELKC\0"
_SUFFIX = ".kernel"
_ABANDONED_S = 3600  # a temporary file this old belongs to a process that died

_PACKAGE = Path(__file__).parent.parent
_CODE_SOURCES = ("kernel", "lower", "codegen", "devices/cpu/toolchain.py")


# -------------------------------------------------------------------------------- key


def cache_key(kernel_text: str, target: Target, extra: Iterable[str] = ()) -> str:
    """The hash of everything the machine code of `kernel_text` depends on."""
    parts = [
        kernel_text,
        str(ABI_VERSION),
        target.key,
        toolchain_version(),
        source_fingerprint(_PACKAGE),
        *extra,
    ]
    return _digest(parts).hex()


def _digest(parts: Iterable[str]) -> bytes:
    """Length before each part, so that no two lists of parts run together the same."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode()
        sha.update(len(data).to_bytes(8, "little"))
        sha.update(data)
    return sha.digest()


@cache
def toolchain_version() -> str:
    """Which llvmlite and LLVM would compile, found without importing llvmlite.

    The hash of its version file, and the size of its library: that stands for LLVM's
    version, which may differ between builds of one llvmlite.
    """
    spec = find_spec("llvmlite")
    folders = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    files = [file for folder in folders for file in folder.glob("binding/*llvmlite.*")]
    sizes = sorted((file.name, file.stat().st_size) for file in files)
    versions = [file.read_text() for folder in folders for file in folder.glob("_version.py")]
    return f"{_digest(versions).hex()} {sizes}"


@cache
def source_fingerprint(root: Path) -> str:
    """The hash of the sources that decide which code a kernel's text becomes."""
    sha = hashlib.sha256()
    for source in _CODE_SOURCES:
        place = root / source
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            data = file.read_bytes()
            sha.update(f"{file.relative_to(root)} {len(data)}\n".encode())
            sha.update(data)
    return sha.hexdigest()


# ------------------------------------------------------------------------------ cache


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """What the cache did and can do; `reason` is empty while the disk half works."""

    directory: Path | None
    reason: str
    memory_hits: int
    disk_hits: int
    misses: int


class KernelCache:
    """Object code by key; safe for threads here and for other processes on the directory."""

    def __init__(self, directory: Path | None, max_bytes: int = 512 << 20) -> None:
        self._memory: OrderedDict[str, bytes] = OrderedDict()
        self._memory_bytes = 0
        self._disk = None if directory is None else _Disk(directory, max_bytes)
        self._lock = make_lock()
        self._memory_hits = self._disk_hits = self._misses = 0

    def get(self, key: str) -> bytes | None:
        """The object code stored under `key`, or None."""
        with self._lock:
            data = self._memory.get(key)
            if data is not None:
                self._memory.move_to_end(key)
                self._memory_hits += 1
                return data
        data = self._disk.read(key) if self._disk else None
        with self._lock:
            if data is None:
                self._misses += 1
            else:
                self._disk_hits += 1
                self._remember(key, data)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Store `data` under `key`; a disk that refuses is noted in `status`, not raised."""
        with self._lock:
            self._remember(key, data)
        if self._disk:
            self._disk.write(key, data)

    def clear(self) -> None:
        """Forget every entry, in memory and on disk."""
        with self._lock:
            self._memory.clear()
            self._memory_bytes = 0
        if self._disk:
            self._disk.clear()

    @property
    def disk_bytes(self) -> int:
        """What the entries on disk take, counted now."""
        return self._disk.measure() if self._disk else 0

    @property
    def status(self) -> CacheStatus:
        """Hits, misses, and why the disk half is off if it is."""
        directory = self._disk.directory if self._disk else None
        reason = self._disk.reason if self._disk else "the disk cache is turned off"
        with self._lock:
            return CacheStatus(directory, reason, self._memory_hits, self._disk_hits, self._misses)

    def _remember(self, key: str, data: bytes) -> None:
        self._memory_bytes += len(data) - len(self._memory.pop(key, b""))
        self._memory[key] = data
        while self._memory_bytes > MEMORY_BYTES and len(self._memory) > 1:
            _, dropped = self._memory.popitem(last=False)
            self._memory_bytes -= len(dropped)


def default_cache() -> KernelCache:
    """The cache that the settings ask for; one per directory and process."""
    now = settings()
    return _cache_at(now.cache_dir if now.cache else None, now.cache_bytes)


@cache
def _cache_at(directory: Path | None, max_bytes: int) -> KernelCache:
    return KernelCache(directory, max_bytes)


# ------------------------------------------------------------------------------- disk


class _Disk:
    """The directory half. No method raises for what the file system does."""

    def __init__(self, parent: Path, max_bytes: int) -> None:
        # A folder of our own, so that we never change the mode of one the user named.
        self.directory = parent / f"kernels-{FORMAT_VERSION}"
        self.max_bytes = max_bytes
        self.reason = ""
        self._ready = False
        self._bytes: int | None = None  # what we believe lies there; None: not counted yet
        self._numbers = itertools.count()
        self._lock = make_lock()

    def read(self, key: str) -> bytes | None:
        name = _digest([key])
        path = self._path(name)
        try:
            if not self._usable(create=False):
                return None
            entry = _read_private(path)
            payload = _unpack(name, entry)
            with suppress(OSError):  # a read-only directory keeps its order of age
                os.utime(path)
            return payload
        except FileNotFoundError:
            return None
        except OSError as error:
            self.reason = str(error)
            return None
        except CacheError as error:
            self.reason = str(error)
            with suppress(OSError):
                path.unlink()
            return None

    def write(self, key: str, payload: bytes) -> None:
        name = _digest([key])
        entry = _pack(name, payload)
        if len(entry) > self.max_bytes:
            self.reason = f"an entry of {len(entry)} bytes exceeds the limit of {self.max_bytes}"
            return
        try:
            if self._usable(create=True):
                self._replace(self._path(name), entry)
                self._make_room(len(entry))
                self.reason = ""
        except OSError as error:
            self.reason = str(error)

    def clear(self) -> None:
        with suppress(OSError):
            for _, _, path in self._entries():
                with suppress(OSError):
                    path.unlink()
        self._bytes = None

    def measure(self) -> int:
        with suppress(OSError):
            return sum(size for _, size, _ in self._entries())
        return 0

    def _path(self, name: bytes) -> Path:
        return self.directory / f"{name.hex()}{_SUFFIX}"

    def _usable(self, *, create: bool) -> bool:
        """Whether the directory is there, ours and private; remembers a yes."""
        if self._ready:
            return True
        if create:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.lstat(self.directory)
        if not stat.S_ISDIR(found.st_mode):
            self.reason = f"{self.directory} must be a directory"
        elif found.st_uid != os.geteuid():
            self.reason = f"{self.directory} must be ours, but belongs to user {found.st_uid}"
        elif found.st_mode & 0o022:
            self.reason = f"{self.directory} must not be writable by others"
        else:
            if found.st_mode & 0o077:
                os.chmod(self.directory, 0o700)
            self._ready = True
        return self._ready

    def _replace(self, path: Path, entry: bytes) -> None:
        """Write beside the place, then rename: readers see a whole entry or none."""
        unique = f"{os.getpid()}-{threading.get_ident()}-{next(self._numbers)}"
        beside = self.directory / f".{unique}.tmp"
        try:
            self._write_new(beside, entry)
            os.replace(beside, path)
        except BaseException as error:
            with suppress(OSError):
                beside.unlink()
            if isinstance(error, FileNotFoundError):
                self._ready = False  # the directory was taken away; look again next time
            raise

    @staticmethod
    def _write_new(path: Path, entry: bytes) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            rest = memoryview(entry)
            while rest:
                rest = rest[os.write(handle, rest) :]
        finally:
            os.close(handle)

    def _make_room(self, added: int) -> None:
        """Drop the entries used least recently once the directory exceeds its bound.

        Others write here too, so each time our own count passes the bound we look again.
        """
        with self._lock:
            if self._bytes is None:
                self._bytes = self.measure()
            else:
                self._bytes += added
            if self._bytes <= self.max_bytes:
                return
            entries = sorted(self._entries())
            total = sum(size for _, size, _ in entries)
            # Leaving some air makes this rare.
            wanted = self.max_bytes - self.max_bytes // 8
            for _, size, path in entries:
                if total <= wanted:
                    break
                with suppress(FileNotFoundError):  # another process was quicker
                    path.unlink()
                total -= size
            self._bytes = total

    def _entries(self) -> Iterator[tuple[int, int, Path]]:
        """(age, size, path) of each entry; abandoned temporary files go on the way."""
        with os.scandir(self.directory) as found:
            for item in found:
                with suppress(FileNotFoundError):
                    info = item.stat(follow_symlinks=False)
                    if item.name.endswith(_SUFFIX):
                        yield info.st_mtime_ns, info.st_size, Path(item.path)
                    elif item.name.endswith(".tmp") and time.time() - info.st_mtime > _ABANDONED_S:
                        os.unlink(item.path)


def _read_private(path: Path) -> bytes:
    """The bytes of a plain file; a link is not followed out of our directory."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with open(handle, "rb") as file:
        return file.read()


def _pack(name: bytes, payload: bytes) -> bytes:
    checksum = hashlib.sha256(payload).digest()
    return _HEADER.pack(_MAGIC, FORMAT_VERSION, name, len(payload), checksum) + payload


def _unpack(name: bytes, entry: bytes) -> bytes:
    """The payload of an entry that is whole and is the one we asked for."""
    if len(entry) < _HEADER.size:
        raise CacheError("cache", f"entry {name.hex()} must have a header, got {len(entry)} bytes.")
    magic, version, key, length, checksum = _HEADER.unpack_from(entry)
    payload = entry[_HEADER.size :]
    whole = length == len(payload) and checksum == hashlib.sha256(payload).digest()
    if magic != _MAGIC or version != FORMAT_VERSION or key != name or not whole:
        raise CacheError("cache", f"entry {name.hex()} is damaged, and is removed.")
    return payload
