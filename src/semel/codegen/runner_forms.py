"""The short forms of the runner's text, and the LLVM IR that they stand for.

    %x = word %h.Header.BUSY        a word of a record of `semel.ir.abi`; `pointer` if it is an
                                    address, `at` for its place
    set %h.Header.BUSY = %x
    %x = atomic %place acquire      a word that other threads change
    atomic %place = %x release
    %won, %seen = swap %place, %old, %new acquire monotonic      (or %won alone)
    each %i from 0 to %n            what follows for every %i, up to `next %i`
    when %condition                 what follows if it holds, up to `end`; `unless`: if it does not

A loop tests before each iteration and goes back from wherever `next` stands. What is inside of
`when` may leave for good.
"""

from __future__ import annotations

import itertools
import re
from types import MappingProxyType

from semel.codegen.scalar.branches import (
    atomic_load,
    atomic_store,
    branch,
    compare_exchange,
    jump,
    phi,
)
from semel.errors import InternalError
from semel.ir import abi

_RECORDS = (
    abi.Base,
    abi.Event,
    abi.Header,
    abi.Lane,
    abi.Point,
    abi.Ring,
    abi.Row,
    abi.Segment,
    abi.Signal,
    abi.Step,
    abi.Submission,
    abi.Times,
    abi.Worker,
)
#: Places of the words of all records, by `Record.NAME`.
_WORDS = MappingProxyType(
    {f"{r.__name__}.{name}": m.value for r in _RECORDS for name, m in r.__members__.items()}
)
#: How a function ends, and what is written in those with loops or conditions.
_ENDS = "\n}\n"
_FORMS = ("\n  each ", "\n  when ", "\n  unless ", "\n  next ", "\n  end\n")
_BLOCK = re.compile(r"  (each|when|unless|next|end)\b")
_LABEL = re.compile(r"(\w+):")
_LEAVES = re.compile(r"  (ret|br|switch|unreachable)\b")
_EACH = re.compile(r"  each %(\w+) from (\S+) to (\S+)")
_NEXT = re.compile(r"  next %(\w+)")
_WHEN = re.compile(r"  (when|unless) (%\w+)")
_END = re.compile(r"  end")
#: The forms of one line; the groups of those that a line is not are None.
_LINE = re.compile(
    r"(?m)^  (?:"
    r"(%\w+)(?:, (%\w+))? = "
    r"(?:(word|pointer|at) (%\w+)\.([\w.]+)"
    r"|atomic (%\w+) (\w+)"
    r"|swap (%\w+), (\S+), (\S+) (\w+) (\w+))"
    r"|set (%\w+)\.([\w.]+) = (\S+)"
    r"|atomic (%\w+) = (\S+) (\w+)"
    r")$"
)


def expand_forms(text: str) -> str:
    """The text with every short form written out."""
    functions = [_expand_blocks(function) for function in text.split(_ENDS)]
    numbers = itertools.count(1)
    return _LINE.sub(lambda found: _line(found, next(numbers)), _ENDS.join(functions))


# ---------------------------------------------------------------- one line


def _line(found: re.Match[str], number: int) -> str:
    """What a form of one line stands for; `number` is no other form's."""
    result, seen, *groups = found.groups()
    if groups[0]:
        return _read(number, result, *groups[:3])
    if groups[3]:
        return f"  {result} = {atomic_load(*groups[3:5])}"
    if groups[5]:
        return _swap(number, result, seen, *groups[5:10])
    if groups[10]:
        at = f"%at{number}"
        return f"{_place(at, *groups[10:12])}\n  store i64 {groups[12]}, ptr {at}, align 8"
    return f"  {atomic_store(*groups[13:])}"


def _place(result: str, base: str, word: str) -> str:
    return f"  {result} = getelementptr i64, ptr {base}, i64 {_WORDS[word]}"


