"""What a change changes: the products of every stage for a fixed corpus, tree against tree.

    python -m benchmarks.replay write FOLDER        a file per product of each graph of the corpus
    python -m benchmarks.replay compare OLD         this tree against another checkout, or a folder

For each graph (`benchmarks.corpus`): the graph, the schedule with its reasons, the text of each
kernel, the names and code of the kernels that the plan calls, its rows, steps and memory, and the
bytes of its plan file before the constants (header and code). Same tree, same bytes. Code is for
one machine, whichever runs it, unless the other tree is so old that it knows only its own
(`--target native`). What a tree cannot build is listed with the reason: old ones lack newer names.

A tree is written by a process of its own, which imports `semel` from there and the corpus from
here. It executes nothing but the compiler.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
TARGET = "x86-64-v3"
#: The prefix of a plan file: where its header ends, and where its constants begin.
_PREFIX = struct.Struct("<8sIIQQ")
_PREFIX_BYTES = 64
#: Kinds and flags of sections of an ELF object.
_PROGBITS, _RELOCATIONS, _LOADED = 1, 4, 2
SUMMARY = "replay.json"


@dataclass(frozen=True, slots=True)
class Replayed:
    """One graph: the hash of each product by its name, and the bytes of header and code.

    `error` is why it could not be built.
    """

    name: str
    products: dict[str, str] = field(default_factory=dict)
    header_bytes: int = 0
    code_bytes: int = 0
    error: str = ""

    @property
    def file_bytes(self) -> int:
        return self.header_bytes + self.code_bytes


# ---------------------------------------------------------------- one tree


def write_corpus(folder: Path, names: Sequence[str], target: str) -> list[Replayed]:
    """The products of these graphs, or of all, in a folder each, by the imported `semel`."""
    from benchmarks.corpus import CORPUS

    found = [_write_graph(folder / name, name, target) for name in names or CORPUS]
    summary = [asdict(each) for each in found]
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
    return found


def _write_graph(folder: Path, name: str, target: str) -> Replayed:
    from benchmarks.corpus import CORPUS
    from semel.config import override

    folder.mkdir(parents=True, exist_ok=True)
    try:
        with override(dump=folder):
            plan = _prepare(CORPUS[name](), target)
        _make_comparable(folder)
        (folder / "kernels.txt").write_text("\n".join(_kernel_lines(plan)) + "\n")
        (folder / "plan.txt").write_text("\n".join(_plan_lines(plan)) + "\n")
        header, code = _file_bytes(plan)
    except Exception as error:
        first = str(error).splitlines() or [""]
        return Replayed(name, error=f"{type(error).__name__}: {first[0]}"[:160])
    products = {path.name: _digest(path.read_bytes()) for path in sorted(folder.glob("*.txt"))}
    return Replayed(name, products, header, code)


def _make_comparable(folder: Path) -> None:
    """Undo what differs between trees and processes and means nothing."""
    for path in folder.glob("*-schedule.txt"):
        path.write_text(_renumbered(path.read_text()))
    for path in sorted(folder.glob("*-kernel-*-*.txt")):  # older trees leave the name out
        stem, _, name = path.stem.rpartition("-")
        short = path.with_name(f"{stem}.txt")
        if not name.isdigit() and not short.exists():
            path.rename(short)


def _renumbered(text: str) -> str:
    """A log that numbers nodes as the process made them, with numbers of its own."""
    numbers: dict[str, str] = {}
    return re.sub(r"%\d+", lambda m: numbers.setdefault(m[0], f"%{len(numbers)}"), text)


def _prepare(made: Any, target: str) -> Any:
    import semel

    options: dict[str, Any] = {"threads": 2}
    prepare = made.prepare if hasattr(made, "prepare") else semel.prepare
    if target != "native":
        if "target" not in inspect.signature(semel.prepare).parameters:
            raise NotImplementedError("this tree compiles for its own machine (--target native)")
        options["target"] = target
    if "tune" in inspect.signature(semel.prepare).parameters:
        options["tune"] = False
    return prepare(**options) if hasattr(made, "prepare") else prepare(made, **options)


def _kernel_lines(plan: Any) -> Iterator[str]:
    """The kernels in order of first use: size and hash of the code; rows have their names."""
    for kernel in plan.kernels:
        yield f"{len(kernel.code)} {_digest(b''.join(_machine_code(kernel.code)))}"


def _machine_code(data: bytes) -> Iterator[bytes]:
    """What is loaded of an ELF object, and what is relocated in it, without symbols.

    The name of a kernel's symbol is its key in the cache, which the sources of the compiler go
    into: it differs from tree to tree, and so does where it stands in its table.
    """
    (sections,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    for at in range(sections, sections + size * count, size):
        _, kind, flags, _, start, length = struct.unpack_from("<IIQQQQ", data, at)
        if kind == _PROGBITS and flags & _LOADED:
            yield data[start : start + length]
        elif kind == _RELOCATIONS:
            for offset, info, addend in struct.iter_unpack("<QQq", data[start : start + length]):
                yield struct.pack("<QIq", offset, info & 0xFFFFFFFF, addend)


#: What records of rows hold that says where they run, and no pointers.
_FIELDS = (
    *("buffer_indices", "output_indices", "dependencies", "fixedvars", "byte_offset", "byte_size"),
    *("counter", "trip", "limits", "guards", "size", "lane"),
)
#: What they hold if nobody says more; older records lack some of them.
_USUAL: tuple[Any, ...] = (None, (), {}, "compute")


def _plan_lines(plan: Any) -> Iterator[str]:
    """The rows, as far as trees of any age say it; steps, order and memory."""
    for position, row in enumerate(plan.prepared_ops):
        kernel = getattr(row, "kernel", None)
        called = "" if kernel is None else f" {kernel.name}"
        held = {name: getattr(row, name, None) for name in _FIELDS}
        held = {name: _plain(value) for name, value in held.items() if value not in _USUAL}
        yield f"{position} {type(row).__name__}{called} {held}"
    yield f"steps {plan.steps}"
    yield f"order {plan.op_order}"
    yield f"outputs {[(str(b.type), b.capacity_bytes) for b in plan.output_buffers]}"
    memory = plan.memory
    for what in ("weights_bytes", "arena_bytes", "io_bytes", "state_bytes"):
        yield f"{what} {getattr(memory, what, 0)}"


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _file_bytes(plan: Any) -> tuple[int, int]:
    """Bytes of the header of its file, and of the code behind it; padding counts as neither."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan"
        plan.save(path)
        data = path.read_bytes()
    _, _, _, header, constants = _PREFIX.unpack_from(data)
    return header, len(data[_PREFIX_BYTES + header : constants].rstrip(b"\0"))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


