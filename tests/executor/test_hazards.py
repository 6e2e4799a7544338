"""Random work on several devices: any interleaving of lanes gives the same bits."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
from tests.executor.rig import PATIENCE, buffer_of, executor_of, numbers, scaled

from semel import Buffer, ExecutionPlan, UnifiedExecutor
from semel.errors import PlanError
from semel.executor.hazards import Access, DeviceTable, Edges, User
from semel.executor.lane import Call, ExecutorLane
from semel.locks import make_lock
from semel.runtime.allocator import allocate

SIZE = 8


class _World:
    """Buffers on devices, and what they hold if all is done one after the other."""

    def __init__(
        self, executor: UnifiedExecutor, rng: random.Random, *, has_plans: bool = True
    ) -> None:
        self._executor, self._rng, self._has_plans = executor, rng, has_plans
        self._names = [str(spec) for spec in executor.devices]
        self.buffers = [
            buffer_of([k + 1.0] * SIZE, self._names[k % len(self._names)]) for k in range(6)
        ]
        self.expected = [buffer.numpy() for buffer in self.buffers]
        self._plans: dict[str, tuple[ExecutionPlan, Buffer]] = {
            name: scaled(0.5, name, SIZE) for name in self._names
        }

    def step(self) -> None:
        """Submit something, and do the same to what is expected."""
        choice = self._rng.random() * (1.0 if self._has_plans else 0.7)
        if choice < 0.4:
            self._function()
        elif choice < 0.7:
            self._transfer()
        else:
            self._plan()

    def _part(self) -> tuple[int, int]:
        start = self._rng.randrange(SIZE)
        return start, self._rng.randrange(start + 1, SIZE + 1)

    def _function(self) -> None:
        """Part of one buffer becomes a mix of itself and of part of another."""
        a, b = self._rng.sample(range(len(self.buffers)), 2)
        start, end = self._part()
        device = self._rng.choice(self._names)
        delay = self._rng.choice((0, 0, 0, 0.0003))
        target = self.buffers[a].view(start * 4, (end - start) * 4)
        source = self.buffers[b].view(start * 4, (end - start) * 4)

        def work() -> None:
            time.sleep(delay)
            mine, other = target.array(), source.array()
            mine[...] = mine * np.float32(0.5) + other

        self._executor.execute_kernel(device, work, reads=[source, target], writes=[target])
        mine, other = self.expected[a][start:end], self.expected[b][start:end]
        mine[...] = mine * np.float32(0.5) + other

    def _transfer(self) -> None:
        a, b = self._rng.sample(range(len(self.buffers)), 2)
        start, end = self._part()
        part = start * 4, (end - start) * 4
        self._executor.execute_transfer(self.buffers[b].view(*part), self.buffers[a].view(*part))
        self.expected[a][start:end] = self.expected[b][start:end]

    def _plan(self) -> None:
        """A buffer goes through a plan and comes back as another."""
        plan, x = self._plans[self._rng.choice(self._names)]
        a, b = self._rng.sample(range(len(self.buffers)), 2)
        self._executor.execute_transfer(self.buffers[b], x)
        self._executor.submit(plan)
        self._executor.execute_transfer(plan.output_buffer, self.buffers[a])
        self.expected[a][...] = self.expected[b] * np.float32(0.5)


@pytest.mark.parametrize("devices", [("cpu:0", "cpu:1"), ("cpu:0", "cpu:1", "cpu")])
@pytest.mark.parametrize("seed", range(12))
def test_any_interleaving_gives_the_same_bits(devices: tuple[str, ...], seed: int) -> None:
    executor = executor_of(*devices)
    _check(executor, _World(executor, random.Random(seed)))


def _check(executor: UnifiedExecutor, world: _World) -> None:
    for _ in range(60):
        world.step()
    executor.close(PATIENCE)
    for buffer, expected in zip(world.buffers, world.expected, strict=True):
        np.testing.assert_array_equal(buffer.numpy(), expected)


def test_without_their_edges_lanes_would_be_seen_to_disagree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test above can fail."""
    monkeypatch.setattr(Edges, "needs", [])
    monkeypatch.setattr(Edges, "follows", [])
    with pytest.raises(AssertionError, match="not equal"):
        for seed in range(50):
            executor = executor_of()
            _check(executor, _World(executor, random.Random(seed), has_plans=False))


# ---------------------------------------------------------------- one that was not submitted


def test_who_could_not_be_submitted_stands_for_those_before(executor: UnifiedExecutor) -> None:
    """A run that is refused at the submission must not make others forget what is under way."""
    plan, x = scaled(2)
    x.copyin(numbers(1, 2, 3, 4))
    context = executor.context("cpu:1")
    assert context is not None
    held = context.next_timeline("copy")
    into = executor.execute_kernel("cpu:1", int, writes=[x], after=[held])

    class Refusing:
        @property
        def engine(self) -> Any:
            raise PlanError("test", "refused")

    submitter_lane = executor._contexts["cpu:0"].compute
    real = type(submitter_lane).submit_run
    try:
        type(submitter_lane).submit_run = lambda self, *args: Refusing().engine  # type: ignore[method-assign]
        with pytest.raises(PlanError, match="refused"):
            executor.submit(plan)
    finally:
        type(submitter_lane).submit_run = real  # type: ignore[method-assign]
    read = executor.execute_kernel("cpu:0", int, reads=[x])
    assert not read.done(), "it must still wait for whoever fills the input"
    context.signal_completion(held, "copy")
    read.wait(PATIENCE)
    assert into.done()
    np.testing.assert_array_equal(executor.submit(plan).result(PATIENCE), numbers(2, 4, 6, 8))


def test_tables_forget_what_is_over_and_tell_who_relied_on_it() -> None:
    lane, table, memory = ExecutorLane("cpu", "test", (), make_lock()), DeviceTable(), allocate(64)
    user = User(lane, int(lane.submit_call(Call("nothing", int), (), ())))
    storage = table.touch(user, Access(memory, 0, 32, False, True), Edges(lane))
    version = storage.version
    table.touch(user, Access(memory, 0, 32, True, True), Edges(lane))
    assert storage.version == version, "the same user again is nobody else"
    lane.await_end(user.value, PATIENCE)
    table.tidy()
    assert table.num_pieces == 0
    assert storage.version != version
    lane.close()
