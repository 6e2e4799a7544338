"""Where one thing ends and the next begins: bytes of copies, barriers, borrowed looks, parts."""

from __future__ import annotations

import numpy as np
import pytest
from tests.plan.build import Sketch, symbolic_add

import semel
from semel import Tensor, Variable
from semel.errors import ReleasedError, StaleError
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.rows import PreparedCopy
from semel.runtime.buffer import Buffer

TILE_BYTES = 256 << 10  #: what a copy is cut into


# ---------------------------------------------------------------- copies


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "size", [1, 100, *(k * TILE_BYTES + d for k in (1, 3) for d in (-1, 0, 1))]
)
def test_a_copy_writes_its_own_bytes_only(size: int, threads: int) -> None:
    around, room = 4096, 4 * TILE_BYTES
    source = Buffer(np.random.default_rng(0).integers(1, 100, size + room, np.uint8))
    target = Buffer(np.full(around + size + room, 111, np.uint8))
    builder = ExecutionPlanBuilder()
    indices = [
        builder.add_buffer(0, target.view(around, size)),
        builder.add_buffer(1, source.view(0, size)),
    ]
    builder.add_op(PreparedCopy(1, tuple(indices)))
    builder.set_output_buffer(0)
    builder.build(threads=threads).execute()
    found = target.numpy()
    np.testing.assert_array_equal(found[around : around + size], source.numpy()[:size])
    assert (found[:around] == 111).all()
    assert (found[around + size :] == 111).all()


# ---------------------------------------------------------------- declared dependencies


@pytest.mark.parametrize(
    ("first", "second", "apart"), [(1, 1, False), (1, 4, True), (4, 1, True), (4, 4, True)]
)
def test_a_declared_dependency_is_a_barrier_unless_both_are_one_tile(
    first: int, second: int, apart: bool
) -> None:
    s = Sketch(4096)
    s.op("increment", "x", "a", fixedvars={"n": 1024 * first}, id=1)
    s.op("increment", "y", "b", fixedvars={"n": 1024 * second}, id=2, dependencies=(1,))
    steps = s.build("a", "b", threads=2).steps
    assert steps == ([[[0]], [[1]]] if apart else [[[0, 1]]])


# ---------------------------------------------------------------- borrowed looks


def test_a_look_at_memory_that_moved_is_stale_though_nothing_wrote_there() -> None:
    n = Variable("n", 1, None)
    x, y = (Tensor.input(name, (n,), "float32") for name in "xy")
    plan = semel.prepare(x + y, threads=1)
    plan.buffers[0].copyin(np.ones(3, np.float32))
    before = plan.buffers[0].generation()
    look = plan.buffers[0].borrow()
    assert look.numpy().tolist() == [1] * 3
    plan.buffers[1].copyin(np.ones(5000, np.float32))  # both inputs move
    assert plan.buffers[0].generation() == before
    assert look.is_stale
    with pytest.raises(StaleError, match="after this view was taken"):
        look.numpy()


def test_a_look_at_memory_that_is_gone_is_stale() -> None:
    buffer = Buffer(np.arange(3))
    look = buffer.borrow()
    assert look.numpy().tolist() == [0, 1, 2]
    buffer.memory.release()
    assert look.is_stale
    with pytest.raises(ReleasedError, match="released"):
        look.numpy()


def test_a_look_at_an_output_ends_with_the_next_run() -> None:
    plan = symbolic_add()
    plan(x=np.ones(4, np.float32), y=np.ones(4, np.float32))
    look = plan.output_buffer.borrow()
    assert look.numpy().tolist() == [2] * 4
    plan.execute()
    assert look.is_stale


# ---------------------------------------------------------------- parts of inputs


def test_a_part_of_an_input_is_written_after_the_whole() -> None:
    plan = symbolic_add()
    part = plan.buffers[0].view(4, 8)
    with pytest.raises(StaleError, match="must be written whole before its parts"):
        part.copyin(np.ones(2, np.float32))
    plan.buffers[0].copyin(np.zeros(4, np.float32))
    plan.buffers[1].copyin(np.zeros(4, np.float32))
    before = plan.buffers[0].generation()
    part.copyin(np.ones(2, np.float32))
    assert plan.buffers[0].generation() != before
    plan.execute_with_vars(n=4)
    assert plan.output_buffer.numpy().tolist() == [0, 1, 1, 0]
