"""Who owns what: releases, borrowed views, clones, constants, the caller's float mode."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from tests.plan.build import Sketch, program_of, symbolic_add, typed
from tests.plan.kernels import TILE, kernel
from tests.plan.resident import resident_bytes

import semel
from semel import Tensor, Variable, config
from semel.errors import (
    IndexRangeError,
    InputError,
    OutOfMemoryError,
    PlanError,
    ReleasedError,
    StaleError,
)
from semel.ir.graph import Graph
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.instantiate import instantiate
from semel.plan.program import Program, ProgramValue
from semel.plan.rows import PreparedKernel
from semel.plan.weights import Weight
from semel.runtime.allocator import allocate, counters
from semel.runtime.buffer import Buffer

MIB = 1 << 20


def _resident_bytes(blocks: list[tuple[int, int]]) -> int:
    return sum(resident_bytes(address, size) for address, size in blocks)


def _chain_program(elements: int) -> Program:
    """x -> t -> out, one intermediate."""
    n = Variable("n", 1, elements)
    vector = typed((n,))
    values = (
        ProgramValue("x", vector, "io", node_ids=(1,)),
        ProgramValue("t", vector, "arena", None, 0, 1, (2,)),
        ProgramValue("out", vector, "io", node_ids=(3,)),
    )
    double = kernel("double", n)
    calls = [(double, (0, 1), (n,)), (double, (1, 2), (n,))]
    return program_of(values, calls, {"x": 0}, {"out": 2}, (n,))


# ---------------------------------------------------------------- release


@pytest.mark.usefixtures("settled")
def test_the_allocator_counts_what_it_holds() -> None:
    before = counters()
    memory = allocate(MIB)
    held = counters()
    assert held.live_blocks == before.live_blocks + 1
    assert held.live_bytes >= before.live_bytes + MIB
    assert held.total_blocks == before.total_blocks + 1
    memory.release()
    memory.release()  # counts once
    assert counters().live_bytes == before.live_bytes
    allocate(MIB)  # dropped at once
    assert counters().live_bytes == before.live_bytes


@pytest.mark.usefixtures("settled")
def test_release_all_gives_memory_back() -> None:
    elements = 9 * MIB  # 36 MiB each: every block is a mapping of its own
    before_bytes = counters().live_bytes
    plan = instantiate(_chain_program(elements), threads=1)
    plan(x=np.ones(elements, np.float32))
    assert counters().live_bytes - before_bytes >= 3 * 4 * elements
    memories = {buffer.memory for buffer in plan.buffers}
    blocks = [(memory.address, memory.size_bytes) for memory in memories]
    assert _resident_bytes(blocks) >= 2 * 4 * elements
    view = plan.output_buffer.borrow()
    plan.release_all_buffers()
    assert counters().live_bytes - before_bytes < MIB
    assert _resident_bytes(blocks) < MIB
    for use in (plan.execute, view.numpy, plan.output_buffer.numpy, plan.clone, plan.unbind):
        with pytest.raises(ReleasedError, match=r"was released|were released"):
            use()
    with pytest.raises(ReleasedError, match="its buffers were released"):
        plan.execute_with_vars(n=3)
    with pytest.raises(ReleasedError, match="its buffers were released"):
        plan(x=np.ones(3, np.float32))
    with pytest.raises(ReleasedError, match="its buffers were released"):
        plan.buffer(1).copyin(np.ones(3, np.float32))  # type: ignore[union-attr]


def test_release_intermediates_gives_pages_back_and_the_plan_goes_on() -> None:
    elements = 9 * MIB  # 36 MiB each: every block is a mapping of its own
    plan = instantiate(_chain_program(elements), threads=1)
    x = np.ones(elements, np.float32)
    plan(x=x)
    memory = plan.buffer(2).memory  # type: ignore[union-attr]
    block = [(memory.address, memory.size_bytes)]
    before = _resident_bytes(block)
    plan.release_intermediate_buffers()
    assert before - _resident_bytes(block) >= 25 * MIB
    np.testing.assert_array_equal(plan(x=x), 4 * x)


@pytest.mark.usefixtures("settled")
def test_a_dropped_plan_frees_its_memory_at_once() -> None:
    plan = instantiate(_chain_program(MIB), threads=1)
    plan(x=np.ones(MIB, np.float32))
    plan.bind_input("x", np.ones(MIB, np.float32))
    held = counters().live_bytes
    del plan
    assert held - counters().live_bytes >= 3 * 4 * MIB


# ---------------------------------------------------------------- borrow


def test_a_borrowed_view_reads_in_all_ways_and_then_refuses_in_all_ways() -> None:
    plan = symbolic_add()
    x = np.arange(8, dtype=np.float32)
    plan(x=x, y=x)
    view = plan.output_buffer.borrow()
    assert view.shape == (8,) and len(view) == 8 and view.dtype == semel.float32
    reads: list[Any] = [
        view.numpy,
        lambda: view[2],
        lambda: view[1:3],
        lambda: np.asarray(view),
        lambda: np.array(view, copy=False),
        lambda: np.from_dlpack(view),
        view.array,
    ]
    for read in reads:
        np.testing.assert_array_equal(np.ravel(read())[:1] % 2, [0])
    np.testing.assert_array_equal(view[1:3], [2, 4])
    copy = view[:]
    assert not view.array().flags.writeable
    plan(x=x + 1, y=x)
    np.testing.assert_array_equal(copy, 2 * x)
    assert view.is_stale
    for read in reads:
        with pytest.raises(StaleError, match="ran again"):
            read()


def test_borrowing_does_not_copy_and_a_copy_does_not_alias() -> None:
    plan = symbolic_add()
    x = np.arange(8, dtype=np.float32)
    plan(x=x, y=x)
    view = plan.output_buffer.borrow()
    assert np.shares_memory(view.array(), plan.output_buffer.array())
    assert not np.shares_memory(view.numpy(), plan.output_buffer.array())
    assert not np.shares_memory(np.asarray(view), plan.output_buffer.array())
    assert not np.shares_memory(plan.output_buffer.numpy(), plan.output_buffer.array())


def test_an_input_view_is_stale_once_the_input_is_written() -> None:
    plan = symbolic_add()
    plan.buffers[0].copyin(np.ones(4, np.float32))
    view = plan.buffers[0].borrow()
    np.testing.assert_array_equal(view.numpy(), np.ones(4))
    plan.buffers[0].copyin(np.zeros(4, np.float32))
    with pytest.raises(StaleError, match="ran again"):
        view.numpy()


def test_a_view_of_a_plans_buffer_is_guarded_like_the_whole() -> None:
    plan = symbolic_add()
    part = plan.output_buffer.view(4, 8)
    with pytest.raises(StaleError, match="nothing was executed"):
        part.numpy()
    x = np.arange(8, dtype=np.float32)
    plan(x=x, y=x)
    np.testing.assert_array_equal(part.numpy(), [2, 4])
    with pytest.raises(PlanError, match="written by the plan"):
        part.copyin(np.ones(2, np.float32))
    plan(x=x[:2], y=x[:2])
    with pytest.raises(StaleError, match="in use at the current variables"):
        part.numpy()
    given = plan.buffers[0].view(0, 8)
    given.copyin(np.array([5, 5], np.float32))
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), [5, 6])


def test_a_view_is_stale_after_growth() -> None:
    n = Variable("n", 1, None)
    vector = typed((n,))
    values = (
        ProgramValue("x", vector, "io", node_ids=(1,)),
        ProgramValue("out", vector, "io", node_ids=(2,)),
    )
    calls = [(kernel("double", n), (0, 1), (n,))]
    program = program_of(values, calls, {"x": 0}, {"out": 1}, (n,))
    plan = instantiate(program, threads=1)
    plan(x=np.ones(4, np.float32))
    part, view = plan.output_buffer.view(0, 8), plan.output_buffer.borrow()
    plan(x=np.ones(5000, np.float32))
    assert plan.growths == 1
    for read in (part.numpy, view.numpy):
        with pytest.raises(StaleError, match=r"lies elsewhere|ran again"):
            read()


# ---------------------------------------------------------------- clones


@pytest.mark.usefixtures("settled")
def test_a_clone_shares_kernels_and_constants_and_owns_the_rest() -> None:
    n = Variable("n", 1, 64)
    w = np.random.default_rng(0).standard_normal((96, 96)).astype(np.float32)
    x = Tensor.input("x", (n, 96), "float32")
    plan = (x @ Tensor(w)).gelu().prepare(threads=1)
    data = np.random.default_rng(1).standard_normal((5, 96)).astype(np.float32)
    expected = plan(x=data)
    blocks = counters().live_bytes
    clone = plan.clone()
    assert counters().live_bytes - blocks < plan.memory.own_bytes + 4096
    assert clone.kernels == plan.kernels
    assert clone.memory.own_bytes == plan.memory.own_bytes
    assert clone.memory.weights_bytes == plan.memory.weights_bytes > 0
    constants = [i for i, v in enumerate(plan.program.values) if v.place == "constant"]
    others = set(range(len(plan.buffers))) - set(constants)
    assert all(plan.buffers[i].address == clone.buffers[i].address for i in constants)
    assert all(plan.buffers[i].address != clone.buffers[i].address for i in others)
    with pytest.raises(StaleError, match="nothing was executed"):
        clone.output_buffer.numpy()
    clone.execute()  # starts with the inputs and variables of its source
    np.testing.assert_array_equal(clone.output_buffer.numpy(), expected)
    clone(x=data[:2])
    np.testing.assert_array_equal(plan.output_buffer.numpy(), expected)
    assert plan.variables == {"n": 5} and clone.variables == {"n": 2}
    plan.release_all_buffers()
    np.testing.assert_array_equal(clone(x=data), expected)


def test_a_clone_of_a_plan_built_by_hand_keeps_its_aliasing() -> None:
    whole = Buffer(np.arange(4 * TILE, dtype=np.float32))
    s = Sketch(TILE)
    s.buffer("low", whole.view(0, 4 * TILE))
    s.buffer("high", whole.view(4 * TILE, 4 * TILE))
    s.op("double", "low", "high")
    s.op("add", "high", "w", "out")
    s.buffers["w"].copyin(np.ones(TILE, np.float32))
    plan = s.build("out")
    plan.execute()
    clone = plan.replicate(threads=2)
    clone.buffers[s.buffer("low")].copyin(np.full(TILE, 5, np.float32))
    clone.execute()
    plan.execute()
    np.testing.assert_array_equal(clone.output_buffer.numpy(), np.full(TILE, 11))
    np.testing.assert_array_equal(plan.output_buffer.numpy(), 2 * np.arange(TILE) + 1)
    assert clone.threads == 2
    w = s.buffer("w")
    assert clone.buffers[w].storage_id == plan.buffers[w].storage_id
    low, high = (clone.buffers[s.buffer(name)] for name in ("low", "high"))
    assert low.storage_id == high.storage_id != whole.storage_id
    (first, _) = clone.prepared_kernels
    assert first.buffer_ptrs == (low.address, high.address)


def test_clones_grow_alone_and_take_over_what_grew() -> None:
    n = Variable("n", 1, None)
    x = Tensor.input("x", (n,), "float32")
    plan = (x * 2.0).prepare(threads=1)
    big = np.ones(10_000, np.float32)
    plan(x=big)
    clone = plan.clone()
    clone.execute()
    np.testing.assert_array_equal(clone.output_buffer.numpy(), 2 * big)
    plan(x=np.ones(100_000, np.float32))
    np.testing.assert_array_equal(clone(x=big), 2 * big)


def test_clones_run_at_the_same_time_and_one_plan_does_not() -> None:
    """Who is inside a host call at once: two clones yes, one plan no."""
    inside, most, patience = [0], [0], [0.05]
    lock, both = threading.Lock(), threading.Event()

    def nap(attrs: Any, buffers: Any, variables: Any) -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            if inside[0] == 2:
                both.set()
        both.wait(patience[0])
        with lock:
            inside[0] -= 1

    from semel.runtime.custom import unregister_custom_function

    semel.custom_function("test_nap", reads=(), writes=())(nap)
    try:
        builder = ExecutionPlanBuilder()
        index = builder.add_buffer(0, Buffer.empty((4,), "float32"))
        builder.add_op(semel.PreparedCustomFunction(1, "test_nap", None, (index,)))
        builder.set_output_buffer(index)
        plan = builder.build(threads=1)
    finally:
        unregister_custom_function("test_nap")
    for plans, expected in (((plan, plan), 1), ((plan, plan.clone()), 2)):
        most[0], patience[0] = 0, 0.05 if expected == 1 else 100
        threads = [threading.Thread(target=p.execute) for p in plans]
        for t in threads:
            t.start()
        for t in threads:
            t.join(100)
        assert most[0] == expected


def test_two_clones_on_two_threads_give_their_own_results() -> None:
    plan = symbolic_add(4 * TILE, threads=2)
    plans = [plan, plan.clone(), plan.clone()]
    failures: list[int] = []

    def work(i: int) -> None:
        rng = np.random.default_rng(i)
        for _ in range(150):
            x = rng.standard_normal(int(rng.integers(1, 4 * TILE))).astype(np.float32)
            if not np.array_equal(plans[i](x=x, y=x), x + x):
                failures.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(100)
    assert not failures


# ---------------------------------------------------------------- constants


@pytest.mark.usefixtures("settled")
def test_weights_are_not_held_twice() -> None:
    w = Tensor(np.random.default_rng(0).standard_normal(4 * MIB).astype(np.float32))
    x = Tensor.input("x", (4 * MIB,), "float32")
    before = counters().live_bytes
    first, second = (x * w).prepare(threads=1), (x + w).prepare(threads=1)
    own = first.memory.own_bytes + second.memory.own_bytes
    assert counters().live_bytes - before < own + MIB
    shared = {
        plan.buffers[i].address
        for plan in (first, second)
        for i, value in enumerate(plan.program.values)
        if value.place == "constant"
    }
    assert len(shared) == 1
    ones = np.ones(4 * MIB, np.float32)
    np.testing.assert_array_equal(first(x=ones), w.numpy())


@pytest.mark.parametrize("skip", [0, 1, 3])
def test_constants_work_at_any_address_that_suits_their_elements(skip: int) -> None:
    n = Variable("n", 1, 1000)
    raw = np.arange(1000 + skip, dtype=np.float32)[skip:]
    vector, fixed = typed((1000,)), typed((1000,))
    values = (
        ProgramValue("x", vector, "io", node_ids=(1,)),
        ProgramValue("w", fixed, "constant", Weight(raw), node_ids=(2,)),
        ProgramValue("out", vector, "io", node_ids=(3,)),
    )
    k = Variable("k", 1000, 1000)
    calls = [(kernel("add", n), (0, 1, 2), (k,))]
    program = program_of(values, calls, {"x": 0}, {"out": 2}, (k,))
    plan = instantiate(program, threads=1)
    np.testing.assert_array_equal(plan(x=np.ones(1000, np.float32)), raw + 1)


def test_small_and_strided_constants_are_copied() -> None:
    x = Tensor.input("x", (3,), "float32")
    w = np.arange(12, dtype=np.float32)[::4]
    np.testing.assert_array_equal((x * Tensor(w)).prepare()(x=np.ones(3, np.float32)), w)
    empty = Tensor.input("e", (0,), "float32") + Tensor(np.zeros(0, np.float32))
    assert empty.prepare()(e=np.zeros(0, np.float32)).shape == (0,)


def test_a_memory_limit_counts_scratch() -> None:
    x = Tensor.input("x", (256, 4096), "float32")
    y = x.softmax(-1) @ Tensor(np.ones((4096, 64), np.float32))
    plan = y.prepare(threads=2)
    assert plan.memory.scratch_bytes
    with pytest.raises(OutOfMemoryError, match="are free"):
        y.prepare(threads=2, memory_limit=plan.memory.peak_bytes - 1)
    y.prepare(threads=2, memory_limit=plan.memory.peak_bytes)


# ---------------------------------------------------------------- arrays without a copy


def test_a_bound_input_is_read_where_it_lies() -> None:
    plan = symbolic_add()
    x, y = np.arange(8, dtype=np.float32), np.ones(8, np.float32)
    plan.bind_input("x", x)
    plan.bind_input("y", y)
    assert plan.engine.bindings.staged() == []
    plan.execute_with_vars(n=8)
    np.testing.assert_array_equal(plan.output_buffer.numpy(), x + 1)
    x += 10  # no copyin in between
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), x + 1)
    with pytest.raises(PlanError, match="is bound to an array"):
        plan.buffers[0].copyin(x)
    plan.unbind("x")
    with pytest.raises(InputError, match=r"'x'. was never written"):
        plan.execute()
    np.testing.assert_array_equal(plan(x=y), 2 * y)  # y is still bound
    with pytest.raises(InputError, match="unknown y"):
        plan(x=y, y=y)


def test_unbinding_what_is_not_there_changes_nothing() -> None:
    plan = symbolic_add()
    x = np.ones(4, np.float32)
    plan(x=x, y=x)
    for name in ("z", 5, ["x"]):
        with pytest.raises(InputError, match=r"has no input or output '.*'; known: x, y, out"):
            plan.unbind(name)  # type: ignore[arg-type]
    np.testing.assert_array_equal(plan.output_buffer.numpy(), 2 * x)


def test_a_bound_input_must_fit_the_variables() -> None:
    plan = symbolic_add()
    x = np.ones(8, np.float32)
    plan.bind_input("x", x)
    plan.bind_input("y", x)
    with pytest.raises(InputError, match=r"must be written as \(5,\)"):
        plan.execute_with_vars(n=5)
    plan.execute_with_vars(n=8)


def test_a_bound_output_is_written_where_it_lies() -> None:
    plan = symbolic_add()
    x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    plan.bind_output("out", out)
    assert plan.engine.bindings.staged() == []
    plan(x=x, y=x)
    np.testing.assert_array_equal(out, 2 * x)
    with pytest.raises(InputError, match=r"shape \(5,\) at these variables, got \(8,\)"):
        plan(x=x[:5], y=x[:5])
    plan.unbind("out")
    np.testing.assert_array_equal(plan(x=x[:5], y=x[:5]), 2 * x[:5])
    np.testing.assert_array_equal(out, 2 * x)


@pytest.mark.parametrize("shift", [0, 1, 4, 7, 8])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_overlap_with_a_write_is_staged(shift: int, threads: int) -> None:
    """out = reverse(x) in place or shifted: as if everything were read first."""
    size = 8 * TILE
    s = Sketch(size, bytes_per_element=1000)
    s.op("reverse", "x", "out")
    s.builder.declare_input("x", s.buffer("x"), typed((size,)))
    s.builder.declare_output("out", s.buffer("out"), typed((size,)))
    plan = s.build("out", threads=threads)
    whole = np.arange(2 * size, dtype=np.float32)
    x, out = whole[:size], whole[shift * TILE : shift * TILE + size]
    expected = x[::-1].copy()
    plan.bind_input("x", x)
    plan.bind_output("out", out)
    assert plan.engine.bindings.staged() == ([] if shift == 8 else ["out"])
    plan.execute()
    np.testing.assert_array_equal(out, expected)


def test_an_input_over_the_plans_own_output_is_staged() -> None:
    plan = symbolic_add()
    x = np.ones(8, np.float32)
    plan(x=x, y=x)
    own = plan.output_buffer.array((8,))
    plan.bind_input("x", own)
    assert plan.engine.bindings.staged() == ["x"]
    plan.bind_input("y", x)
    for expected in (3, 4, 5):
        plan.execute()
        np.testing.assert_array_equal(plan.output_buffer.numpy(), np.full(8, expected))
    plan.bind_output("out", np.zeros(8, np.float32))
    assert plan.engine.bindings.staged() == [
        "x"
    ]  # decided by addresses alone: its own output may come back


def test_an_input_that_the_plan_changes_is_staged() -> None:
    s = Sketch(16)
    s.op("increment", "y", "x")
    s.op("double", "x", "out")
    s.builder.declare_input("x", s.buffer("x"), typed((16,)))
    s.builder.declare_output("out", s.buffer("out"), typed((16,)))
    plan = s.build("out")
    mine = np.full(16, 9, np.float32)
    plan.bind_input("x", mine)
    plan.execute()
    np.testing.assert_array_equal(mine, np.full(16, 9))
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.full(16, 2))


def test_an_input_with_views_in_the_plan_is_staged() -> None:
    s = Sketch(16)
    whole = Buffer.empty((32,), "float32")
    s.buffer("x", whole)
    s.buffer("low", whole.view(0, 64))
    s.op("double", "low", "out")
    s.builder.declare_input("x", s.buffer("x"), typed((32,)))
    s.builder.declare_output("out", s.buffer("out"), typed((16,)))
    plan = s.build("out")
    mine = np.ones(32, np.float32)
    plan.bind_input("x", mine)
    assert plan.engine.bindings.staged() == ["x"]
    plan.execute()
    mine[:] = 4
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.full(16, 8))


def test_bindings_survive_growth() -> None:
    n = Variable("n", 1, None)
    x, y = (Tensor.input(name, (n,), "float32") for name in "xy")
    plan = (x + y).prepare(threads=1)
    small, big = np.ones(8, np.float32), np.ones(9000, np.float32)
    plan.bind_input("y", small)
    np.testing.assert_array_equal(plan(x=small), 2 * small)
    plan.bind_input("y", big)
    np.testing.assert_array_equal(plan(x=big), 2 * big)
    assert plan.growths >= 1
    big += 1
    np.testing.assert_array_equal(plan(x=big), 2 * big)


def test_profiled_runs_stage_too() -> None:
    plan = symbolic_add()
    both = np.ones(8, np.float32)
    for name in ("x", "y"):
        plan.bind_input(name, both)
    plan.bind_output("out", both)
    assert plan.engine.bindings.staged() == ["out"]
    plan.execute_profiled({"n": 8}, limits=False)
    np.testing.assert_array_equal(both, np.full(8, 2))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        ([1.0, 2.0], "must be a NumPy array"),
        (np.zeros(8), "dtype must be float32"),
        (np.zeros(16, np.float32)[::2], "C-contiguous"),
        (np.zeros((2, 4), np.float32), "rank 1"),
        (np.frombuffer(bytes(33), np.uint8)[1:].view(np.float32), "aligned"),
    ],
)
def test_arrays_that_cannot_be_bound(array: Any, message: str) -> None:
    plan = symbolic_add()
    with pytest.raises(InputError, match=message):
        plan.bind_input("x", array)
    assert plan.engine.bindings.staged() == []
    with pytest.raises(InputError, match="no input 'z'; known: x, y"):
        plan.bind_input("z", np.zeros(8, np.float32))
    frozen = np.zeros(8, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(InputError, match="writeable"):
        plan.bind_output("out", frozen)


# ---------------------------------------------------------------- same result whoever runs


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_lowest_bad_element_is_reported_whoever_finds_it(threads: int) -> None:
    size = 64 * TILE
    s = Sketch(size, "int64", bytes_per_element=10_000)
    s.op("check", "x", "a")
    s.op("check", "a", "b")  # the same chunk again, before the next chunk of the first
    plan = s.build("b", threads=threads)
    assert plan.steps == [[[0, 1]]]
    x = np.zeros(size, np.int64)
    x[np.arange(5, 64) * TILE] = np.arange(5, 64) + 100
    s.buffers["x"].copyin(x)
    for _ in range(30):
        with pytest.raises(IndexRangeError, match="got 105"):
            plan.execute()


def _set_float_mode(mode: int) -> int:
    """Write MXCSR through a tiny native function; the old value."""
    from semel.devices.cpu.elf import load_object
    from semel.devices.cpu.toolchain import compile_ir, host_target

    text = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define i32 @swap(i32 %new) {
  %p = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %p)
  %old = load i32, ptr %p, align 4
  store i32 %new, ptr %p, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %p)
  ret i32 %old
}"""
    code = load_object(compile_ir(text, host_target()))
    swap = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(code.symbols["swap"])
    return int(swap(mode))


