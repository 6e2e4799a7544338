"""Arrays of 64-bit words that native code reads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from semel.ir import abi

_from_buffer, _address = ctypes.c_char.from_buffer, ctypes.addressof
Words = np.ndarray[Any, np.dtype[np.int64]]


_LINE_WORDS = 64 // abi.WORD_BYTES


def address_of(data: np.ndarray[Any, Any]) -> int:
    """Where an array lies. A fifth of the time of `data.ctypes.data`, if it may be written."""
    if data.flags.writeable and data.size:  # else there is no buffer to ask
        try:
            return _address(_from_buffer(data))  # type: ignore[arg-type]  # it is one
        except (ValueError, TypeError, BufferError):
            pass  # of a dtype, or in an order, that buffers do not know
    return int(data.__array_interface__["data"][0])


def aligned_words(count: int) -> Words:
    """Zeroed words that start on a cache line."""
    raw = np.zeros(count + _LINE_WORDS, np.int64)
    skip = (-address_of(raw) % 64) // abi.WORD_BYTES
    return raw[skip : skip + count]


class WordSpace:
    """Zeroed arrays of words for one table, each from a cache line on, and their addresses.

    A table has some twenty arrays of few words; to allocate each, and to ask NumPy where it
    lies, would take longer than to fill them. So small ones lie side by side in blocks, which
    live as long as this does.
    """

    BLOCK_WORDS = 1024

    def __init__(self) -> None:
        self.blocks: list[Words] = []
        self._block = self._open(self.BLOCK_WORDS)

    def take(self, count: int) -> tuple[Words, int]:
        """An array of at least one word, and its address."""
        size = max(count, 1)
        if size > self.BLOCK_WORDS // 4:
            block = self._open(size)
            return block.words, block.address
        block = self._block
        if block.used + size > self.BLOCK_WORDS:
            self._block = block = self._open(self.BLOCK_WORDS)
        start = block.used
        block.used += -(-size // _LINE_WORDS) * _LINE_WORDS
        return block.words[start : start + size], block.address + start * abi.WORD_BYTES

    def pack(self, items: Sequence[Any], width: int) -> int:
        """Records of `width` numbers each, one after the other; the address of the first.

        Of none the address is one that may be read.
        """
        if not items:
            return self._block.address
        array, address = self.take(len(items) * width)
        array[:] = np.array(items, np.int64).reshape(-1)
        return address

    def _open(self, count: int) -> _Block:
        block = _Block(aligned_words(count))
        self.blocks.append(block.words)
        return block


class _Block:
    """Words of which the first `used` are taken."""

    __slots__ = ("address", "used", "words")

    def __init__(self, words: Words) -> None:
        self.words, self.used = words, 0
        self.address = address_of(words)
