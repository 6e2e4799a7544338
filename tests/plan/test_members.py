"""What the members of a plan show: the state of the moment, and the order of execution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.plan.build import Sketch, symbolic_add
from tests.plan.kernels import kernel

from semel import ExecutionPlanBuilder, PlanError, Tensor, Variable
from semel.ir.expr import Dim
from semel.ir.types import FLOAT32, TensorType
from semel.plan import PreparedBufferView, PreparedKernel, PreparedLoop
from semel.runtime.kernel import CachedKernel

# ---------------------------------------------------------------- accessors


def test_a_plan_without_outputs_has_none() -> None:
    plan = ExecutionPlanBuilder().build()
    assert plan.output_buffer is None
    assert plan.output_buffer_at(0) is None
    assert plan.output_buffers == []


def test_kernels_are_called_by_their_entry_points() -> None:
    plan = (Tensor.input("x", (4,), "float32") + 1).prepare()
    plan(x=np.ones(4, np.float32))
    (profile,) = plan.execute_profiled(limits=False)
    assert profile.kernel is not None
    assert profile.kernel.entry_point == plan.kernels[0].entry_point
    assert profile.kernel.entry_point.isidentifier()


# ---------------------------------------------------------------- prepared ops as they are now


def test_vals_are_the_current_values() -> None:
    plan = symbolic_add()
    before = plan.prepared_kernels[0]
    assert before.vals == ()
    for n in (5, 7):
        plan(x=np.ones(n, np.float32), y=np.ones(n, np.float32))
        assert plan.prepared_kernels[0].vals == (n,)
    assert before.vals == ()  # a record of its moment


def test_vals_have_fixed_values_where_they_are_used() -> None:
    s = Sketch(16)
    s.op("double", "x", "y")
    assert s.build("y").prepared_kernels[0].vals == (16,)


def test_vals_of_a_counter_are_where_the_loop_stands() -> None:
    x = Tensor.input("x", (3,), "float32")
    (total,), _ = Tensor.loop(3, [Tensor(0.0)], lambda s, h: ([h[0] + x[s]], []))
    plan = total.prepare()
    counters = [op.counter for op in plan.prepared_ops if isinstance(op, PreparedLoop)]
    plan(x=np.ones(3, np.float32))
    counted = [op for op in plan.prepared_kernels if op.runtime_vars]
    assert [[v.name for v in op.runtime_vars] for op in counted] == [counters]
    assert [op.vals for op in counted] == [(2,)]


def test_pointers_follow_bound_arrays() -> None:
    plan = symbolic_add()
    own = plan.prepared_kernels[0].buffer_ptrs
    array = np.ones(8, np.float32)
    plan.bind_input("x", array)
    now = plan.prepared_kernels[0]
    assert now.buffer_ptrs == (array.ctypes.data, *own[1:])
    assert now.buffer_ids[0] == plan.buffers[0].storage_id
    plan.unbind()
    assert plan.prepared_kernels[0].buffer_ptrs == own


def test_pointers_follow_memory_that_grew() -> None:
    n = Variable("n", 1)
    plan = (Tensor.input("x", (n,), "float32") * 2).prepare()
    for size in (4, 5000):
        plan(x=np.ones(size, np.float32))
        (op,) = plan.prepared_kernels
        assert op.buffer_ptrs == tuple(plan.buffers[i].address for i in op.buffer_indices)
        assert op.buffer_ids == tuple(plan.buffers[i].storage_id for i in op.buffer_indices)
        assert op.vals == (size,)
    assert plan.growths == 1


def test_a_released_plan_shows_its_operations_without_addresses() -> None:
    plan = symbolic_add()
    plan.release_all_buffers()
    (op,) = plan.prepared_kernels
    assert op.buffer_ptrs == op.buffer_ids == ()


# ---------------------------------------------------------------- order of execution


def _two_chains() -> Sketch:
    """x -> a -> b -> c by reversals, and y -> d, which nothing waits for."""
    s = Sketch(4096)
    for source, target in ("xa", "ab", "bc", "yd"):
        s.op("reverse", source, target)
    return s


def test_order_is_that_of_execution() -> None:
    plan = _two_chains().build("c", "d")
    taken = [i for step in plan.steps for segment in step for i in segment]
    assert taken == [0, 3, 1, 2]  # the last one moved ahead
    assert plan.op_order == tuple(taken)
    profiles = plan.execute_profiled(limits=False)
    assert [p.op_index for p in profiles] == taken
    assert [p.op_index for p in sorted(profiles, key=lambda p: p.start_ns)] == taken
    assert [o.op for o in plan.explain().ops] == taken


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 1, 3, 2), (3, 0, 1, 2), (0, 3, 1, 2)])
def test_an_order_that_was_asked_for_is_kept(order: tuple[int, ...]) -> None:
    s = _two_chains()
    s.builder.set_output_buffers([s.buffer("c")])
    plan = s.builder.build(threads=1, order=order)
    profiles = plan.execute_profiled(limits=False)
    assert plan.op_order == order
    assert [p.op_index for p in sorted(profiles, key=lambda p: p.start_ns)] == list(order)


def test_a_chain_does_not_break_an_order_that_was_asked_for() -> None:
    def steps(order: tuple[int, ...] | None) -> list[list[list[int]]]:
        s = Sketch(64)
        s.op("double", "x", "a")
        s.op("double", "y", "b")
        s.op("double", "a", "c")  # aligned with the first: it follows it at once
        s.builder.set_output_buffers([s.buffer("c")])
        return s.builder.build(threads=1, order=order).steps

    assert steps(None) == [[[0, 2], [1]]]
    assert steps((0, 1, 2)) == [[[0], [1]], [[2]]]


def test_views_stand_where_what_they_follow_is_done() -> None:
    s = _two_chains()
    part = s.builder.add_buffer(77, s.buffers["b"].view(0, 32))
    s.builder.add_op(PreparedBufferView(9, (part, s.buffer("b")), 0, 32, dependencies=(102,)))
    s.op("reverse", "d", "e", dependencies=(9,))
    plan = s.build("e")
    place = {op: i for i, op in enumerate(plan.op_order)}
    assert sorted(place) == list(range(6))
    assert place[1] < place[4] < place[5]


# ---------------------------------------------------------------- serial kernels, declared work


def _who(
    work: Dim | None, *, safe: bool = True, calls: int = 1, threads: int = 2
) -> list[set[int]]:
    """Which participants computed each of some calls of a slow kernel over 64 tiles."""
    n = Variable("n", 0, 1 << 16)
    found = kernel("who", n)
    made = CachedKernel.from_pointer(
        found.address,
        [TensorType((n,), FLOAT32)],
        [TensorType((n,), FLOAT32)],
        [n],
        found.signature.tiles,
        bytes=work,
        host_parallel_safe=safe,
    )
    s = Sketch(1 << 16)
    for k in range(calls):
        s.builder.add_kernel(
            PreparedKernel(
                k,
                None,
                made,
                "",
                (s.buffer("x"), s.buffer(f"out{k}")),
                (1,),
                fixedvars={"n": 1 << 16},
            )
        )
    names = [f"out{k}" for k in range(calls)]
    plan = s.build(*names, threads=threads)
    plan.execute()
    return [{int(v) for v in np.unique(s.buffers[name].numpy())} for name in names]


def test_a_serial_kernel_stays_on_the_calling_thread() -> None:
    assert _who(1 << 30, safe=False, calls=2) == [{0}, {0}]


def test_serial_kernels_have_steps_of_their_own() -> None:
    n = Variable("n", 0, 64)
    kind = TensorType((n,), FLOAT32)
    address = kernel("double", n).address
    safe = CachedKernel.from_pointer(address, [kind], [kind], [n])
    serial = CachedKernel.from_pointer(address, [kind], [kind], [n], host_parallel_safe=False)
    assert (safe.host_parallel_safe, serial.host_parallel_safe) == (True, False)
    s = Sketch(64)
    for k, made in enumerate((safe, serial, safe, serial)):
        buffers = (s.buffer(f"x{k}"), s.buffer(f"y{k}"))
        fixed = {"n": 64}
        s.builder.add_kernel(PreparedKernel(k, None, made, "", buffers, (1,), fixedvars=fixed))
    steps = s.build("y0", threads=2).steps
    assert sorted(steps, key=lambda step: step[0][0]) == [[[0], [2]], [[1]], [[3]]]


def test_small_kernels_that_declare_work_are_shared() -> None:
    n = Variable("n", 0, 64)
    kind = TensorType((n,), FLOAT32)
    address = kernel("slow", n).address

    def shared(**work: Any) -> int:
        made = CachedKernel.from_pointer(address, [kind], [kind], [n], **work)
        s = Sketch(64)
        for k in range(2):
            buffers = (s.buffer(f"x{k}"), s.buffer(f"y{k}"))
            fixed = {"n": 64}
            op = PreparedKernel(k, None, made, "", buffers, (1,), fixedvars=fixed)
            s.builder.add_kernel(op)
        plan = s.build("y0", "y1", threads=2)
        plan.execute()
        return plan.execute_profiled(limits=False).run.num_shared_steps

    assert shared() == shared(flops=n) == shared(bytes=0) == 0
    assert shared(flops=1 << 30) == shared(bytes=n * 1000000) == 1


@pytest.mark.parametrize("work", [-1, 1.5, True, Variable("n", 0, 4) - 5])
@pytest.mark.parametrize("what", ["flops", "bytes"])
def test_work_must_be_an_amount(what: str, work: object) -> None:
    with pytest.raises(PlanError, match=f"{what} must be an int or an expression >= 0, got"):
        CachedKernel.from_pointer(64, [], [TensorType((4,), FLOAT32)], **{what: work})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"address": "a"}, "address must be an int, got 'a'"),
        ({"address": 0}, "address must be that of a function, got 0"),
        ({"inputs": 3}, "inputs must be a list of types, got 3"),
        ({"inputs": ["x"]}, "each of inputs must be a TensorType, got 'x'"),
        ({"outputs": [None]}, "each of outputs must be a TensorType, got None"),
        ({"variables": ["n"]}, "variables must be a Variable, got 'n'"),
        ({"variables": 3}, "variables must be Variable records, got 3"),
        ({"tiles": "a"}, "tiles must be an int or an expression over variables, got 'a'"),
        ({"tiles": 1.5}, "tiles must be an int or an expression over variables, got 1.5"),
        ({"host_parallel_safe": "no"}, "host_parallel_safe must be a bool, got 'no'"),
    ],
)
def test_a_kernel_from_a_pointer_is_checked(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"address": 64, "inputs": [], "outputs": [TensorType((4,), FLOAT32)]}
    with pytest.raises(PlanError, match=message):
        CachedKernel.from_pointer(**given | change)


def test_a_kernel_is_loaded_or_has_code_for_a_machine() -> None:
    made = CachedKernel.from_pointer(64, [], [TensorType((4,), FLOAT32)])
    with pytest.raises(PlanError, match="address must be that of a function, got 0"):
        replace(made, address=0)
    with pytest.raises(PlanError, match="address must be that of a function, got 0"):
        replace(made, address=0, code=b"code")
