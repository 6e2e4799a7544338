"""A plan's buffers once more, for a clone.

    buffers, what is written, what is an input  --fork_buffers-->  buffers of another plan

Storages that a plan writes, and those of its declared inputs, are copied with their contents;
all others hold weights and are shared. Views keep their aliasing: buffers that share bytes
here share bytes there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from semel.plan.prepared import (
    PreparedBufferView,
    PreparedCopy,
    PreparedCustomFunction,
    PreparedEnd,
    PreparedKernel,
    PreparedLoop,
    PreparedOp,
)
from semel.runtime.allocator import Memory, allocate
from semel.runtime.buffer import Buffer
from semel.runtime.custom import CustomFunction


def written_buffers(ops: Iterable[PreparedOp], functions: Mapping[str, CustomFunction]) -> set[int]:
    """Indices of the buffers that some operation writes."""
    found: set[int] = set()
    for op in ops:
        match op:
            case PreparedKernel():
                found |= {op.buffer_indices[position] for position in op.output_indices}
            case PreparedCopy():
                found.add(op.buffer_indices[0])
            case PreparedCustomFunction():
                access = functions[op.kind].access(len(op.buffer_indices), op.attrs)
                pairs = zip(op.buffer_indices, access, strict=True)
                found |= {index for index, how in pairs if "w" in how}
            case PreparedBufferView() | PreparedLoop() | PreparedEnd():
                pass
    return found


def fork_buffers(buffers: Sequence[Buffer], own: Iterable[int]) -> tuple[Buffer, ...]:
    """Buffers with the same types and offsets; the storages of those in `own` are copies."""
    forked: dict[int, Memory] = {}
    for index in own:
        memory = buffers[index].memory
        if memory.id not in forked:
            forked[memory.id] = _copy(memory)
    return tuple(
        Buffer.window(
            forked.get(b.memory.id, b.memory), b.offset, b.capacity_bytes, b.type, b.device
        )
        for b in buffers
    )


def _copy(memory: Memory) -> Memory:
    made = allocate(memory.size_bytes)
    made.bytes[: memory.size_bytes] = memory.bytes[: memory.size_bytes]
    return made
