"""Choices that were measured on this machine, kept between processes.

    ChoiceMemory.find(key)  -->  Remembered, or None
    ChoiceMemory.add({key: Remembered})

One JSON file per machine lies beside the kernel cache: its name is a hash of the processor's
model, its features, caches and cores, and of our version, so that a directory shared by
several machines keeps their choices apart. An entry's key covers the kernel, the code
generator and the number of threads. A choice is remembered by its name and looked up
among the candidates of the day, so that no file, whatever is in it, can make wrong code.

A file that cannot be used is reported to `logging` (semel.tune) and taken for empty; the
next measurement replaces it. Writers merge what they find and rename a whole file into
place; of two that write at once, one may lose entries, which then are measured again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from semel.cache.folder import PrivateFolder
from semel.config import settings
from semel.errors import CacheError
from semel.ir.target import Target
from semel.locks import make_lock
from semel.runtime.device import find_device
from semel.runtime.free import HOST_DEVICE
from semel.topics import Topic
from semel.version import VERSION

FORMAT_VERSION = 1
MAX_ENTRIES = 10_000
MAX_BYTES = 16 << 20

_SUFFIX = ".json"
# What reading something else as a record raises.
_NOT_A_RECORD = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)

_TUNE = Topic("tune")


@dataclass(frozen=True, slots=True)
class Remembered:
    """What won: its `choice` by name, its time as a `ratio` of the default's, and where.

    `kernel` is for people; `values` are the sizes that it was measured at.
    """

    choice: str
    ratio: float
    kernel: str
    threads: int
    values: Mapping[str, int]


def machine_facts(target: Target, device: str = HOST_DEVICE) -> dict[str, Any]:
    """Everything about the machine that a measured choice depends on."""
    return {
        **find_device(device).facts(),
        "target": target.key,
        "l1_bytes": target.l1_bytes,
        "l2_bytes": target.l2_bytes,
        "l3_bytes": target.l3_bytes,
        "semel": VERSION,
    }


class ChoiceMemory:
    """The choices for one machine; `directory` None keeps them for the process only."""

    def __init__(self, directory: Path | None, machine: Mapping[str, Any]) -> None:
        self._machine = dict(machine)
        self._lock = make_lock()
        self._own: dict[str, Remembered] = {}
        self._told = ""
        #: The file as it was when it was read last, and what it said.
        self._seen: _Stamp | None = None
        self._found: dict[str, Remembered] = {}
        name = hashlib.sha256(json.dumps(self._machine, sort_keys=True).encode()).hexdigest()
        self._file = f"{name[:32]}{_SUFFIX}"
        self._folder: PrivateFolder | None = None
        if directory is not None:
            self._folder = PrivateFolder(directory / f"tuned-{FORMAT_VERSION}")

    @property
    def path(self) -> Path | None:
        """The file of this machine, there or not."""
        return None if self._folder is None else self._folder.path / self._file

    def entries(self) -> dict[str, Remembered]:
        """All that is remembered now: by this process, and in the file."""
        found = {} if self._folder is None else self._read(self._folder)
        with self._lock:
            return {**found, **self._own}

    def add(self, new: Mapping[str, Remembered]) -> None:
        """Remember these; a disk that refuses is reported and does not stop a prepare."""
        with self._lock:
            self._own.update(new)
        if self._folder is None or not new:
            return
        merged = {k: v for k, v in self.entries().items() if k not in new} | dict(new)
        kept = dict(list(merged.items())[-MAX_ENTRIES:])
        record = {
            "format": FORMAT_VERSION,
            "machine": self._machine,
            "choices": {key: asdict(value) for key, value in kept.items()},
        }
        try:
            self._folder.replace(self._file, json.dumps(record, indent=1).encode())
        except (OSError, CacheError) as error:
            self._tell(f"choices cannot be kept in {self._folder.path}: {error}")

    def clear(self) -> int:
        """Forget everything, for all machines that share the directory; how many files went."""
        with self._lock:
            self._own.clear()
        return 0 if self._folder is None else _clear(self._folder)

    def _read(self, folder: PrivateFolder) -> dict[str, Remembered]:
        """What the file says; every prepare asks, so it is read again only when it changed."""
        try:
            stamp = _stamp(folder.path / self._file)
            with self._lock:
                if stamp == self._seen:
                    return self._found
            record = json.loads(folder.read(self._file, MAX_BYTES))
            if record["format"] != FORMAT_VERSION or record["machine"] != self._machine:
                raise ValueError("it is another machine's, or of another version")
            found = {str(key): _entry(value) for key, value in record["choices"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, CacheError, *_NOT_A_RECORD) as error:
            self._tell(f"{self.path} cannot be used and is taken for empty: {error!r}")
            return {}
        with self._lock:
            self._seen, self._found = stamp, found
        return found

    def _tell(self, trouble: str) -> None:
        """Report what is wrong with the disk; once, for every prepare asks."""
        if trouble != self._told:
            self._told = trouble
            _TUNE.warning("[tune] %s", trouble)


def default_memory(target: Target, device: str = HOST_DEVICE) -> ChoiceMemory:
    """What the settings ask for; one per directory and machine in a process."""
    now = settings()
    directory = now.cache_dir if now.cache else None
    facts = machine_facts(target, device)
    key = (directory, tuple(facts.items()))
    with _lock:
        if key not in _memories:
            _memories[key] = ChoiceMemory(directory, facts)
        return _memories[key]


_lock = make_lock()
_memories: dict[Hashable, ChoiceMemory] = {}


# ------------------------------------------------------------------------------- disk

_Stamp = tuple[int, ...]


def _stamp(path: Path) -> _Stamp:
    """What changes when a file does. Nothing is believed for it: what is read is judged then."""
    info = path.lstat()
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _clear(folder: PrivateFolder) -> int:
    """Remove the files of all machines; how many there were."""
    count = 0
    with suppress(OSError, CacheError):
        for name, _ in folder.entries(_SUFFIX):
            with suppress(OSError):
                folder.remove(name)
                count += 1
    return count


def _entry(value: Any) -> Remembered:
    values = {str(name): int(number) for name, number in value["values"].items()}
    return Remembered(
        str(value["choice"]),
        float(value["ratio"]),
        str(value["kernel"]),
        int(value["threads"]),
        values,
    )
