"""Compiled kernels by content: in memory, and on disk between processes; whole programs on disk.

    KernelCache.get(key)     -->  object code, or None
    KernelCache.put(key, object code)
    KernelCache.get_program(key), put_program(key, bytes)
    load_cached(key, compile, load)  -->  object code, and that loaded
    find_cached, keep_cached         -->  its two halves, for those who compile many

A cache never decides whether a prepare works: no disk, a full one, a read-only one or
somebody else's directory leave the in-memory half, and `status` says why. An entry that
is in doubt in any way is removed and counts as a miss; a stale one cannot be found,
because the key (see `key`) covers everything that machine code depends on.

Entries are written beside their place and renamed into it, so that processes sharing a
directory see whole entries or none; there is no lock. We execute what lies there, so the
directory must be ours alone, and everybody on the way to it trusted (see `folder`).
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from semel.cache.folder import PrivateFolder, is_doubtful
from semel.cache.key import digest
from semel.config import settings
from semel.errors import CacheError, CompileError
from semel.locks import make_lock
from semel.topics import Topic

T = TypeVar("T")

FORMAT_VERSION = 1
MEMORY_BYTES = 128 << 20
MAX_ENTRY_BYTES = 64 << 20  # kernels take kilobytes

# magic, format version, digest of the key, payload bytes, digest of the payload
_HEADER = struct.Struct("<8sI32sQ32s")
_MAGIC = b"SEMELKC\0"
_KERNEL, _PROGRAM = ".kernel", ".program"
_CACHE, _COMPILE = Topic("cache"), Topic("compile")

# ------------------------------------------------------------------------------ cache


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """What the cache did and can do; `reason` is empty while the disk half works."""

    directory: Path | None
    reason: str
    memory_hits: int
    disk_hits: int
    misses: int
    program_hits: int = 0


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A kernel or a program on disk: a hash of its key, its bytes, and when it was used last."""

    name: str
    bytes: int
    used_at: float
    kind: str = "kernel"


class KernelCache:
    """Object code by key; safe for threads here and for other processes on the directory."""

    def __init__(self, directory: Path | None, max_bytes: int = 512 << 20) -> None:
        self._memory: OrderedDict[str, bytes] = OrderedDict()
        self._memory_bytes = 0
        self._disk = None if directory is None else _Disk(directory, max_bytes)
        self._lock = make_lock()
        self._memory_hits = self._disk_hits = self._misses = self._program_hits = 0

    def get(self, key: str) -> bytes | None:
        """The object code stored under `key`, or None."""
        with self._lock:
            data = self._memory.get(key)
            if data is not None:
                self._memory.move_to_end(key)
                self._memory_hits += 1
        if data is not None:
            _CACHE("%s: found in memory", key)
            return data
        data = self._disk.read(key, _KERNEL) if self._disk else None
        with self._lock:
            if data is None:
                self._misses += 1
            else:
                self._disk_hits += 1
                self._remember(key, data)
        _CACHE("%s: %s", key, "not found" if data is None else "found on disk")
        return data

    def put(self, key: str, data: bytes) -> None:
        """Store `data` under `key`; a disk that refuses is noted in `status`, not raised."""
        with self._lock:
            self._remember(key, data)
        if self._disk:
            self._disk.write(key, _KERNEL, data)

    def get_program(self, key: str) -> bytes | None:
        """What `put_program` was given under `key`; from disk alone, read anew each time."""
        data = self._disk.read(key, _PROGRAM) if self._disk else None
        with self._lock:
            self._program_hits += data is not None
        return data

    def put_program(self, key: str, data: bytes) -> None:
        """Store a program where other processes find it."""
        if self._disk:
            self._disk.write(key, _PROGRAM, data)

    def discard_program(self, key: str, reason: str) -> None:
        """Forget a program that turned out to be unusable."""
        if self._disk:
            self._disk.remove(key, _PROGRAM, reason)

    def clear(self) -> None:
        """Forget every entry, in memory and on disk."""
        with self._lock:
            self._memory.clear()
            self._memory_bytes = 0
        if self._disk:
            self._disk.clear()

    def discard(self, key: str, reason: str) -> None:
        """Forget an entry that turned out to be unusable; `status` says why."""
        with self._lock:
            self._memory_bytes -= len(self._memory.pop(key, b""))
        if self._disk:
            self._disk.remove(key, _KERNEL, reason)

    def entries(self) -> list[CacheEntry]:
        """What lies on disk now, used last first."""
        found = self._disk.entries() if self._disk else []
        made = []
        for file, info in found:
            name, _, kind = file.rpartition(".")
            made.append(CacheEntry(name, info.st_size, info.st_mtime, kind))
        return sorted(made, key=lambda entry: (-entry.used_at, entry.name))

    def prune(self, max_bytes: int | None = None, unused_s: float | None = None) -> None:
        """Drop from disk what nobody used for so long, then the oldest down to so many bytes."""
        if self._disk:
            self._disk.prune(max_bytes, unused_s)

    @property
    def disk_bytes(self) -> int:
        """What the entries on disk take, counted now."""
        return sum(info.st_size for _, info in self._disk.entries()) if self._disk else 0

    @property
    def disk_entries(self) -> int:
        """How many entries lie on disk, counted now."""
        return len(self._disk.entries()) if self._disk else 0

    @property
    def status(self) -> CacheStatus:
        """Hits, misses, and why the disk half is off if it is."""
        directory = self._disk.directory if self._disk else None
        reason = self._disk.reason if self._disk else "the disk cache is turned off"
        with self._lock:
            counts = self._memory_hits, self._disk_hits, self._misses, self._program_hits
            return CacheStatus(directory, reason, *counts)

    def _remember(self, key: str, data: bytes) -> None:
        self._memory_bytes += len(data) - len(self._memory.pop(key, b""))
        self._memory[key] = data
        while self._memory_bytes > MEMORY_BYTES and len(self._memory) > 1:
            _, dropped = self._memory.popitem(last=False)
            self._memory_bytes -= len(dropped)


