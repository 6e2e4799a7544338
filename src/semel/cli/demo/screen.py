"""How the demo is told while it happens.

    open_screen(to)  -->  Screen: part, line, table, working, stream

On a terminal with `rich`: colours, and a line that moves while something is done. Elsewhere plain
lines: one when something begins and one when something else is said of it, which a dot a second
makes longer for as long as it takes. Every line is out when the call is over.
"""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TextIO

from semel.cli.progress import Say
from semel.cli.report import Section, plain

_INDENT = "  "
_MOST_COLUMNS, _LEAST_COLUMNS = 80, 30
_BEAT_S = 1.0

Word = Callable[[str], None]


class Screen:
    """Plain lines."""

    def __init__(self, to: TextIO, columns: int = _MOST_COLUMNS) -> None:
        self._to = to
        self._columns = max(min(columns, _MOST_COLUMNS), _LEAST_COLUMNS)

    def part(self, title: str) -> None:
        """A new part of the story."""
        self._out(f"\n{title}\n")

    def line(self, text: str) -> None:
        """A fact."""
        self._out(f"{_INDENT}{text}\n")

    def table(self, section: Section) -> None:
        """Rows of facts."""
        for line in plain(section).splitlines():
            self.line(line)

    @contextmanager
    def working(self, what: str) -> Iterator[Say]:
        """Say that something is being done; call what it gives to say how far that is."""
        self._out(f"{_INDENT}{what} ...")
        try:
            with _Beat(_Dots(self._out, self._columns, len(what))) as beat:
                yield beat.say
        finally:
            self._out("\n")

    @contextmanager
    def stream(self) -> Iterator[Word]:
        """Words, one after the other, as they come."""
        at = 0

        def word(text: str) -> None:
            nonlocal at
            begin = "" if at else _INDENT * 2
            if at and at + 1 + len(text) > self._columns:
                begin, at = f"\n{_INDENT * 2}", 0
            begin = begin or " "
            self._out(begin + text)
            at += len(begin.lstrip("\n")) + len(text)

        try:
            yield word
        finally:
            self._out("\n")

    def _out(self, text: str) -> None:
        self._to.write(text)
        self._to.flush()


class _Dots:
    """A line for what is said, and a dot while it is the same but for its numbers."""

    def __init__(self, out: Callable[[str], None], columns: int, begun: int) -> None:
        self._out, self._columns, self._kind = out, columns, ""
        self._room = columns - len(_INDENT) - begun - len(" ...")

    def __call__(self, text: str, seconds: float) -> None:
        kind = re.sub(r"[\d.]+", "", text)
        if kind != self._kind:
            line = f"{_INDENT * 2}{text}, {seconds:.0f} s "
            self._out(f"\n{line}")
            self._kind, self._room = kind, self._columns - len(line)
        elif self._room > 0:
            self._out(".")
            self._room -= 1


class _Beat:
    """Calls `tell` once a second with what was said last, from a thread, until it ends."""

    def __init__(self, tell: Callable[[str, float], None]) -> None:
        self._tell, self._text = tell, ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def say(self, text: str) -> None:
        self._text = text

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._over.wait(_BEAT_S):
            self._tell(self._text, time.monotonic() - begin)

    def __enter__(self) -> _Beat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


class QuietScreen(Screen):
    """What is being done, and nothing else."""

    def part(self, title: str) -> None:
        pass

    def line(self, text: str) -> None:
        pass

    def table(self, section: Section) -> None:
        pass

    @contextmanager
    def working(self, what: str) -> Iterator[Say]:
        self._out(f"semel: {what} ...\n")
        yield lambda _: None

    @contextmanager
    def stream(self) -> Iterator[Word]:
        yield lambda _: None


class RichScreen(Screen):
    """The same in colours, by `rich`."""

    def __init__(self, console: Any) -> None:
        super().__init__(console.file, console.width)
        self._console = console

    def part(self, title: str) -> None:
        self._styled(f"\n{title}", "bold cyan")

    def table(self, section: Section) -> None:
        for i, line in enumerate(plain(section).splitlines()):
            self._styled(_INDENT + line, "dim" if not i and section.head else "")

    @contextmanager
    def working(self, what: str) -> Iterator[Say]:
        from rich.text import Text  # optional, and here: there is a console

        with self._console.status(Text(f"{what} ...")) as status:
            yield lambda text: status.update(Text(f"{what}: {text}"))

    def _out(self, text: str) -> None:
        self._styled(text.removesuffix("\n"), "", end="\n" if text.endswith("\n") else "")

    def _styled(self, text: str, style: str, end: str = "\n") -> None:
        from rich.text import Text

        self._console.print(Text(text, style=style), end=end, soft_wrap=True)
        self._to.flush()


def open_screen(*, quiet: bool = False) -> Screen:
    """The richest form that stdout takes; a quiet one is on stderr."""
    if quiet:
        return QuietScreen(sys.stderr)
    if sys.stdout.isatty() and find_spec("rich") is not None:
        from rich.console import Console  # optional: colours for people

        console = Console(highlight=False)
        if not console.is_dumb_terminal:
            return RichScreen(console)
    return Screen(sys.stdout, shutil.get_terminal_size().columns)