def test_the_callers_float_mode_changes_no_bit() -> None:
    import platform

    if platform.machine() != "x86_64":
        pytest.skip("writes MXCSR")
    s = Sketch(TILE)
    s.op("double", "x", "out")
    plan = s.build("out")
    tiny = np.full(TILE, 1e-40, np.float32)
    s.buffers["x"].copyin(tiny)
    plan.execute()
    expected = plan.output_buffer.numpy()
    assert expected.any()
    flush = 0x1F80 | 0x8040  # subnormals count as zero
    old = _set_float_mode(flush)
    try:
        plan.execute()
        kept = _set_float_mode(flush)
    finally:
        _set_float_mode(old)
    assert kept & 0xFFC0 == flush
    np.testing.assert_array_equal(plan.output_buffer.numpy(), expected)


def test_a_kernel_call_in_a_plan_is_unchanged_by_a_clone() -> None:
    op = PreparedKernel(1, None, kernel("double", Variable("n", 0, 4)), "", (0, 1), (1,))
    builder = ExecutionPlanBuilder()
    for i in range(2):
        builder.add_buffer(i, Buffer.empty((4,), "float32"))
    builder.add_kernel(op)
    builder.set_output_buffer(1)
    plan = builder.build(threads=1)
    before = plan.prepared_kernels
    plan.clone()
    assert plan.prepared_kernels == before


