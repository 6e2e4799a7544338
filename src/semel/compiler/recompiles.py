"""Making any compilation an error, for hot paths and their tests.

    with no_recompiles(): ...   -->   RecompileError wherever the compiler would run

The compiler itself asks, so that no way in can go around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from semel.errors import RecompileError

_compiling_is_an_error: ContextVar[bool] = ContextVar("compiling_is_an_error", default=False)


@contextmanager
def no_recompiles() -> Iterator[None]:
    """Inside, anything that would compile raises RecompileError.

    >>> plan = (Tensor.input("x", (2,)) * 2).prepare()
    >>> with semel.no_recompiles():
    ...     plan(x=np.ones(2, np.float32)).tolist()
    [2.0, 2.0]
    """
    token = _compiling_is_an_error.set(True)
    try:
        yield
    finally:
        _compiling_is_an_error.reset(token)


def check_may_compile(where: str, what: str) -> None:
    """Raise inside `no_recompiles()`; whoever is about to compile asks first."""
    if _compiling_is_an_error.get():
        raise RecompileError(
            where,
            f"{what} would be compiled inside no_recompiles().",
            hint="Prepare it before, and execute the plan here.",
        )
