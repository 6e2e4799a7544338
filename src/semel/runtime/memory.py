"""What memory is to plans and buffers, whichever device it belongs to.

    Device.allocate(size_bytes)  -->  Memory  --copy_in, copy_out-->  arrays

A block is bytes at an address of its device. Arrays are copied in and out; only memory of the host
(`is_host`) can be looked at in place, as `view`. The host's is in `semel.runtime.allocator`.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Memory(Protocol):
    """One block: `id` names the storage, and is nobody else's.

    Whoever uses a block holds it; the last one to let go may release it.
    """

    @property
    def id(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def is_host(self) -> bool:
        """Whether this process can read and write the bytes where they lie."""

    @property
    def address(self) -> int:
        """Where it begins, for the device; good while the block is alive."""

    @property
    def is_alive(self) -> bool:
        """Whether it was not released."""

    def copy_in(self, offset: int, source: np.ndarray[Any, Any]) -> None:
        """Write an array, compact and in C order, at `offset`."""

    def copy_out(self, offset: int, size_bytes: int) -> Bytes:
        """A copy of so many bytes from `offset` on."""

    def copy_to(self, offset: int, target: Bytes) -> None:
        """Copy as many bytes as there is room in `target`, from `offset` on."""

    def view(self, offset: int, size_bytes: int) -> Bytes:
        """The bytes themselves. Only memory of the host has them."""

    def peek(self, offset: int, size_bytes: int) -> Bytes:
        """The bytes to read from: themselves where the host has them, else a copy."""

    def fill(self, byte: int, start: int = 0, end: int | None = None) -> None:
        """Let every byte in [start, end) be `byte`."""

    def seal(self) -> None:
        """Nobody writes here any more; where that can be enforced, it is."""

    def duplicate(self) -> Memory:
        """Another block of this size on the same device, with the same contents."""

    def fork(self) -> Memory:
        """The same, where the two may share what neither of them writes."""

    @property
    def own_bytes(self) -> int:
        """What it takes by itself now: less than its size where pages come as they are written."""

    @property
    def shared_bytes(self) -> int:
        """What it takes together with the blocks that it was forked from, or to."""

    def pin(self) -> object:
        """While the result is held, the bytes stay where they are, whoever releases the block."""

    def hold(self, owner: Any) -> None:
        """Note that `owner` uses the block; an owner that is dropped holds nothing."""

    def let_go(self, owner: Any) -> bool:
        """Whether nobody else holds it now that `owner` does not."""

    def is_held_beside(self, owner: Any) -> bool:
        """Whether somebody else holds it."""

    def discard(self, start: int = 0, end: int | None = None) -> None:
        """Give what lies in [start, end) back as far as that is possible; addresses stay valid.

        The contents there are lost.
        """

    def release(self) -> None:
        """Drop the block: it is not alive from now on."""


class HeldMemory:
    """What any block knows of those who use it."""

    __slots__ = ("_holders",)

    def __init__(self) -> None:
        self._holders: dict[int, weakref.ref[Any]] = {}

    def hold(self, owner: Any) -> None:
        """Note that `owner` uses the block; an owner that is dropped holds nothing."""
        holders, key = self._holders, id(owner)
        holders[key] = weakref.ref(owner, lambda _: holders.pop(key, None))

    def let_go(self, owner: Any) -> bool:
        """Whether nobody else holds it now that `owner` does not."""
        self._holders.pop(id(owner), None)
        return not self._holders

    def is_held_beside(self, owner: Any) -> bool:
        """Whether somebody else holds it."""
        return any(key != id(owner) for key in list(self._holders))
