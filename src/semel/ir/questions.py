"""What a trace answers about sizes, while a function is followed through one call.

    if n > 3:   range(n)   n * 0.5   -->  Answers.compare, .number, .real

While `semel.jit` traces a function its sizes and its ints are variables. Where Python needs a
number or a truth of one, whoever traces answers with that of the call that is followed, and
remembers that it was asked: what is made holds for calls with the same answers. Expressions ask
here, and know nothing of who answers. The package itself compares dims by what they are, not by
what they are worth: so equality and truth are asked only by code outside of it, which its globals
tell.

Each thread has answers of its own; without any, nothing is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from semel.locks import make_lock

_PACKAGE = __name__.partition(".")[0]
_INSIDE = _PACKAGE + "."


class Answers(Protocol):
    """One trace. Each member may say None: it knows nothing of that size."""

    def compare(self, relation: str, a: Any, b: Any) -> bool | None:
        """Whether `a` stands in that relation (eq, ne, lt, le, gt, ge) to `b` in this call."""

    def number(self, dim: Any) -> int | None:
        """What a size is in this call."""

    def real(self, dim: Any) -> Any:
        """The size as a number to calculate with, read at every run."""

    def decide(self, read: Callable[[Mapping[str, Any]], Any]) -> Any:
        """What `read` makes of this call's sizes and numbers; to be the same in others."""

    def fresh_key(self) -> Any:
        """A tensor that is another random key at every call."""


_local = threading.local()
#: Traces of all threads: without any, a look at this number is all that a comparison costs.
num_open = 0
_counting = make_lock()


def answers() -> Answers | None:
    """Whoever answers in this thread."""
    return getattr(_local, "answers", None) if num_open else None


@contextmanager
def answering(given: Answers | None) -> Iterator[None]:
    """Let `given` answer inside; None: nobody, whatever is traced around."""
    before = answers()
    _change(1)
    _local.answers = given
    try:
        yield
    finally:
        _local.answers = before
        _change(-1)


def _change(by: int) -> None:
    global num_open  # noqa: PLW0603 - counted under the lock
    with _counting:
        num_open += by


def is_users(frame: FrameType) -> bool:
    """Whether a frame is of code outside of this package."""
    name = frame.f_globals.get("__name__", "")
    return not (name.startswith(_INSIDE) or name == _PACKAGE)


def compare(relation: str, a: Any, b: Any) -> bool | None:
    """The answer of this thread's trace; None if there is none."""
    found = answers()
    return None if found is None else found.compare(relation, a, b)
