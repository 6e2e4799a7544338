"""`semel cache`: what lies in the kernel cache on disk, and a way to empty it.

    info | clear  -->  directory, entries, bytes, and why the disk is not used if it is not

Beside the kernels lie the choices that `prepare(tune=True)` measured on this machine; they
are counted and cleared with them.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass

from semel.cache.kernels import KernelCache, default_cache
from semel.cli.report import Section, format_bytes, show
from semel.compiler.tuning_store import default_memory
from semel.config import settings
from semel.devices import choose_target
from semel.runtime.free import HOST_DEVICE


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
    """The command: show the cache, or empty it and say what went."""
    kernels = default_cache()
    before = inspect_cache(kernels)
    if arguments.action == "clear":
        kernels.clear()
        default_memory(choose_target(HOST_DEVICE)).clear()
    now = inspect_cache(kernels)
    if arguments.json:
        print(json.dumps({**asdict(now), "removed_bytes": before.bytes - now.bytes}, indent=2))
    elif arguments.action == "clear":
        removed = before.entries - now.entries
        size = format_bytes(before.bytes - now.bytes)
        print(f"Removed {removed} kernels, {size}, and {before.tuned} tuned choices.")
    else:
        show([Section("kernel cache", describe(now))])
    return 0


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
        ("kernels", str(info.entries)),
        ("size", f"{format_bytes(info.bytes)} of {format_bytes(info.max_bytes)} at most"),
        ("tuned", f"{info.tuned} choices for this machine"),
        ("state", info.reason or "in use"),
    )
