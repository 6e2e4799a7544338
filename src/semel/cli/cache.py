"""`semel cache`: what lies in the cache on disk, what it is good for, and ways to shrink it.

    info     -->  directory, entries, bytes, and why the disk is not used if it is not
    ls       -->  the entries, used last first
    explain  -->  what an entry is found by; with a model, which of its kernels were found
    prune    -->  without what nobody used for a while, or the oldest above a size
    clear    -->  empty

Entries are kernels, and whole programs of large graphs. Beside them lie the choices that
`prepare(tune=True)` measured on this machine; they are counted and cleared with them.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass

import semel
from semel.cache.kernels import KernelCache, default_cache
from semel.cache.key import CODE_SOURCES
from semel.cli.grammar import Commands, add_choices, add_command, add_target
from semel.cli.loaded import load_target
from semel.cli.report import Section, format_bytes, show
from semel.compiler.tuning_store import default_memory
from semel.config import parse_size, settings
from semel.devices import choose_target
from semel.errors import InputError
from semel.ir.signature import ABI_VERSION
from semel.runtime.free import HOST_DEVICE

ACTIONS = ("info", "ls", "explain", "prune", "clear")
_SHOWN = 20
_NAME_DIGITS = 16
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """The cache on disk now; `reason` is empty while it works."""

    directory: str
    entries: int
    bytes: int
    max_bytes: int
    reason: str
    tuned: int = 0


def run(arguments: argparse.Namespace) -> int:
    """The command: show the cache, or make it smaller and say what went."""
    actions = {"info": _info, "ls": _list, "explain": _explain, "prune": _prune, "clear": _clear}
    if arguments.target is not None and arguments.action != "explain":
        raise InputError("cache", f"{arguments.action} takes no model; explain does.")
    actions[arguments.action](arguments, default_cache())
    return 0


def _info(arguments: argparse.Namespace, kernels: KernelCache) -> None:
    now = inspect_cache(kernels)
    if arguments.json:
        print(json.dumps({**asdict(now), "removed_bytes": 0}, indent=2))
    else:
        show([Section("cache", describe(now))])


def _list(arguments: argparse.Namespace, kernels: KernelCache) -> None:
    entries = kernels.entries()
    if arguments.json:
        print(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    shown = entries if arguments.all else entries[:_SHOWN]
    rows = tuple(
        (
            entry.name[:_NAME_DIGITS],
            entry.kind,
            format_bytes(entry.bytes),
            format_age(entry.used_at),
        )
        for entry in shown
    )
    rest = len(entries) - len(shown)
    notes = (f"and {rest} others; --all shows them",) if rest else ()
    show([Section(f"{len(entries)} entries", rows, ("entry", "kind", "size", "used"), notes)])


def _explain(arguments: argparse.Namespace, kernels: KernelCache) -> None:
    target = choose_target(HOST_DEVICE)
    covers = {
        "kernel": "its text, without its name: equal kernels of all models share an entry",
        "program": "the graph without the data of params, constants, all sources and versions",
        "target": target.key,
        "abi": str(ABI_VERSION),
        "sources": f"{', '.join(CODE_SOURCES)} of semel {semel.__version__}, and LLVM's version",
    }
    used = {} if arguments.target is None else _use(arguments, kernels)
    if arguments.json:
        print(json.dumps({"key": covers, "prepare": used}, indent=2))
        return
    made = [Section("an entry is found by all of", tuple(covers.items()))]
    if used:
        rows = tuple((name.replace("_", " "), str(value)) for name, value in used.items())
        made.append(Section(f"prepare {arguments.target}", rows, notes=(_verdict(used),)))
    show(made)


def _use(arguments: argparse.Namespace, kernels: KernelCache) -> dict[str, float]:
    """Prepare a target, and count what was looked up for it."""
    before = kernels.status
    target = load_target(arguments)
    now = kernels.status
    return {
        "programs_found": now.program_hits - before.program_hits,
        "found_on_disk": now.disk_hits - before.disk_hits,
        "found_in_memory": now.memory_hits - before.memory_hits,
        "not_found": now.misses - before.misses,
        "seconds": round(target.seconds, 3),
    }


def _verdict(used: dict[str, float]) -> str:
    if used["programs_found"] and not used["not_found"]:
        return "The program was found whole: nothing had to be compiled, and no kernel looked up."
    if not used["not_found"]:
        return "Nothing had to be compiled."
    if used["found_on_disk"]:
        return "What was not found is new, or was removed; it is there now."
    return "Nothing was found: the first prepare, or semel, LLVM or the target changed since."


def _prune(arguments: argparse.Namespace, kernels: KernelCache) -> None:
    if arguments.max_bytes is None and arguments.days is None:
        raise InputError("cache", "prune needs --max-bytes or --days.")
    before = inspect_cache(kernels)
    unused_s = None if arguments.days is None else arguments.days * _DAY_S
    kernels.prune(arguments.max_bytes, unused_s)
    _tell_removed(arguments, before, inspect_cache(kernels))


def _clear(arguments: argparse.Namespace, kernels: KernelCache) -> None:
    before = inspect_cache(kernels)
    kernels.clear()
    default_memory(choose_target(HOST_DEVICE)).clear()
    _tell_removed(arguments, before, inspect_cache(kernels))


def _tell_removed(arguments: argparse.Namespace, before: CacheInfo, now: CacheInfo) -> None:
    size = before.bytes - now.bytes
    if arguments.json:
        print(json.dumps({**asdict(now), "removed_bytes": size}, indent=2))
        return
    tuned = f", and {before.tuned - now.tuned} tuned choices" if before.tuned > now.tuned else ""
    print(f"Removed {before.entries - now.entries} entries, {format_bytes(size)}{tuned}.")


def format_age(used_at: float) -> str:
    """How long ago that was, roughly."""
    seconds = max(time.time() - used_at, 0.0)
    for unit, length in (("days", _DAY_S), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """The grammar of the command."""
    text = "the compiled kernels and programs that are kept on disk"
    parser = add_command(commands, "cache", text, run)
    parser.add_argument("action", nargs="?", choices=ACTIONS, default="info")
    add_target(parser, is_optional=True)
    parser.add_argument("--all", action="store_true", help="ls: all entries")
    parser.add_argument("--max-bytes", type=_size, metavar="N", help="prune: 100M, 1G, ...")
    parser.add_argument("--days", type=float, metavar="N", help="prune: not used for so long")
    add_choices(parser)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be {error}, got {text!r}") from error


def inspect_cache(kernels: KernelCache) -> CacheInfo:
    """Count entries and bytes; looking one up first finds out whether the directory is usable."""
    kernels.get("")
    status = kernels.status
    return CacheInfo(
        directory="" if status.directory is None else str(status.directory),
        entries=kernels.disk_entries,
        bytes=kernels.disk_bytes,
        max_bytes=settings().cache_bytes,
        reason=status.reason,
        tuned=len(default_memory(choose_target(HOST_DEVICE)).entries()),
    )


def describe(info: CacheInfo) -> tuple[tuple[str, ...], ...]:
    """The cache as rows for people."""
    return (
        ("directory", info.directory or "none"),
        ("entries", str(info.entries)),
        ("size", f"{format_bytes(info.bytes)} of {format_bytes(info.max_bytes)} at most"),
        ("tuned", f"{info.tuned} choices for this machine"),
        ("state", info.reason or "in use"),
    )
