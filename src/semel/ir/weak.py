"""A table that holds its keys as long as somebody else holds the values.

    WeakTable.get(key)  -->  the value, while it is alive

It is `weakref.WeakValueDictionary` for the one use there is of it here, every node that is made,
and takes a third of its time: a look-up is one of a `dict`, and no Python runs to make a reference.
To look is one step for other threads; whoever adds has a lock around it.
"""

from __future__ import annotations

from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]  # as weakref.py has it
from collections.abc import Hashable
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class _Entry(ref):  # type: ignore[type-arg]  # a plain class is made at the speed of `ref`
    """A value, and the key that it is known by."""

    __slots__ = ("key",)
    key: Hashable


class WeakTable(Generic[T]):
    """Values by key, as long as they live."""

    __slots__ = ("_entries", "_forget")

    def __init__(self) -> None:
        entries: dict[Hashable, _Entry] = {}

        def forget(gone: _Entry) -> None:
            # Another value may have the key by now, which stays: to look and to delete is one
            # step, since this runs wherever the last reference goes, inside of the lock or not.
            _remove_dead_weakref(entries, gone.key)

        self._entries, self._forget = entries, forget

    def get(self, key: Hashable) -> T | None:
        """The value of this key, if it is alive."""
        entry = self._entries.get(key)
        return None if entry is None else entry()

    def setdefault(self, key: Hashable, value: T) -> T:
        """The value of this key; from now on `value` if there is none."""
        found: T | None = self.get(key)
        if found is not None:
            return found
        entry: Any = _Entry(value, self._forget)
        entry.key = key
        self._entries[key] = entry
        return value

    def __len__(self) -> int:
        return len(self._entries)
