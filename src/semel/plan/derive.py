"""Recipes run: derived weights, by the kernels of their formulas, all of them in one plan.

    [Job: a formula, its sizes, its sources]  --derive-->  [Weight]

The rows of all jobs are one program on memory that is given, sizes are fixed in each row: jobs
share no bytes but what they read, so that the plan runs them side by side on all threads. It
runs once and is dropped. A few jobs, as when params are replaced, run on an engine that is kept for
the next time that the same formulas make as many weights of these sizes: it is told where they lie.
What some program holds already is found in the store and not made again. Weights are made by the
host, whatever device reads them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from semel.ir.graph import aligned_empty
from semel.ir.types import TensorType
from semel.locks import make_lock
from semel.plan.check import check_plan
from semel.plan.engine import Engine
from semel.plan.parts import PlanParts
from semel.plan.program import GIVEN, PlanIO, Program, ProgramValue
from semel.plan.rows import PreparedKernel
from semel.plan.weights import Formula, Weight, fixed_rows, recipe_key, weight_store
from semel.runtime.allocator import ALIGNMENT_BYTES, HostMemory, allocate
from semel.runtime.buffer import Buffer
from semel.runtime.device import Device, find_device
from semel.runtime.free import HOST_DEVICE
from semel.runtime.memory import Memory
from semel.runtime.slab import LARGE_PAGE_BYTES, allocate_slab
from semel.runtime.spare import MAX_SPARE_BYTES, spare_memory

SLAB_BYTES = 2 * LARGE_PAGE_BYTES  #: from which on weights are made side by side
FEW_JOBS = 16  #: of which an engine is kept
MAX_IDLE = 64  #: engines at rest
_idle: OrderedDict[Hashable, _Kept] = OrderedDict()
_lock = make_lock()


@dataclass(frozen=True, slots=True)
class Job:
    """A weight to make; `ids` name the data of the sources."""

    formula: Formula
    sizes: Mapping[str, int]
    sources: tuple[Weight, ...]
    ids: tuple[Hashable, ...]

    @property
    def has_between(self) -> bool:
        """Whether its kernels need memory of their own."""
        return len(self.formula.types) > self.formula.num_sources + 1

    @property
    def key(self) -> Hashable:
        return recipe_key(self.formula, self.sizes, self.ids)


def derive(jobs: Sequence[Job], threads: int | None = None) -> list[Weight]:
    """The weight of each job."""
    keys = [job.key for job in jobs]
    found = {key: weight for key in keys if (weight := weight_store.find(key)) is not None}
    missing = {key: job for key, job in zip(keys, jobs, strict=True) if key not in found}
    if missing:
        made = _run(list(missing.values()), threads)
        for key, weight in zip(missing, made, strict=True):
            found[key] = weight_store.add(key, weight)
    return [found[key] for key in keys]


def _run(jobs: Sequence[Job], threads: int | None) -> list[Weight]:
    device = find_device(HOST_DEVICE)
    if threads is not None and len(jobs) <= FEW_JOBS and not any(j.has_between for j in jobs):
        return _run_again(jobs, device, threads)
    made = _Merged(device)
    kinds = [job.formula.types_at(job.sizes)[job.formula.num_sources] for job in jobs]
    memory = _memory_for_all(kinds, is_again=threads is not None)
    results = [made.add(job, block) for job, block in zip(jobs, memory, strict=True)]
    count = device.default_threads() if threads is None else threads
    Engine(made.parts(count), None).run()
    return results


@dataclass(frozen=True, slots=True)
class _Kept:
    """An engine that makes weights of these types, wherever they and their sources lie.

    It holds no data: memory that it is shown belongs to whoever lets it run.
    """

    engine: Engine
    kinds: tuple[TensorType, ...]


def _run_again(jobs: Sequence[Job], device: Device, threads: int) -> list[Weight]:
    """All jobs in one run of an engine that is at rest, or of a new one."""
    key = (tuple((job.formula, tuple(sorted(job.sizes.items()))) for job in jobs), threads)
    with _lock:
        kept = _idle.pop(key, None)
    kept = kept or _kept_for(jobs, device, threads)
    made = [_as_weight(kind, _memory_for(kind, is_again=True)) for kind in kept.kinds]
    lying = (w for job, weight in zip(jobs, made, strict=True) for w in (*job.sources, weight))
    for index, weight in enumerate(lying):
        kept.engine.show(index, weight.on(device).address)
    kept.engine.run()
    with _lock:
        _idle[key] = kept
        gone = [_idle.popitem(last=False)[1] for _ in range(len(_idle) - MAX_IDLE)]
    del gone  # outside of the lock
    return made


def _kept_for(jobs: Sequence[Job], device: Device, threads: int) -> _Kept:
    """An engine for these jobs: for each its sources, then its result, all of which can move."""
    ios: list[PlanIO] = []
    rows: list[PreparedKernel] = []
    results: list[PlanIO] = []
    for job in jobs:
        first, types = len(ios), job.formula.types_at(job.sizes)
        ios += [PlanIO(f"#{first + i}", first + i, kind) for i, kind in enumerate(types)]
        results.append(ios[-1])
        for row in fixed_rows(job.formula, job.sizes):
            indices = tuple(first + i for i in row.buffer_indices)
            rows.append(replace(row, id=len(rows), buffer_indices=indices))
    sources = tuple(io for io in ios if io not in results)
    program = Program(
        values=tuple(ProgramValue(io.name, io.type, GIVEN) for io in ios),
        rows=tuple(rows),
        inputs=sources,
        outputs=tuple(results),
        results=tuple(io.index for io in results),
        device=device.name,
    )
    buffers = [
        Buffer.window(allocate(0), 0, _size_bytes(io.type), io.type, device.name) for io in ios
    ]
    engine = Engine(check_plan(program, buffers, device, threads), None)
    for io in sources:
        engine.state.inputs[io.name].record(tuple(int(d) for d in io.type.shape))  # type: ignore[arg-type]
    return _Kept(engine, tuple(io.type for io in results))


class _Merged:
    """The rows and the memory of many jobs, as one program."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._buffers: list[Buffer] = []
        self._values: list[ProgramValue] = []
        self._rows: list[PreparedKernel] = []

    def add(self, job: Job, memory: HostMemory) -> Weight:
        """The weight that the plan will fill, in this memory."""
        types, count = job.formula.types_at(job.sizes), job.formula.num_sources
        first = len(self._values)
        for weight, kind in zip(job.sources, types, strict=False):
            self._add(kind, weight.on(self._device))
        self._add(types[count], memory)
        for kind in types[count + 1 :]:
            self._add(kind, allocate(_size_bytes(kind)))
        for row in fixed_rows(job.formula, job.sizes):
            indices = tuple(first + i for i in row.buffer_indices)
            self._rows.append(replace(row, id=len(self._rows), buffer_indices=indices))
        return _as_weight(types[count], memory)

    def _add(self, kind: TensorType, memory: Memory) -> None:
        self._values.append(ProgramValue(f"#{len(self._values)}", kind, GIVEN))
        size = _size_bytes(kind)
        self._buffers.append(Buffer.window(memory, 0, size, kind, self._device.name))

    def parts(self, threads: int) -> PlanParts:
        """All of it, checked."""
        program = Program(
            values=tuple(self._values),
            rows=tuple(self._rows),
            inputs=(),
            outputs=(),
            results=(),
            device=self._device.name,
        )
        return check_plan(program, self._buffers, self._device, threads)