# ---------------------------------------------------------------- two trees


@dataclass(frozen=True, slots=True)
class Difference:
    """What became of one graph from the old tree to the new one.

    `changed` are the products that differ. `ratio` is that of header and code, new by old; None if
    a tree could not build it.
    """

    name: str
    changed: tuple[str, ...] = ()
    ratio: float | None = None
    missing: str = ""


def compare(old: Iterable[Replayed], new: Iterable[Replayed]) -> list[Difference]:
    """Graph by graph, in the order of the corpus."""
    before = {each.name: each for each in old}
    found = []
    for now in new:
        then = before.get(now.name, Replayed(now.name, error="it has not been written there"))
        errors = [f"{which}: {r.error}" for which, r in (("old", then), ("new", now)) if r.error]
        if errors:
            found.append(Difference(now.name, missing="; ".join(errors)))
            continue
        names = sorted({_kind(p) for p in _differing(then.products, now.products)})
        found.append(Difference(now.name, tuple(names), now.file_bytes / then.file_bytes))
    return found


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> set[str]:
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def _kind(product: str) -> str:
    """`kernel texts` for all of `03-kernel-0.txt`, `03-kernel-1.txt`, ..."""
    if product == "kernels.txt":
        return "code"
    return "kernel texts" if "-kernel-" in product else product.removesuffix(".txt")


def lines(differences: Sequence[Difference], old_bytes: int, new_bytes: int) -> Iterator[str]:
    """The comparison for people: what differs, what could not be built, the bytes."""
    compared = [each for each in differences if each.ratio is not None]
    for each in compared:
        if each.changed:
            yield f"{each.name:20} {each.ratio:5.2f}x  differs: {', '.join(each.changed)}"
    for each in differences:
        if each.missing:
            yield f"{each.name:20}   -     not built, {each.missing}"
    same = sum(not each.changed for each in compared)
    failed = len(differences) - len(compared)
    yield f"{len(compared)} graphs compared, {same} the same; {failed} not built"
    ratios = [each.ratio for each in compared if each.ratio is not None]
    if ratios:
        mean = exp(sum(map(log, ratios)) / len(ratios))
        total = new_bytes / old_bytes
        yield f"header and code: {new_bytes:,} bytes, {old_bytes:,} before, {total:.3f}x"
        yield f"by graph {min(ratios):.2f}x to {max(ratios):.2f}x, geometric mean {mean:.3f}x"


def write_tree(tree: Path, folder: Path, names: Sequence[str], target: str) -> None:
    """Let a process of its own write the corpus by the `semel` of a tree."""
    path = os.pathsep.join([str(tree / "src"), str(HERE)])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-m", "benchmarks.replay", "write", str(folder), *names]
    subprocess.run([*command, "--target", target], check=True, env=environment, cwd=folder)


def read_corpus(folder: Path) -> list[Replayed]:
    """What was written to a folder."""
    return [Replayed(**each) for each in json.loads((folder / SUMMARY).read_text())]


def compare_trees(old: Path, keep: Path, names: Sequence[str], target: str) -> list[str]:
    """This tree against another one, or against a folder that was written; products stay here."""
    sides = []
    for tree, name in ((old, "old"), (HERE, "new")):
        folder = keep / name
        if (tree / SUMMARY).exists():
            folder = tree
        else:
            folder.mkdir(parents=True, exist_ok=True)
            write_tree(tree, folder, names, target)
        sides.append(read_corpus(folder))
    before, now = sides
    found = compare(before, now)
    shared = {each.name for each in found if each.ratio is not None}
    sizes = [sum(r.file_bytes for r in side if r.name in shared) for side in sides]
    return [*lines(found, *sizes), f"products are in {keep}: diff -r old new"]


def main(argv: Sequence[str] | None = None) -> int:
    """`write` or `compare`."""
    parser = argparse.ArgumentParser("replay", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("where", type=Path, help="a folder to write to; a checkout, or a folder")
    parser.add_argument("graphs", nargs="*", help="of the corpus; default: all")
    parser.add_argument("--target", default=TARGET, help=f"default {TARGET}")
    parser.add_argument("--keep", type=Path, help="where products stay; default: a new folder")
    given = parser.parse_args(argv)
    where = given.where.resolve()
    if given.what == "write":
        where.mkdir(parents=True, exist_ok=True)
        found = write_corpus(where, given.graphs, given.target)
        failed = [each for each in found if each.error]
        print(
            *(f"{each.name}: {each.error}" for each in failed), sep="\n", end="\n" if failed else ""
        )
        print(f"{len(found) - len(failed)} graphs written to {where}, {len(failed)} not built")
        return 0
    keep = given.keep or Path(tempfile.mkdtemp(prefix="replay-"))
    print(*compare_trees(where, keep.resolve(), given.graphs, given.target), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
