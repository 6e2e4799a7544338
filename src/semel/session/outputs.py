"""What a run gives back: arrays by name and by order.

out = compiled.run(inputs);   out["y"], out[0], dict(out);   y, z = out
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from semel.errors import InputError


def as_names(fetch: Any) -> tuple[str, ...]:
    """Names of outputs, each once; whether there are such outputs is not judged."""
    if isinstance(fetch, str) or not isinstance(fetch, Iterable):
        raise InputError("fetch", f"must be names of outputs, got {fetch!r:.60}.")
    names = tuple(fetch)
    if not all(isinstance(name, str) for name in names):
        raise InputError("fetch", f"must be names of outputs, got {names!r:.60}.")
    if len(set(names)) < len(names):
        raise InputError("fetch", f"must name each output once, got {', '.join(names)}.")
    return names


class Outputs(tuple[Any, ...]):
    """Values in the order of a graph's outputs, which can be asked for by name too. Immutable.

    It unpacks and iterates like a tuple; `keys()` makes `dict(out)` and `f(**out)` work.
    """

    __slots__ = ()
    #: The position of each name; those of one graph's outputs, in a subclass.
    positions: ClassVar[dict[str, int]] = {}

    @staticmethod
    def of(names: Sequence[str]) -> type[Outputs]:
        """The class of results with these names: making one is making a tuple."""
        body = {"__slots__": (), "positions": {name: i for i, name in enumerate(names)}}
        return type("Outputs", (Outputs,), body)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return tuple.__getitem__(self, key)
        at = self.positions.get(key)
        if at is None:
            known = ", ".join(self.positions)
            raise InputError("outputs", f"has no output '{key}'; known: {known}.", name=key)
        return tuple.__getitem__(self, at)

    def __contains__(self, key: object) -> bool:
        return key in self.positions if isinstance(key, str) else tuple.__contains__(self, key)

    def get(self, name: str, default: Any = None) -> Any:
        """The output of that name, or `default`."""
        return self[name] if name in self.positions else default

    def only(self, names: Iterable[str]) -> Outputs:
        """Those outputs, in that order."""
        chosen = as_names(names)
        return Outputs.of(chosen)([self[name] for name in chosen])

    def keys(self) -> Iterable[str]:
        """The names, in order."""
        return self.positions.keys()

    def values(self) -> Iterator[Any]:
        """The values, in order."""
        return iter(self)

    def items(self) -> Iterable[tuple[str, Any]]:
        """Names with their values, in order."""
        return zip(self.positions, self, strict=True)

    def __repr__(self) -> str:
        return f"Outputs({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (tuple(self.positions), tuple(self))


def _restore(names: tuple[str, ...], values: tuple[Any, ...]) -> Outputs:
    return Outputs.of(names)(values)
