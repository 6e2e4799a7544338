"""What a command says, as data, and how it becomes text.

    Section...  --show-->  stdout: aligned plain text, or tables by `rich`

A section is a title, a table whose first row may be a head, and notes below it. Plain text
is ASCII and aligned by columns, so that it reads the same in a log, a pipe and a narrow or
dumb terminal; `rich` is used only where it is installed and someone is looking.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

_GAP = "  "
_RICH_COLUMNS = 72
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Section:
    """A titled table. Columns after the first are set flush right if `head` is given."""

    title: str
    rows: tuple[tuple[str, ...], ...] = ()
    head: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def show(sections: Sequence[Section]) -> None:
    """Write sections to stdout in the richest form that it takes."""
    if _is_rich():
        _show_rich(sections)
    else:
        print("\n\n".join(plain(section) for section in sections))


def _is_rich() -> bool:
    """Below some width `rich` would cut numbers short, and plain lines only wrap."""
    if not sys.stdout.isatty() or find_spec("rich") is None:
        return False
    return shutil.get_terminal_size().columns >= _RICH_COLUMNS


def plain(section: Section) -> str:
    """A section as aligned ASCII text."""
    lines = [section.title, "-" * len(section.title)] if section.title else []
    rows = ([section.head] if section.head else []) + list(section.rows)
    widths = _widths(rows)
    lines += [_line(row, widths, right=bool(section.head)) for row in rows]
    lines += section.notes
    return "\n".join(lines)


def _widths(rows: Sequence[tuple[str, ...]]) -> list[int]:
    columns = max((len(row) for row in rows), default=0)
    return [max(len(row[i]) for row in rows if i < len(row)) for i in range(columns)]


def _line(row: tuple[str, ...], widths: Sequence[int], *, right: bool) -> str:
    cells = [
        cell.rjust(width) if right and i else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=False))
    ]
    return _GAP.join(cells).rstrip()


def _show_rich(sections: Sequence[Section]) -> None:
    from rich.console import Console  # optional: colours for people
    from rich.text import Text

    console = Console(highlight=False)
    for section in sections:
        console.print(Text(section.title, style="bold cyan"))
        if section.rows:
            console.print(_rich_table(section))
        for note in section.notes:
            console.print(Text(note, style="dim"))
        console.print()


def _rich_table(section: Section) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=bool(section.head), box=None, pad_edge=False)
    for i, name in enumerate(section.head or section.rows[0]):
        head = Text(name, style="dim") if section.head else ""
        table.add_column(head, justify="right" if section.head and i else "left")
    for row in section.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def terminal_width() -> int | None:
    """How wide lines may be: those that nobody looks at on a terminal, as wide as they are."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def format_bytes(size: float) -> str:
    """A size with three digits or so and a binary unit."""
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.3g} {_UNITS[unit]}"


def count_of(number: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_seconds(seconds: float) -> str:
    """A duration in the unit that gives it a few digits before the point."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"
