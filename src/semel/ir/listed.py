"""What `dir` lists: the names that people use.

    class Plan:
        def __dir__(self): return public_names(self, hidden=...)

Tab completion asks `dir`; names with an underscore, and those that the package alone uses, stay
reachable and are not offered.
"""

from __future__ import annotations

from collections.abc import Container


def public_names(value: object, hidden: Container[str] = ()) -> list[str]:
    """What `object` would list, without internals; methods of Python's own protocols stay."""
    return [name for name in object.__dir__(value) if name not in hidden and _is_public(name)]


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name.endswith("__")


class Listed(type):
    """Classes of which `dir` lists the same as of what they make."""

    def __dir__(cls) -> list[str]:
        return [name for name in type.__dir__(cls) if _is_public(name)]
