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
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from semel.config import settings
from semel.devices.cpu.toolchain import available_cores, host_model
from semel.ir.target import Target
from semel.locks import make_lock
from semel.version import VERSION

FORMAT_VERSION = 1
MAX_ENTRIES = 10_000
MAX_BYTES = 16 << 20

_log = logging.getLogger("semel.tune")


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


def machine_facts(target: Target) -> dict[str, Any]:
    """Everything about the machine that a measured choice depends on."""
    return {
        "model": host_model(),
        "target": target.key,
        "l1_bytes": target.l1_bytes,
        "l2_bytes": target.l2_bytes,
        "l3_bytes": target.l3_bytes,
        "cores": available_cores(),
        "semel": VERSION,
    }


class ChoiceMemory:
    """The choices for one machine; `directory` None keeps them for the process only."""

    def __init__(self, directory: Path | None, machine: Mapping[str, Any]) -> None:
        self._machine = dict(machine)
        self._lock = make_lock()
        self._own: dict[str, Remembered] = {}
        self._path: Path | None = None
        if directory is not None:
            name = hashlib.sha256(json.dumps(self._machine, sort_keys=True).encode()).hexdigest()
            self._path = directory / f"tuned-{FORMAT_VERSION}" / f"{name[:32]}.json"

    @property
    def path(self) -> Path | None:
        """The file of this machine, there or not."""
        return self._path

    def entries(self) -> dict[str, Remembered]:
        """All that is remembered now: by this process, and in the file."""
        found = {} if self._path is None else _read(self._path, self._machine)
        with self._lock:
            return {**found, **self._own}

    def add(self, new: Mapping[str, Remembered]) -> None:
        """Remember these; a disk that refuses is reported and does not stop a prepare."""
        with self._lock:
            self._own.update(new)
        if self._path is None or not new:
            return
        merged = {k: v for k, v in self.entries().items() if k not in new} | dict(new)
        kept = dict(list(merged.items())[-MAX_ENTRIES:])
        record = {
            "format": FORMAT_VERSION,
            "machine": self._machine,
            "choices": {key: asdict(value) for key, value in kept.items()},
        }
        try:
            _replace(self._path, json.dumps(record, indent=1))
        except OSError as error:
            _log.warning("[tune] choices cannot be kept in %s: %s", self._path, error)

    def clear(self) -> int:
        """Forget everything, for all machines that share the directory; how many files went."""
        with self._lock:
            self._own.clear()
        return 0 if self._path is None else clear_directory(self._path.parent)


def default_memory(target: Target) -> ChoiceMemory:
    """What the settings ask for; one per directory and machine in a process."""
    now = settings()
    directory = now.cache_dir if now.cache else None
    facts = machine_facts(target)
    key = (directory, json.dumps(facts, sort_keys=True))
    with _lock:
        return _memories.setdefault(key, ChoiceMemory(directory, facts))


_lock = make_lock()
_memories: dict[tuple[Path | None, str], ChoiceMemory] = {}


# ------------------------------------------------------------------------------- disk


def clear_directory(directory: Path) -> int:
    """Remove the files of all machines; how many there were."""
    count = 0
    for path in directory.glob("*.json"):
        with suppress(OSError):
            path.unlink()
            count += 1
    return count


def _read(path: Path, machine: Mapping[str, Any]) -> dict[str, Remembered]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with open(handle, "rb") as file:
            record = json.loads(file.read(MAX_BYTES))
        if record["format"] != FORMAT_VERSION or record["machine"] != machine:
            raise ValueError("it is another machine's, or of another version")
        return {str(key): _entry(value) for key, value in record["choices"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _log.warning("[tune] %s cannot be used and is taken for empty: %r", path, error)
        return {}


def _entry(value: Any) -> Remembered:
    values = {str(name): int(number) for name, number in value["values"].items()}
    return Remembered(
        str(value["choice"]),
        float(value["ratio"]),
        str(value["kernel"]),
        int(value["threads"]),
        values,
    )


def _replace(path: Path, text: str) -> None:
    """Write beside the place, then rename: readers see a whole file."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