def test_an_undeclared_output_is_invalid_after_a_failure_until_it_is_written_or_computed() -> None:
    s = Sketch(16, "int64")
    s.op("check", "x", "out")
    plan = s.build("out")
    s.buffers["out"].copyin(np.arange(16))
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.arange(16))
    s.buffers["x"].copyin(np.full(16, 99))
    with pytest.raises(IndexRangeError, match="got 99"):
        plan.execute()
    with pytest.raises(StaleError, match="last execute failed"):
        plan.output_buffer.numpy()
    s.buffers["out"].copyin(np.zeros(16, np.int64))
    view = plan.output_buffer.borrow()
    assert not view.numpy().any()
    s.buffers["x"].copyin(np.full(16, 3))
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), np.full(16, 3))
    with pytest.raises(StaleError, match="ran again"):
        view.numpy()


@pytest.mark.usefixtures("settled")
def test_memory_says_what_a_clone_takes() -> None:
    s = Sketch(1000)
    s.op("add", "x", "w", "out")
    plan = s.build("out")
    memory = plan.memory
    assert memory.own_bytes == 4000 and memory.weights_bytes == 8000
    assert str(memory).endswith("a clone takes 4,000")
    held = counters().live_bytes
    clone = plan.clone()
    assert counters().live_bytes - held < memory.own_bytes + 256
    assert clone.memory == memory


def test_poison_leaves_bound_arrays_alone() -> None:
    with config.override(debug=frozenset({"poison"})):
        plan = instantiate(_chain_program(64), threads=1)
    x, out = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    x.flags.writeable = False
    plan.bind_input("x", x)
    plan.bind_output("out", out)
    np.testing.assert_array_equal(plan(), 4 * x)
    np.testing.assert_array_equal(out, 4 * x)


def test_weights_are_held_once_after_prepare() -> None:
    """In the order that kernels read them; the order they came in is gone with the tensors."""
    weight = np.ones((256, 320), np.float32)

    def prepare() -> tuple[Any, list[weakref.ref[Any]]]:
        x = Tensor.input("x", (4, 256))
        y = (x @ Tensor(weight)).relu()
        leaves = [n for n in Graph((y.node,)).nodes if n.op.name == "constant"]
        return y.prepare(), [weakref.ref(n.attrs.storage) for n in leaves]

    plan, sources = prepare()
    gc.collect()
    assert len(sources) == 1 and sources[0]() is None
    assert plan.memory.weights_bytes == weight.nbytes
    np.testing.assert_array_equal(plan(x=np.ones((4, 256), np.float32)), 256)
