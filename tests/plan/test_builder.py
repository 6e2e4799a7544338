"""What the builder refuses, and how it orders operations."""

from __future__ import annotations

import numpy as np
import pytest
from tests.plan.build import Sketch
from tests.plan.kernels import kernel

from semel.errors import (
    CycleError,
    InputError,
    PlanError,
    UnsupportedError,
    UserError,
    VariableError,
)
from semel.ir.expr import Variable
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.rows import PreparedBufferView, PreparedCopy, PreparedCustomFunction, PreparedKernel
from semel.runtime.allocator import HostMemory
from semel.runtime.buffer import Buffer

DOUBLE = kernel("double", Variable("n", 0, 16))


def _kernel(
    buffers: tuple[int, ...] = (0, 1), outputs: tuple[int, ...] = (1,), **fields: object
) -> PreparedKernel:
    fields.setdefault("id", 1)
    return PreparedKernel(
        ast=None,
        kernel=DOUBLE,
        buffer_indices=buffers,
        output_indices=outputs,
        **({"device": "cpu", **fields}),  # type: ignore[arg-type]
    )


def _builder(*ops: object) -> ExecutionPlanBuilder:
    builder = ExecutionPlanBuilder()
    for i in range(3):
        builder.add_buffer(i, Buffer.empty((16,), "float32"))
    for op in ops:
        builder.add_op(op)  # type: ignore[arg-type]
    builder.set_output_buffer(1)
    return builder


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (_kernel(outputs=()), "at least one output index"),
        (_kernel(outputs=(2,)), "positions among its 2 buffers, got 2"),
        (_kernel(buffers=(0, 9)), r"\[0, 3\), got 9"),
        (_kernel(buffers=(0, 1, 2)), "must have 2 buffers, got 3"),
        (_kernel(outputs=(0,)), "writes 'out', so 1 must be an output index"),
        (_kernel(device="cuda:0"), "device must be one of cpu"),
        (_kernel(vals=(1, 2)), "must have 1 vals, got 2"),
        (_kernel(dependencies=(77,)), "depends on op 77"),
        (PreparedCopy(1, (0,)), "two buffers"),
        (PreparedCopy(1, (0, 5)), r"\[0, 3\), got 5"),
        (PreparedBufferView(1, (0,), 0, 4), "two buffers"),
        (PreparedBufferView(1, (0, 1), 0, 4), "out must be"),
    ],
)
def test_malformed_ops_are_refused(op: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        _builder(op).build(threads=1)


def test_outputs_must_be_set_and_exist() -> None:
    builder = ExecutionPlanBuilder()
    builder.add_buffer(0, Buffer.empty((4,), "float32"))
    with pytest.raises(PlanError, match="must be set"):
        builder.build(threads=1)
    builder.set_output_buffer(4)
    with pytest.raises(PlanError, match=r"\[0, 1\), got 4"):
        builder.build(threads=1)


def test_map_and_replace_check_their_index() -> None:
    builder = _builder()
    with pytest.raises(PlanError, match="map_buffer"):
        builder.map_buffer(5, 9)
    with pytest.raises(PlanError, match="replace_buffer"):
        builder.replace_buffer(-1, Buffer.empty((1,), "float32"))


def test_buffers_must_hold_what_the_kernel_touches() -> None:
    builder = _builder(_kernel())
    builder.replace_buffer(1, Buffer.empty((15,), "float32"))
    with pytest.raises(PlanError, match=r"buffer 1 must hold .*64 bytes.* it has 60 bytes"):
        builder.build(threads=1)


def test_copies_need_equal_sizes() -> None:
    builder = _builder(PreparedCopy(1, (0, 1)))
    builder.replace_buffer(1, Buffer.empty((15,), "float32"))
    with pytest.raises(PlanError, match="same size"):
        builder.build(threads=1)


def test_unknown_custom_function_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="'EncDec'"):
        _builder(PreparedCustomFunction(1, "EncDec", None, (0,))).build(threads=1)


def test_initial_values_must_be_in_range_and_agree() -> None:
    with pytest.raises(VariableError, match=r"\[0, 16\], got 17"):
        _builder(_kernel(vals=(17,))).build(threads=1)
    with pytest.raises(PlanError, match="one value, got 3 and 4"):
        _builder(_kernel(vals=(3,)), _kernel(id=2, vals=(4,))).build(threads=1)


def test_a_cycle_is_shown_without_what_merely_waits_for_it() -> None:
    builder = _builder(
        _kernel(id=1, dependencies=(2,)),
        _kernel(id=2, dependencies=(1,)),
        _kernel(id=3, dependencies=(1,)),
    )
    with pytest.raises(CycleError, match="2 -> 1 -> 2") as caught:
        builder.build(threads=1)
    assert sorted(caught.value.cycle) == [1, 2]  # type: ignore[attr-defined]
    assert caught.value.blocked == [3]  # type: ignore[attr-defined]


def test_repeated_ids_mean_the_latest_earlier_instance() -> None:
    builder = _builder(_kernel(id=42), _kernel(id=42, dependencies=(42,)), _kernel(id=42))
    plan = builder.build(threads=1)
    assert plan.engine.parts.after == ((), (0,), ())
    with pytest.raises(PlanError, match="earlier op 7"):
        _builder(_kernel(id=42, dependencies=(7,)), _kernel(id=42), _kernel(id=7)).build(threads=1)


