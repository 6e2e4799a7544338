"""Second names of arguments: `dim=` beside `axis=`, `keepdim=` beside `keepdims=`.

    @spelled(dim="axis")                                         x.sum(dim=1)  -->  sum(x, axis=1)
    def sum(x, axis=None, *, dim=AXIS): ...

A function declares both names, so that type checkers, `help()` and `inspect.signature` show both;
the default of the second is the first, by name: `sum(x, axis=None, *, dim=axis)`. It reads the
first only. Whoever calls it by the second has it passed on as the first, and both at once are an
error; a call without keywords costs a frame more (0.1 us).

Where a function cannot do without such an argument, the two have each other as default
(`gather(x, axis=dim, index=..., *, dim=axis)`), and `needs` says how many arguments there must be.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeVar

from semel.errors import GraphError

F = TypeVar("F", bound=Callable[..., Any])


class SameAs:
    """A default that is shown as the argument it stands for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


# Any, for each argument has a type of its own.
AXIS: Any = SameAs("axis")
AXES: Any = SameAs("axes")
DIM: Any = SameAs("dim")
KEEPDIMS: Any = SameAs("keepdims")
#: What must be given, though something that has a default stands before it.
NEEDED: Any = SameAs("...")


def same_as(name: str) -> Any:
    """The default of an argument that is another name of the argument `name`."""
    return SameAs(name)


def spelled(*, needs: int = 0, **names: str) -> Callable[[F], F]:
    """Let the arguments `names` be others' second names: `spelled(dim="axis")`."""

    def decorate(function: F) -> F:
        places = {name: i for i, name in enumerate(inspect.signature(function).parameters)}
        missing = {*names, *names.values()} - places.keys()
        if missing:
            raise TypeError(f"{function.__name__} declares no {', '.join(sorted(missing))}")

        def call(*args: Any, **options: Any) -> Any:
            if options and not names.keys().isdisjoint(options):
                _first_names(function.__name__, places, names, len(args), options)
            if len(args) + len(options) < needs:
                raise TypeError(_lacking(function, args, options, needs))
            return function(*args, **options)

        # Where a node was made is told by the names of code.
        call.__code__ = call.__code__.replace(
            co_name=function.__name__, co_qualname=function.__qualname__
        )
        return update_wrapper(call, function)  # type: ignore[return-value]

    return decorate


def _first_names(
    where: str, places: dict[str, int], names: dict[str, str], given: int, options: dict[str, Any]
) -> None:
    """Let `options` have the first names only."""
    for second in [name for name in options if name in names]:
        first = names[second]
        if first in options or places[first] < given:
            raise GraphError(where, f"{second} is another name of {first}: give one, not both.")
        options[first] = options.pop(second)


def _lacking(
    function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], needs: int
) -> str:
    names = list(inspect.signature(function).parameters)[:needs]
    lacking = [name for name in names[len(args) :] if name not in options]
    return f"[{function.__name__}] needs {', '.join(names)}, got no {', '.join(lacking)}."