def default_cache() -> KernelCache:
    """The cache that the settings ask for; one per directory and process, of those used last."""
    now = settings()
    return _cache_at(now.cache_dir if now.cache else None, now.cache_bytes)


def load_cached(
    key: str, compile_now: Callable[[], bytes], load: Callable[[bytes], T]
) -> tuple[bytes, T]:
    """Code by its key, and what `load` makes of it: from the cache in force, or compiled."""
    found = find_cached(key, load)
    return keep_cached(key, compile_now(), load) if found is None else found


def find_cached(key: str, load: Callable[[bytes], T]) -> tuple[bytes, T] | None:
    """What the cache in force has, loaded.

    An entry that does not load is no better than none: it goes, and is compiled again.
    """
    cache = default_cache()
    code = cache.get(key)
    if code is None:
        return None
    try:
        return code, load(code)
    except CompileError as error:
        cache.discard(key, str(error))
        return None


def keep_cached(key: str, code: bytes, load: Callable[[bytes], T]) -> tuple[bytes, T]:
    """Code that was compiled now, loaded and kept for others."""
    _COMPILE("%s: %d bytes of code", key, len(code))
    loaded = load(code)
    default_cache().put(key, code)
    return code, loaded


@lru_cache(maxsize=16)  # each holds a descriptor
def _cache_at(directory: Path | None, max_bytes: int) -> KernelCache:
    return KernelCache(directory, max_bytes)


# ------------------------------------------------------------------------------- disk


class _Disk:
    """The directory half. No method raises for what the file system does."""

    def __init__(self, parent: Path, max_bytes: int) -> None:
        # A folder of our own, so that we never change the mode of one the user named.
        self._folder = PrivateFolder(parent / f"kernels-{FORMAT_VERSION}")
        self.max_bytes = max_bytes
        self.reason = ""
        self._bytes: int | None = None  # what we believe lies there; None: not counted yet
        self._lock = make_lock()

    @property
    def directory(self) -> Path:
        return self._folder.path

    def read(self, key: str, kind: str) -> bytes | None:
        name = digest([key])
        file = name.hex() + kind
        try:
            payload = _unpack(name, self._folder.read(file, MAX_ENTRY_BYTES))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._note(str(error))
            return None
        except CacheError as error:
            self.remove(key, kind, str(error))
            return None
        with suppress(OSError, CacheError):  # a read-only directory keeps its order of age
            self._folder.touch(file)
        return payload

    def write(self, key: str, kind: str, payload: bytes) -> None:
        name = digest([key])
        entry = _pack(name, payload)
        limit = min(self.max_bytes, MAX_ENTRY_BYTES)
        if len(entry) > limit:
            self._note(f"an entry of {len(entry)} bytes exceeds the limit of {limit}")
            return
        try:
            self._folder.replace(name.hex() + kind, entry)
            self._make_room(len(entry))
            self.reason = ""
        except (OSError, CacheError) as error:
            self._note(str(error))

    def remove(self, key: str, kind: str, reason: str) -> None:
        """Remove an entry that is in doubt."""
        self._note(reason)
        self._remove(digest([key]).hex() + kind)

    def clear(self) -> None:
        for file, _ in self.entries():
            self._remove(file)
        self._bytes = None

    def prune(self, max_bytes: int | None, unused_s: float | None) -> None:
        now = time.time()
        with self._lock:
            for file, info in self.entries():
                if unused_s is not None and now - info.st_mtime > unused_s:
                    self._remove(file)
            self._bytes = None
            if max_bytes is not None:
                self._shrink(self.entries(), max_bytes)

    def entries(self) -> list[tuple[str, os.stat_result]]:
        """Name and state of each entry; none where the directory cannot be used."""
        try:
            return self._folder.entries((_KERNEL, _PROGRAM))
        except FileNotFoundError:
            return []
        except (OSError, CacheError) as error:
            self._note(str(error))
            return []

    def _note(self, reason: str) -> None:
        """Why the disk is of no use now."""
        self.reason = reason
        _CACHE("%s: %s", self.directory, reason)

    def _remove(self, file: str) -> bool:
        """Whether nothing has this name any more."""
        try:
            self._folder.remove(file)
        except FileNotFoundError:  # another process was quicker
            return True
        except (OSError, CacheError):
            return False
        return True

    def _make_room(self, added: int) -> None:
        """Drop the entries used least recently once the directory exceeds its bound.

        Others write here too, so each time our own count passes the bound we look again.
        What no reader would accept goes first, however young it is.
        """
        with self._lock:
            self._bytes = None if self._bytes is None else self._bytes + added
            if self._bytes is not None and self._bytes <= self.max_bytes:
                return
            entries = self.entries()
            self._bytes = sum(info.st_size for _, info in entries)
            if self._bytes <= self.max_bytes:
                return
            # Leaving some air makes this rare.
            self._bytes = self._shrink(entries, self.max_bytes - self.max_bytes // 8)

    def _shrink(self, entries: list[tuple[str, os.stat_result]], wanted: int) -> int:
        """Remove the oldest of these until so many bytes are left; how many are."""
        left = sum(info.st_size for _, info in entries)
        for file, info in sorted(entries, key=_age):
            if left <= wanted:
                break
            if self._remove(file):
                left -= info.st_size
        return left


def _age(entry: tuple[str, os.stat_result]) -> tuple[int, str]:
    file, info = entry
    return 0 if is_doubtful(info, MAX_ENTRY_BYTES) else info.st_mtime_ns, file


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