def test_instance_dependencies_name_positions() -> None:
    builder = _builder(_kernel(id=1))
    builder.add_op_with_instance_dependencies(_kernel(id=1), [0])
    assert builder.build(threads=1).engine.parts.after == ((), (0,))
    for wrong, message in (([5], "position 5"), ([0], "itself")):
        builder = _builder()
        builder.add_op_with_instance_dependencies(_kernel(id=1), wrong)
        with pytest.raises(PlanError, match=message):
            builder.build(threads=1)


def test_an_explicit_dependency_orders_what_bytes_do_not() -> None:
    builder = ExecutionPlanBuilder()
    for i in range(4):
        builder.add_buffer(i, Buffer.empty((16,), "float32"))
    builder.add_op(_kernel(buffers=(0, 1), id=1, fixedvars={"n": 16}))
    builder.add_op(_kernel(buffers=(2, 3), id=2, fixedvars={"n": 16}, dependencies=(1,)))
    builder.set_output_buffer(1)
    assert builder.build(threads=1).steps == [[[0, 1]]]


def test_map_buffer_gives_a_buffer_two_names() -> None:
    builder = _builder(_kernel(fixedvars={"n": 16}))
    builder.map_buffer(99, 1)
    plan = builder.build(threads=1)
    assert plan.buffer(99) is plan.buffer(1)
    assert plan.buffer(1234) is None
    assert plan.ast_to_buffer_map[99] == 1
    assert plan.output_buffer_idx == 1
    assert plan.num_outputs == 1
    assert plan.output_buffer_at(1) is None


def test_build_fills_pointers_and_ids() -> None:
    plan = _builder(_kernel()).build(threads=1)
    (op,) = plan.prepared_kernels
    assert op.buffer_ptrs == (plan.buffers[0].address, plan.buffers[1].address)
    assert op.buffer_ids == (plan.buffers[0].storage_id, plan.buffers[1].storage_id)
    assert [v.name for v in op.runtime_vars] == ["n"]
    assert plan.kernels == (DOUBLE,)


def test_a_builder_builds_once() -> None:
    builder = _builder()
    builder.build(threads=1)
    with pytest.raises(PlanError, match="already called"):
        builder.build(threads=1)


def test_buffers_are_aligned_and_have_slack() -> None:
    for shape in ((0,), (1,), (17,), (100_000,)):
        buffer = Buffer.empty(shape, "float32")
        assert buffer.address % 64 == 0
        assert isinstance(buffer.memory, HostMemory)
        assert buffer.memory.bytes.size >= max(buffer.nbytes, 64) + 64
        assert not buffer.numpy().any()


def test_a_buffer_copies_and_views_share() -> None:
    source = np.arange(8, dtype=np.float32)
    buffer = Buffer(source)
    source[0] = 99
    assert buffer.numpy()[0] == 0
    view = buffer.view(8, 8)
    view.copyin(np.array([7, 7], np.float32))
    np.testing.assert_array_equal(buffer.numpy(), [0, 1, 7, 7, 4, 5, 6, 7])
    assert view.storage_id == buffer.storage_id
    out = np.zeros(2, np.float32)
    view.copyout(out)
    np.testing.assert_array_equal(out, [7, 7])
    with pytest.raises(PlanError, match="must lie within"):
        buffer.view(16, 32)
    with pytest.raises(PlanError, match="multiples of 4"):
        buffer.view(2, 4)
    for wrong in (0.5, "0", None):
        with pytest.raises(PlanError, match="byte_offset must be an int, got"):
            buffer.view(wrong, 4)  # type: ignore[arg-type]


def test_copies_go_to_arrays_that_can_take_them() -> None:
    buffer = Buffer(np.zeros(2, np.float32))
    frozen = np.ones(2, np.float32)
    frozen.flags.writeable = False
    masked = np.ma.masked_array(np.ones(2, np.float32), [True, False])
    for target, why in (
        ([0.0, 0.0], "needs a NumPy array, got list"),
        (None, "needs a NumPy array, got NoneType"),
        (frozen, "array must be writeable"),
        (masked, "must not be a masked array"),
        (np.ones(3, np.float32), r"array must be float32\[2\], got float32\[3\]"),
        (np.ones(2, np.float64), r"array must be float32\[2\], got float64\[2\]"),
    ):
        with pytest.raises(InputError, match=why):
            buffer.copyout(target)  # type: ignore[arg-type]
    assert frozen.all() and masked.data.all()


def test_scalar_and_bool_buffers_keep_shape_and_dtype() -> None:
    assert Buffer(np.float32(3)).numpy().shape == ()
    flags = np.array([True, False, True])
    np.testing.assert_array_equal(Buffer(flags).numpy(), flags)


def test_sketch_outputs_in_order() -> None:
    s = Sketch(8)
    s.op("double", "x", "a")
    s.op("increment", "x", "b")
    plan = s.build("b", "a")
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffers[0].numpy(), np.ones(8))
    np.testing.assert_array_equal(plan.output_buffers[1].numpy(), np.zeros(8))
