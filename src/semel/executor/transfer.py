"""Copying a buffer to another, wherever the two lie.

    Transfer(source, target, strategy).run()   on the lane of the target

Copies go piece by piece, so that the interpreter and whoever else wants the memory's bandwidth get
in. Between devices of which none reaches the other, pieces go through memory of the host: one piece
at a time through the same memory, so that what is staged is bounded, however large the buffers and
however many.

A plan that owns one of the buffers is asked as for any read and write, and not held while bytes are
copied: it can be submitted meanwhile, and two copies in opposite directions do not wait for each
other.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import prod

import numpy as np

from semel.errors import DeviceError, InputError, PlanError, ReleasedError, StaleError
from semel.runtime.buffer import Buffer, ConcreteShape
from semel.runtime.links import SyncStrategy
from semel.runtime.memory import Bytes

#: Bytes that are copied in one go.
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TransferRecord:
    """A copy that was done: from where to where, how, how much, and when (`perf_counter_ns`)."""

    source: str
    target: str
    strategy: SyncStrategy
    num_bytes: int
    staged_bytes: int
    start_ns: int
    end_ns: int

    def __str__(self) -> str:
        rate = self.num_bytes / max(self.end_ns - self.start_ns, 1)
        how = f", {self.staged_bytes} staged" if self.staged_bytes else ""
        return (
            f"{self.source} -> {self.target}, {self.strategy}: {self.num_bytes} bytes, "
            f"{rate:.2f} GB/s{how}"
        )


class Staging:
    """Memory of the host for one piece, which a lane uses again and again; none before that."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes: Bytes = np.empty(0, np.uint8)

    def piece(self, size: int) -> Bytes:
        """Room for so many bytes, which is good until the next one is asked for."""
        if self._bytes.size < size:
            self._bytes = np.empty(size, np.uint8)
        return self._bytes[:size]


class Transfer:
    """One copy. What can be checked before it runs is checked when it is made."""

    def __init__(self, source: Buffer, target: Buffer, strategy: SyncStrategy) -> None:
        if source.dtype != target.dtype:
            raise InputError("execute_transfer", f"dst must be {source.dtype}, got {target.dtype}.")
        self.source, self.target, self.strategy = source, target, strategy
        #: Known when it is done.
        self.num_bytes = 0
        if source.keeper is None and target.keeper is None:
            self._check_shape(source.shape)
        first, second = source.byte_range, target.byte_range
        if first[0] == second[0] and max(first[1], second[1]) < min(first[2], second[2]):
            raise PlanError("execute_transfer", "src and dst must not share bytes.")

    def _check_shape(self, shape: ConcreteShape) -> None:
        """Where no plan answers for the target, it must have as many bytes."""
        size = prod(shape) * self.source.dtype.size_bytes
        if size != self.target.nbytes:
            raise InputError(
                "execute_transfer",
                f"dst must have the {size} bytes of src, it has {self.target.nbytes}.",
            )

    @property
    def name(self) -> str:
        """What it is, for people."""
        return f"copy {self.source.type} {self.source.device} -> {self.target.device}"

    def run(self, staging: Staging) -> TransferRecord:
        """Copy, and say what was done."""
        start = time.perf_counter_ns()
        source = self.source
        shape, generation = source.alone(lambda: (source.readable_shape(), source.generation()))
        size = prod(shape) * source.dtype.size_bytes
        try:
            self._write(shape, size, staging)
        except DeviceError as error:
            error.seen_at(self.name)
            raise
        if source.generation() != generation:
            raise StaleError("execute_transfer", "src was changed while it was copied.")
        self.num_bytes = size
        is_staged = not (source.memory.is_host or self.target.memory.is_host)
        return TransferRecord(
            source.device,
            self.target.device,
            self.strategy,
            size,
            min(size, PIECE_BYTES) if is_staged else 0,
            start,
            time.perf_counter_ns(),
        )

    def _write(self, shape: ConcreteShape, size: int, staging: Staging) -> None:
        keeper = self.target.keeper
        if keeper is None:
            self._check_shape(shape)
        else:
            keeper.hold.alone(keeper.begin_write, shape)
        for start in range(0, size, PIECE_BYTES):
            self._copy_piece(start, min(PIECE_BYTES, size - start), staging)
        if keeper is not None:
            keeper.hold.alone(keeper.end_write, shape)

    def _copy_piece(self, start: int, size: int, staging: Staging) -> None:
        source, target = self.source, self.target
        for what, buffer in (("src", source), ("dst", target)):
            if not buffer.memory.is_alive:
                raise ReleasedError("execute_transfer", f"the memory of {what} was given back.")
        here, there = source.memory, target.memory
        if here.is_host:
            there.copy_in(target.offset + start, here.view(source.offset + start, size))
        elif there.is_host:
            here.copy_to(source.offset + start, there.view(target.offset + start, size))
        else:
            piece = staging.piece(size)
            here.copy_to(source.offset + start, piece)
            there.copy_in(target.offset + start, piece)
