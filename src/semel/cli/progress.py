"""What is under way, while it takes long.

    with working("prepare model.onnx"): ...   -->  stderr: a line that moves, or plain lines

On a terminal with `rich` it is one line with a spinner. Elsewhere a plain line is written when
something has happened and the last one is a while ago, so that quick work stays silent. Stages and
kernels are heard from the topic `compile`, unless somebody else asked to hear it.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

from semel.cli.report import count_of
from semel.config import settings

_QUIET_S = 1.0
_STAGES = {
    "graph": "rewriting the graph",
    "schedule": "choosing kernels",
    "weights": "laying out weights",
    "kernels": "writing kernels",
    "tune": "measuring choices",
    "artefacts": "making machine code",
    "program": "linking",
}

Say = Callable[[str], None]


@contextmanager
def working(what: str) -> Iterator[Say]:
    """Show that something is being done; call what it gives to say how far that is."""
    with _spinner(what) if _is_rich() else nullcontext(_Lines(what)) as say, heard(say):
        yield say


def _is_rich() -> bool:
    return sys.stderr.isatty() and find_spec("rich") is not None


@contextmanager
def _spinner(what: str) -> Iterator[Say]:
    from rich.console import Console  # optional: a line that moves
    from rich.text import Text

    with Console(stderr=True).status(Text(what)) as status:
        yield lambda text: status.update(Text(f"{what}: {text}"))


class _Lines:
    """Plain lines, with a while between them."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._begin = self._last = time.monotonic()

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last >= _QUIET_S:
            self._last = now
            print(f"semel: {self._what}: {text} ({now - self._begin:.0f} s)", file=sys.stderr)


class _Listener(logging.Handler):
    """Stages of a prepare, and kernels as they are compiled."""

    def __init__(self, say: Say) -> None:
        super().__init__()
        self._say, self._stage, self._kernels = say, "", 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "stage %s" and isinstance(record.args, tuple):
            self._stage = _STAGES.get(str(record.args[0]), str(record.args[0]))
        elif str(record.msg).endswith("bytes of code"):
            self._kernels += 1
        count = f", {count_of(self._kernels, 'kernel')}" if self._kernels else ""
        self._say(f"{self._stage or 'compiling'}{count}")


@contextmanager
def heard(say: Say) -> Iterator[None]:
    """Listen to the compiler; a user who set SEMEL_LOG hears it instead."""
    if settings().log:
        yield
        return
    logger = logging.getLogger("semel.compile")
    before = logger.level, logger.propagate
    listener = _Listener(say)
    logger.addHandler(listener)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(listener)
        logger.setLevel(before[0])
        logger.propagate = before[1]
