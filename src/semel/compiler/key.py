"""The key of a kernel in the caches: a hash of everything its machine code depends on.

    cache_key(text, target)  -->  key

That is the kernel's text, the target, the calling convention, LLVM, and our own sources
between a kernel's text and its machine code: the code generator with all that it imports.
`lower` is covered too, because the choices remembered by `tune` are among its cuts; a test
compares the list with the imports. What comes before (passes, the scheduler, the ops) shows
in the text, and may change without making anything stale.

The sources on disk are not always those that run: somebody may edit them, or install
another version, after we imported them. Then, or where there are none to read (an archive,
compiled modules alone), the key is this process's own, and no other process ever asks for it.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from semel.ir.signature import ABI_VERSION
from semel.ir.target import Target

CODE_SOURCES = (
    "errors.py",
    "locks.py",
    "ir",
    "kernel",
    "lower",
    "codegen",
    "devices/cpu",
    "runtime/cgroup.py",
    "compiler/artefacts.py",
)

_PACKAGE = Path(__file__).parent.parent
_IMPORTED_NS = time.time_ns()

_log = logging.getLogger("semel.cache")


def cache_key(kernel_text: str, target: Target, extra: Iterable[str] = ()) -> str:
    """The hash of everything the machine code of `kernel_text` depends on."""
    parts = [
        kernel_text,
        str(ABI_VERSION),
        target.key,
        toolchain_version(),
        running_fingerprint(_PACKAGE),
        *extra,
    ]
    return digest(parts).hex()


def digest(parts: Iterable[str]) -> bytes:
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
    return f"{digest(versions).hex()} {sizes}"


@cache
def running_fingerprint(root: Path) -> str:
    """The fingerprint of the sources that this process runs; its own where it cannot tell."""
    try:
        fingerprint = source_fingerprint(root)
        changed = [file for file in _sources(root) if file.stat().st_ctime_ns > _IMPORTED_NS]
        if not changed:
            return fingerprint
        reason = f"{changed[0]} was changed after it was imported"
    except OSError as error:
        reason = str(error)
    _log.warning("[cache] kernels of this process are not kept: %s", reason)
    return secrets.token_hex(32)


def source_fingerprint(root: Path) -> str:
    """The hash of the sources that decide which code a kernel's text becomes."""
    sha = hashlib.sha256()
    for file in _sources(root):
        data = file.read_bytes()
        sha.update(f"{file.relative_to(root)} {len(data)}\n".encode())
        sha.update(data)
    return sha.hexdigest()


def _sources(root: Path) -> Iterator[Path]:
    """The files of `CODE_SOURCES`; one that is missing is yielded too, and cannot be read."""
    for source in CODE_SOURCES:
        place = root / source
        yield from [place] if place.suffix else (sorted(place.rglob("*.py")) or [place])
