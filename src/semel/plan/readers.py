"""What is done with the outputs of a run, in the same operation on the plan.

    Reader  --prepare(engine)-->  read()  -->  whatever the caller of a run gets

A reader is asked once, after a good run, for the shortest way to read; that is then used after
every run that is like this one but for its numbers (`semel.plan.calls`). Where an output lies after
a run is for `output_view` to say: some lie elsewhere, or have another size, after each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from semel.ir.expr import variables
from semel.plan.engine import Engine
from semel.runtime.buffer import Array

R_co = TypeVar("R_co", covariant=True)
#: What is copied sooner than it takes to copy a few arrays one by one.
_ONE_PIECE_BYTES = 16 << 10


class Reader(ABC, Generic[R_co]):
    """A way to read outputs. It is remembered by itself: keep one, and let its hash be cheap.

    One that is made for a single run says so, and is not held after it.
    """

    is_for_one_run = False

    def check(self, engine: Engine) -> None:
        """Refuse a run, before it writes anything, whose outputs could not be read this way.

        Variables and shapes are those that the run will have, but for what it finds out itself.
        """

    @abstractmethod
    def prepare(self, engine: Engine) -> Callable[[], R_co]:
        """How to read after each run at the same variables; raises if there is nothing to read.

        Both this and what it returns are called in the middle of the operation that ran.
        """


class Copies(Reader[Any]):
    """The outputs as fresh arrays: one, or a tuple in output order."""

    def prepare(self, engine: Engine) -> Callable[[], Any]:
        for index in engine.parts.outputs:
            engine.parts.buffers[index].readable_shape()  # refuses what this run did not write
        copies = [output_copier(engine, index) for index in engine.parts.outputs]
        if len(copies) == 1:
            return copies[0]
        return lambda: tuple([copy() for copy in copies])


def output_view(engine: Engine, index: int) -> Callable[[], Array]:
    """A way to an output's memory after each run at the same variables; elsewhere a copy of it.

    Raises if the last run did not write it.
    """
    buffer = engine.parts.buffers[index]
    shape = buffer.readable_shape()
    if is_settled(engine, index):
        view = buffer.array(shape)
        return lambda: view
    return lambda: buffer.peek(buffer.readable_shape())


def output_copier(engine: Engine, index: int) -> Callable[[], Array]:
    """A way to copy an output after each run at the same variables, also before there was one."""
    buffer = engine.parts.buffers[index]
    if is_settled(engine, index):
        return buffer.array(buffer.shape).copy
    if buffer.memory.is_host:
        return lambda: buffer.array(buffer.readable_shape()).copy()
    return lambda: buffer.peek(buffer.readable_shape())


def outputs_copier(
    engine: Engine, indexes: Sequence[int]
) -> tuple[Callable[[], Any], Callable[[Any], list[Array]]]:
    """A way to copy several outputs after each run, and one to make arrays of such a copy later.

    Small ones that lie near each other are copied in one piece, with what lies between them.
    """
    buffers = [engine.parts.buffers[index] for index in indexes]
    memory = buffers[0].memory if buffers else None
    is_one = all(is_settled(engine, i) for i in indexes) and all(
        b.memory is memory for b in buffers
    )
    first = min((b.offset for b in buffers), default=0)
    last = max((b.offset + b.capacity_bytes for b in buffers), default=0)
    if memory is None or not is_one or last - first > _ONE_PIECE_BYTES:
        copies = [output_copier(engine, index) for index in indexes]
        return lambda: [copy() for copy in copies], list
    parts = [(b.dtype.numpy, b.offset - first, b.shape) for b in buffers]

    def apart(piece: Array) -> list[Array]:
        return [np.ndarray(shape, dtype, piece.data, at) for dtype, at, shape in parts]

    return memory.view(first, last - first).copy, apart


def is_settled(engine: Engine, index: int) -> bool:
    """Whether an output lies in the same bytes of the host after each run."""
    return (
        engine.parts.buffers[index].memory.is_host
        and not engine.bindings.moves(index)
        and not has_late_shape(engine, index)
    )


def has_late_shape(engine: Engine, index: int) -> bool:
    """Whether each run says anew how large an output, or a value that is kept, is."""
    late = {v.variable.name for v in engine.parts.late}
    late.update(engine.state.held_values())
    kinds = [io.type for io in engine.parts.output_io if io.index == index]
    kinds = kinds or [engine.parts.program.values[index].type]
    return bool(late) and any(v.name in late for k in kinds for d in k.shape for v in variables(d))
