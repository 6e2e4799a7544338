"""The key of a kernel in the caches: a hash of everything its machine code depends on.

    cache_key(text, target, tools, sources)  -->  key

That is the kernel's text, the target, the calling convention, the version of the tools that
compile it, and our own sources between a kernel's text and its machine code: the code generator
with all that it imports, and what the device's compiler adds (`sources`). `lower` is covered
too, because the choices remembered by `tune` are among its cuts; a test compares the list with
the imports. What comes before (passes, the scheduler, the ops) shows in the text, and may change
without making anything stale.

The sources on disk are not always those that run: somebody may edit them, or install
another version, after we imported them. Then, or where there are none to read (an archive,
compiled modules alone), the key is this process's own, and no other process ever asks for it.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import secrets
import time
from collections.abc import Hashable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from semel.ir.expr import Expr, Fn, Index, LateVariable, Variable
from semel.ir.signature import ABI_VERSION
from semel.ir.target import Target
from semel.ir.types import TensorType
from semel.topics import Topic

#: What the code for every device depends on.
CODE_SOURCES = ("errors.py", "locks.py", "written.py", "ir", "kernel", "lower", "codegen")

_PACKAGE = Path(__file__).parent.parent
_IMPORTED_NS = time.time_ns()

_CACHE = Topic("cache")


def cache_key(
    text: str, target: Target, tools: str, sources: tuple[str, ...], extra: Iterable[str] = ()
) -> str:
    """The hash of everything that the machine code of `text` depends on.

    `tools` names what compiles it, with its version; `sources` are files and folders of ours,
    besides `CODE_SOURCES`, that do.
    """
    parts = [
        text,
        str(ABI_VERSION),
        target.key,
        tools,
        running_fingerprint(_PACKAGE, sources),
        *extra,
    ]
    return digest(parts).hex()


def sources_key(sources: tuple[str, ...]) -> str:
    """The fingerprint of these sources and of `CODE_SOURCES`, as this process runs them."""
    return running_fingerprint(_PACKAGE, sources)


def digest(parts: Iterable[str]) -> bytes:
    """Length before each part, so that no two lists of parts run together the same."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode()
        sha.update(len(data).to_bytes(8, "little"))
        sha.update(data)
    return sha.digest()


def value_key(value: Hashable) -> str | None:
    """A hash of a value that is the same in every process; None if it holds what only this one has.

    Values whose keys are equal are equal.
    """
    data = io.BytesIO()
    writer = _Writer(data, protocol=5)
    writer.fast = True  # what is one object here may be two elsewhere: pickle refers to nothing
    try:
        writer.dump(value)
    except pickle.PicklingError:
        return None
    return hashlib.sha256(data.getbuffer()).hexdigest()


#: Packages whose types and functions mean the same wherever our sources and their versions do.
_KNOWN_PACKAGES = frozenset({"builtins", "copyreg", "ml_dtypes", "numpy", "semel"})


#: Types whose values are everywhere in a graph, a few of them: equal ones are written once.
_REPEATED = frozenset({Expr, Fn, Index, LateVariable, TensorType, Variable})


class _Writer(pickle.Pickler):
    """Writes values, and of types and functions those names that a key covers.

    What is equal to something before it refers to that by number, whether it is one object or two.
    """

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self._numbers: dict[Hashable, int] = {}

    def reducer_override(self, value: Any) -> Any:
        """What pickle does, if that says all there is to say."""
        if type(value) in _REPEATED:
            number = len(self._numbers)
            found = self._numbers.setdefault(value, number)
            return NotImplemented if found == number else (_again, (found,))
        module = value.__module__ if callable(value) else type(value).__module__
        if str(module).partition(".")[0] not in _KNOWN_PACKAGES:
            raise pickle.PicklingError(f"{value!r:.80} means nothing to other processes")
        return NotImplemented


def _again(number: int) -> None:
    """The name of what was written before; nobody reads it back."""


@cache
def running_fingerprint(root: Path, sources: tuple[str, ...] = ()) -> str:
    """The fingerprint of the sources that this process runs; its own where it cannot tell."""
    try:
        parts = [_running_part(root, source) for source in (*CODE_SOURCES, *sources)]
        changed_ns, last = max((part.changed_ns, part.last) for part in parts)
        if changed_ns <= _IMPORTED_NS:
            return _joined(parts)
        reason = f"{last} was changed after it was imported"
    except OSError as error:
        reason = str(error)
    _CACHE.warning("[cache] kernels of this process are not kept: %s", reason)
    return secrets.token_hex(32)


def source_fingerprint(root: Path, sources: tuple[str, ...] = ()) -> str:
    """The hash of the sources that decide which code a kernel's text becomes."""
    return _joined([_read_part(root, source) for source in (*CODE_SOURCES, *sources)])


class _Part(NamedTuple):
    """A source: its hash, and which of its files was changed last, and when."""

    digest: str
    changed_ns: int
    last: str


def _joined(parts: Iterable[_Part]) -> str:
    return digest(part.digest for part in parts).hex()


def _read_part(root: Path, source: str) -> _Part:
    sha, changed = hashlib.sha256(), (0, "")
    for path in _files(str(root / source)):
        with open(path, "rb") as file:
            data = file.read()
            changed = max(changed, (os.fstat(file.fileno()).st_ctime_ns, path))
        sha.update(f"{path[len(str(root)) :]} {len(data)}\n".encode())
        sha.update(data)
    return _Part(sha.hexdigest(), *changed)


#: Several keys cover the same sources.
_running_part = cache(_read_part)


def _files(place: str) -> list[str]:
    """The files of a source; one that is missing is named too, and cannot be read."""
    if place.endswith(".py"):
        return [place]
    found = (os.path.join(at, name) for at, _, names in os.walk(place) for name in names)
    return sorted(path for path in found if path.endswith(".py")) or [place]
