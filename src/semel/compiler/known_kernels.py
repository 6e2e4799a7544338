"""Kernels of groups that earlier graphs had: neither lowered nor written down again.

    lower_schedule(schedule, target, known=known_kernels)

At most `MAX_KNOWN` are known, the latest used ones. Why: docs/decisions/0073-cheaper-values.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from semel.locks import make_lock
from semel.lower.share_kernels import SharedKernel

MAX_KNOWN = 256


class KnownKernels:
    """The latest kernels by what they were lowered from."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, SharedKernel] = OrderedDict()
        self._lock = make_lock()

    def find(self, key: Hashable) -> SharedKernel | None:
        """The kernel of groups of this key, if it is known."""
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
        return found

    def add(self, key: Hashable, kernel: SharedKernel) -> None:
        """Know a kernel for later graphs."""
        with self._lock:
            self._known[key] = kernel
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)

    def forget(self) -> None:
        """Know nothing, as at the start of the process."""
        with self._lock:
            self._known.clear()


known_kernels = KnownKernels()
