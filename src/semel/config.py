"""Every setting of the process, typed, documented, and read from the environment once.

    environment  --settings()-->  Settings

Settings are immutable; `set_num_threads` and `override` swap the whole value, so that a
reader sees one consistent set. This is the only file that reads the environment, and it
does so at the first `settings()`, not at import: a program may still set variables after
`import semel`. The value is process-wide and not per thread, because the worker pool and
the kernel cache it steers are process-wide too.

    SEMEL_THREADS      participants of an execute, the caller included; default: all our cores
    SEMEL_CACHE        0 turns the on-disk cache of kernels and programs off; default 1
    SEMEL_CACHE_DIR    where it lies; default $XDG_CACHE_HOME/semel or ~/.cache/semel; nobody else
                       may be able to write to it, or to a folder above it
    SEMEL_CACHE_BYTES  how large it may grow (512M, 2G, plain bytes); default 512M
    SEMEL_DEBUG        comma list: poison (stale memory becomes NaN), jitter (random worker delays)
    SEMEL_DUMP         directory that receives the product of every compiler stage; default none
    SEMEL_LOG          comma list of what to tell through `logging`; default none, `all` for all:
                       schedule (which kernels, and why not fewer), compile (what was compiled, and
                       how long it took), cache (kernels found or not, by key), memory (where the
                       values of a plan lie), plan (growth), tune (choices and how they won)
    SEMEL_VERIFY       1 verifies the IR after every pass; default 0
    SEMEL_FUSION       0 gives every op its own kernel; default 1
    SEMEL_ARENA        0 gives every intermediate value bytes of its own; default 1
    SEMEL_TARGET       what to compile for: native (the default: this machine), or a level by name,
                       with features that it has besides: x86-64-v3, x86-64-v4+avx512vnni, aarch64;
                       what this machine cannot run is compiled and saved, but not prepared
    SEMEL_DEVICE       where plans, sessions and buffers are if nobody names a device: cpu (the
                       default), cpu:1, null, ...
    SEMEL_CPU_PARTITIONS  how many devices cpu:0, cpu:1, ... the cores are divided into; default 2
    SEMEL_SPIN_US      how long an idle worker spins before it sleeps; default 100
    SEMEL_COMPILE_PROCESSES  how many other processes, 7 at most unless said, help to compile graphs
                       of many kernels that no cache has, 0: none; default: one for each other core
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from semel.errors import UserError
from semel.locks import make_lock

DEBUG_MODES = frozenset({"poison", "jitter"})
LOG_TOPICS = frozenset({"schedule", "compile", "cache", "memory", "plan", "tune"})
MAX_THREADS = 1024
MAX_PARTITIONS = 256
MAX_SPIN_US = 1_000_000
MAX_PROCESSES = 64
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path there is to be ignored.
    if os.path.isabs(base):
        return Path(base) / "semel"
    home = os.path.expanduser("~")
    if os.path.isabs(home):
        return Path(home) / ".cache" / "semel"
    # A user without a home, as containers have them; others can make no folder of this name ours.
    return Path("/tmp") / f"semel-{os.getuid()}"


@dataclass(frozen=True, slots=True)
class Settings:
    """One consistent set of settings; the module's docstring says what each means."""

    threads: int | None = None
    cache: bool = True
    cache_dir: Path = field(default_factory=_default_cache_dir)
    cache_bytes: int = 512 << 20
    debug: frozenset[str] = frozenset()
    dump: Path | None = None
    log: frozenset[str] = frozenset()
    verify: bool = False
    fusion: bool = True
    arena: bool = True
    target: str = "native"
    device: str | None = None
    cpu_partitions: int = 2
    spin_us: int = 100
    compile_processes: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None:
            _check_range("threads", self.threads, 1, MAX_THREADS)
        _check_range("cache_bytes", self.cache_bytes, 0, 1 << 62)
        _check_range("cpu_partitions", self.cpu_partitions, 1, MAX_PARTITIONS)
        _check_range("spin_us", self.spin_us, 0, MAX_SPIN_US)
        if self.compile_processes is not None:
            _check_range("compile_processes", self.compile_processes, 0, MAX_PROCESSES)
        _check_words("debug", self.debug, DEBUG_MODES)
        _check_words("log", self.log, LOG_TOPICS | {"all"})