def _read(number: int, result: str, form: str, base: str, word: str) -> str:
    if form == "at":
        return _place(result, base, word)
    at, kind = f"%at{number}", "i64" if form == "word" else "ptr"
    return f"{_place(at, base, word)}\n  {result} = load {kind}, ptr {at}, align 8"


def _swap(
    number: int, won: str, seen: str | None, place: str, old: str, new: str, order: str, failed: str
) -> str:
    pair = f"%pair{number}"
    lines = [f"  {pair} = {compare_exchange(place, old, new, order, failed)}"]
    for result, position in ((seen, 0), (won, 1)):
        if result:
            lines.append(f"  {result} = extractvalue {{ i64, i1 }} {pair}, {position}")
    return "\n".join(lines)


# ---------------------------------------------------------------- blocks


def _expand_blocks(function: str) -> str:
    """A function with its loops and conditions as blocks; most have none of these forms."""
    return _Blocks(function).text if any(form in function for form in _FORMS) else function


class _Blocks:
    """Lines so far, the block that is open, and the loops and conditions around it."""

    def __init__(self, function: str) -> None:
        self._lines: list[str] = []
        self._label = "0"  # what LLVM calls a first block without a label
        self._open: list[tuple[str, int, str]] = []  # kind, line to fill in, name
        self._count = 0
        for line in function.splitlines():
            self._take(line)
        if self._open:
            raise InternalError("runner", f"{self._open[-1][0]} is not closed.")
        self.text = "\n".join(self._lines)

    def _take(self, line: str) -> None:
        block = _BLOCK.match(line)
        if block is None:
            label = _LABEL.match(line)
            self._label = label[1] if label else self._label
            self._lines.append(line)
        elif found := _EACH.fullmatch(line):
            self._each(*found.groups())
        elif found := _NEXT.fullmatch(line):
            self._next(found[1])
        elif found := _WHEN.fullmatch(line):
            self._when(found[1], found[2])
        elif _END.fullmatch(line):
            self._end()
        else:
            raise InternalError("runner", f"must be written as the forms are, got {line!r}.")

    def _begin(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._label = label

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _each(self, index: str, start: str, stop: str) -> None:
        name = self._name(f"{index}_")
        entry = self._label
        self._lines.append(jump(f"head_{name}"))
        self._begin(f"head_{name}")
        self._open.append((f"each %{index}", len(self._lines), name))
        # Where the loop comes back from is known at its end.
        self._lines.append(f"  %{index} = {phi('i64', (start, entry), (f'%next_{name}', 'BACK'))}")
        self._lines.append(f"  %more_{name} = icmp slt i64 %{index}, {stop}")
        self._lines.append(branch(f"%more_{name}", f"body_{name}", f"exit_{name}"))
        self._begin(f"body_{name}")

    def _next(self, index: str) -> None:
        at, name = self._close(f"each %{index}")
        self._lines[at] = self._lines[at].replace("%BACK]", f"%{self._label}]")
        self._lines.append(f"  %next_{name} = add i64 %{index}, 1")
        self._lines.append(jump(f"head_{name}"))
        self._begin(f"exit_{name}")

    def _when(self, form: str, condition: str) -> None:
        name = self._name("")
        labels = (f"then_{name}", f"end_{name}")
        self._lines.append(branch(condition, *(labels if form == "when" else labels[::-1])))
        self._begin(f"then_{name}")
        self._open.append(("when", len(self._lines), name))

    def _end(self) -> None:
        name = self._close("when")[1]
        if not _LEAVES.match(self._lines[-1]):
            self._lines.append(jump(f"end_{name}"))
        self._begin(f"end_{name}")

    def _close(self, kind: str) -> tuple[int, str]:
        """The innermost block, which must be of this kind."""
        opened, at, name = self._open.pop() if self._open else ("nothing", 0, "")
        if opened != kind:
            raise InternalError(
                "runner", f"the end of {kind} must come inside of it, is in {opened}."
            )
        return at, name