def _memory_for_all(kinds: Sequence[TensorType], is_again: bool) -> list[HostMemory]:
    """Memory for weights that are made together: in large pages that they share, if they fill some.

    What replaces others gets what waits for it, as far as so much may wait.
    """
    sizes = [_size_bytes(kind) for kind in kinds]
    if sum(sizes) < SLAB_BYTES or (is_again and sum(sizes) <= MAX_SPARE_BYTES):
        return [_memory_for(kind, is_again) for kind in kinds]
    return allocate_slab(sizes)


def _memory_for(kind: TensorType, is_again: bool) -> HostMemory:
    """Memory that is written whole: of a weight that replaces another, what one before had.

    Fresh pages would cost more than packing does.
    """
    size = _size_bytes(kind)
    if size < ALIGNMENT_BYTES:
        return allocate(size)  # which can be read a line at a time
    made = spare_memory.empty(size) if is_again else aligned_empty((size,), np.dtype(np.uint8))
    return HostMemory.over(made)


def _size_bytes(kind: TensorType) -> int:
    size = kind.num_bytes
    assert isinstance(size, int)
    return size


def _as_weight(kind: TensorType, memory: HostMemory) -> Weight:
    """The weight in this memory: sealed is the array, and the memory is yet to be filled."""
    shape = tuple(int(d) for d in kind.shape)  # type: ignore[arg-type]
    return Weight(np.ndarray(shape, kind.dtype.numpy, memory.bytes.data), memory)