def _check_words(name: str, found: Collection[str], known: Set[str]) -> None:
    unknown = sorted(set(found) - known)
    if unknown:
        raise UserError(
            "config",
            f"{_variable(name)} must name some of {', '.join(sorted(known))}, "
            f"got {', '.join(unknown)!r}.",
        )


def _check_range(name: str, value: Any, low: int, high: int) -> None:
    _check_integer("config", _variable(name), value, low, high)


def _check_integer(where: str, what: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UserError(where, f"{what} must be an integer in [{low}, {high}], got {value!r}.")


def _variable(name: str) -> str:
    return f"SEMEL_{name.upper()}"


def _bool(text: str) -> bool:
    match text.lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off":
            return False
    raise ValueError("0 or 1")


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("an integer") from None


def _bytes(text: str) -> int:
    number, unit = (text[:-1], _UNITS[text[-1].lower()]) if text[-1:].isalpha() else (text, 1)
    return int(number) * unit


def parse_size(text: str) -> int:
    """A number of bytes such as 1048576, 512M or 2G."""
    try:
        return _bytes(text)
    except (KeyError, ValueError):
        raise ValueError("a number of bytes such as 1048576, 512M or 2G") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("a path below a home that exists") from None


# A parser raises ValueError(what must hold).
_PARSERS: dict[str, Callable[[str], Any]] = {
    "threads": _int,
    "cache": _bool,
    "cache_dir": _path,
    "cache_bytes": parse_size,
    "debug": lambda text: frozenset(_words(text)),
    "dump": _path,
    "log": lambda text: frozenset(_words(text)),
    "verify": _bool,
    "fusion": _bool,
    "arena": _bool,
    "target": str,
    "device": str,
    "cpu_partitions": _int,
    "spin_us": _int,
    "compile_processes": _int,
}


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Parse the SEMEL_ variables of `environ`; an empty value counts as unset."""
    values: dict[str, Any] = {}
    for name, parse in _PARSERS.items():
        text = environ.get(_variable(name), "").strip()
        if not text:
            continue
        try:
            values[name] = parse(text)
        except ValueError as error:
            raise UserError("config", f"{_variable(name)} must be {error}, got {text!r}.") from None
    return Settings(**values)


def environment_of_child(**changes: str) -> dict[str, str]:
    """The variables that a process of ours starts with: those of this one, some of them changed."""
    return {**os.environ, **changes}


_lock = make_lock()
_current: Settings | None = None


def settings() -> Settings:
    """The settings now in force; the first call reads the environment."""
    global _current  # noqa: PLW0603 - the one process-wide value, swapped whole
    if _current is None:
        with _lock:
            if _current is None:
                _current = read_settings(os.environ)
    return _current


def _swap(new: Settings) -> Settings:
    """Put `new` in force; returns what was in force before."""
    global _current  # noqa: PLW0603 - the one process-wide value, swapped whole
    with _lock:
        old = settings()
        _current = new
    return old


def set_num_threads(n: int) -> None:
    """Let later plans use `n` participants, the calling thread included.

    It holds for the process. For one plan there is `prepare(threads=n)`; the bits of a result are
    the same with any number.
    """
    _check_integer("set_num_threads", "n", n, 1, MAX_THREADS)
    with _lock:
        _swap(replace(settings(), threads=n))


@contextmanager
def override(**changes: Any) -> Iterator[Settings]:
    """Change settings for the duration of a `with`, for every thread; made for tests.

    Leaving the scope restores what was in force on entry, whatever was set inside.
    """
    known = [item.name for item in fields(Settings)]
    unknown = sorted(set(changes) - set(known))
    if unknown:
        raise UserError(
            "config.override", f"fields must be among {', '.join(known)}, got {', '.join(unknown)}."
        )
    with _lock:
        old = _swap(replace(settings(), **changes))
    try:
        yield settings()
    finally:
        _swap(old)
