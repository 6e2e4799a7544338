"""Custom functions: the registry, declared accesses, native conventions, built-ins, failures."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.ops.cases_elementwise import ONE_ROUNDING
from tests.plan.build import Sketch, table_of, typed
from tests.plan.kernels import TILE

import semel
from semel.devices.cpu.elf import LoadedCode, load_object
from semel.devices.cpu.toolchain import compile_ir, host_target
from semel.errors import (
    BusyError,
    CodecError,
    CustomFunctionError,
    PlanError,
    StaleError,
    UnsupportedError,
)
from semel.ir.abi import Header
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.plan import ExecutionPlan
from semel.plan.row import RuntimeVar
from semel.plan.rows import PreparedCustomFunction
from semel.runtime import custom
from semel.runtime.buffer import Buffer
from semel.runtime.custom import (
    custom_function,
    custom_function_names,
    find_custom_function,
    unregister_custom_function,
)
from semel.runtime.functions import encoded_bytes_at_most

Buffers = Sequence[Buffer]


@pytest.fixture(autouse=True)
def clean_registry() -> Iterator[None]:
    before = set(custom_function_names())
    yield
    for name in set(custom_function_names()) - before:
        unregister_custom_function(name)


def _plan(kind: str, attrs: Any, *arrays: Any, **options: Any) -> ExecutionPlan:
    """One custom function on buffers with these contents; all of them are outputs."""
    builder = ExecutionPlanBuilder()
    indices = tuple(builder.add_buffer(i, Buffer(a)) for i, a in enumerate(arrays))
    builder.add_op(PreparedCustomFunction(1, kind, attrs, indices, **options))
    builder.set_output_buffers(indices)
    return builder.build(threads=1)


def _results(plan: ExecutionPlan) -> list[np.ndarray]:
    plan.execute()
    return [b.numpy() for b in plan.output_buffers]


# ---------------------------------------------------------------- registry and hazards


def test_a_decorated_function_is_called_with_attrs_buffers_and_variables() -> None:
    seen: list[Any] = []

    @semel.custom_function("test_scale", reads=(0,), writes=(1,))
    def scale(attrs: Any, buffers: Buffers, variables: Mapping[str, int]) -> None:
        seen.append(dict(variables))
        buffers[1].copyin(buffers[0].numpy() * np.float32(attrs["by"]))

    x = np.arange(4, dtype=np.float32)
    plan = _plan("test_scale", {"by": 3}, x, np.zeros_like(x), fixedvars={"k": 7})
    np.testing.assert_array_equal(_results(plan)[1], 3 * x)
    assert seen == [{"k": 7}]


def test_names_are_registered_once() -> None:
    semel.custom_function("test_once")(lambda attrs, buffers, variables: None)
    with pytest.raises(PlanError, match="already registered"):
        semel.custom_function("test_once")(lambda attrs, buffers, variables: None)
    with pytest.raises(PlanError, match="is not registered"):
        unregister_custom_function("test_nobody")
    with pytest.raises(PlanError, match=r"name must be a str, got \[\]"):
        unregister_custom_function([])  # type: ignore[arg-type]


def test_an_unknown_kind_is_unsupported_and_the_builder_stays_usable() -> None:
    builder = ExecutionPlanBuilder()
    index = builder.add_buffer(0, Buffer.empty((4,), "float32"))
    builder.add_op(PreparedCustomFunction(9, "test_later", {"a": 1}, (index,)))
    builder.set_output_buffer(index)
    with pytest.raises(UnsupportedError, match="'test_later' must be registered") as caught:
        builder.build(threads=1)
    assert (caught.value.kind, caught.value.op) == ("test_later", 9)  # type: ignore[attr-defined]

    @semel.custom_function("test_later", writes=(0,))
    def later(attrs: Any, buffers: Buffers, variables: Mapping[str, int]) -> None:
        buffers[0].copyin(np.ones(4, np.float32))

    np.testing.assert_array_equal(_results(builder.build(threads=1))[0], np.ones(4))


def test_a_plan_keeps_its_function_when_the_name_is_taken_away() -> None:
    semel.custom_function("test_gone", reads=(), writes=(0,))(
        lambda attrs, buffers, variables: buffers[0].copyin(np.ones(2, np.float32))
    )
    plan = _plan("test_gone", None, np.zeros(2, np.float32))
    unregister_custom_function("test_gone")
    np.testing.assert_array_equal(_results(plan)[0], [1, 1])


def test_declared_positions_must_exist() -> None:
    semel.custom_function("test_far", reads=(3,))(lambda *_: None)
    with pytest.raises(CustomFunctionError, match="position 3 is declared"):
        _plan("test_far", None, np.zeros(2, np.float32))


def test_hazards_follow_the_declared_sets() -> None:
    semel.custom_function("test_reader", reads=(0, 1), writes=())(lambda *_: None)
    semel.custom_function("test_anything")(lambda *_: None)
    for kind, expected in (("test_reader", [(), ()]), ("test_anything", [(), (0,)])):
        s = Sketch(16)
        s.builder.add_op(PreparedCustomFunction(1, kind, None, (s.buffer("x"), s.buffer("y"))))
        s.op("double", "x", "out")
        assert s.build("out").op_dependencies == expected


def test_writing_what_was_not_declared_is_refused() -> None:
    caught: list[Exception] = []

    @semel.custom_function("test_sly", reads=(0,), writes=())
    def sly(attrs: Any, buffers: Buffers, variables: Mapping[str, int]) -> None:
        for attempt in (
            lambda: buffers[0].copyin(np.ones(2, np.float32)),
            lambda: buffers[0].view(0, 4).copyin(np.ones(1, np.float32)),
            lambda: buffers[0].view(0, 8).view(4, 4).copyin(np.ones(1, np.float32)),
            lambda: buffers[0].array().__setitem__(0, 1),
        ):
            try:
                attempt()
            except Exception as error:
                caught.append(error)

    np.testing.assert_array_equal(_results(_plan("test_sly", None, np.zeros(2, np.float32)))[0], 0)
    assert [type(e) for e in caught] == [PlanError, PlanError, PlanError, ValueError]


def test_buffers_are_void_after_the_call() -> None:
    kept: list[Buffer] = []
    semel.custom_function("test_keep")(lambda attrs, buffers, variables: kept.extend(buffers))
    _results(_plan("test_keep", None, np.zeros(2, np.float32)))
    with pytest.raises(PlanError, match="released"):
        kept[0].numpy()


def test_views_of_buffers_are_void_after_the_call() -> None:
    kept: list[Buffer] = []

    @semel.custom_function("test_part", reads=(), writes=(0,))
    def part(attrs: Any, buffers: Buffers, variables: Mapping[str, int]) -> None:
        half = buffers[0].view(0, 8)
        half.view(4, 4).copyin(np.ones(1, np.float32))
        kept.extend([half, half.view(4, 4)])

    np.testing.assert_array_equal(
        _results(_plan("test_part", None, np.zeros(3, np.float32)))[0], [0, 1, 0]
    )
    for view in kept:
        with pytest.raises(PlanError, match="released"):
            view.copyin(np.ones(view.shape, np.float32))


def test_functions_see_symbolic_buffers_at_the_current_variables() -> None:
    shapes: list[tuple[int, ...]] = []
    values: list[int] = []

    @semel.custom_function("test_shapes", reads=(0,), writes=())
    def look(attrs: Any, buffers: Buffers, variables: Mapping[str, int]) -> None:
        shapes.append(buffers[0].numpy().shape)
        values.append(variables["n"])

    s = Sketch(64, fixed=False)
    s.op("increment", "x", "a", id=1)
    n = RuntimeVar("n", 0, 64)
    s.builder.add_op(
        PreparedCustomFunction(2, "test_shapes", None, (s.buffer("a"),), runtime_vars=(n,))
    )
    s.builder.declare_output("a", s.buffer("a"), typed((semel.Variable("n", 0, 64),)))
    plan = s.build("a")
    for size in (5, 9, 0):
        plan.execute_with_vars(n=size)
    assert shapes == [(5,), (9,), (0,)]
    assert values == [5, 9, 0]


def test_fixed_variables_win_in_functions_too() -> None:
    seen: list[int] = []
    semel.custom_function("test_fixed")(
        lambda attrs, buffers, variables: seen.append(variables["n"])
    )
    builder = ExecutionPlanBuilder()
    index = builder.add_buffer(0, Buffer.empty((4,), "float32"))
    n = RuntimeVar("n", 0, 9)
    for id_, fixed in ((1, {"n": 3}), (2, {})):
        builder.add_op(
            PreparedCustomFunction(
                id_, "test_fixed", None, (index,), fixedvars=fixed, runtime_vars=(n,)
            )
        )
    builder.set_output_buffer(index)
    plan = builder.build(threads=1)
    plan.execute_with_vars(n=5)
    assert seen == [3, 5]


# ---------------------------------------------------------------- native functions

_NATIVE = """
define void @c_scale(ptr %buffers, ptr %sizes, ptr %vars) {
entry:
  %src = load ptr, ptr %buffers, align 8
  %pd = getelementptr ptr, ptr %buffers, i64 1
  %dst = load ptr, ptr %pd, align 8
  %bytes = load i64, ptr %sizes, align 8
  %by = load i64, ptr %vars, align 8
  %count = lshr i64 %bytes, 3
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i1, %body ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %exit
body:
  %pa = getelementptr i64, ptr %src, i64 %i
  %a = load i64, ptr %pa, align 8
  %r = mul i64 %a, %by
  %po = getelementptr i64, ptr %dst, i64 %i
  store i64 %r, ptr %po, align 8
  %i1 = add i64 %i, 1
  br label %head
exit:
  ret void
}
define void @k_store(ptr %lane, ptr %buffers, ptr %vals, i64 %tb, i64 %te) {
  %dst = load ptr, ptr %buffers, align 8
  %v = load i64, ptr %vals, align 8
  store i64 %v, ptr %dst, align 8
  %bad = icmp eq i64 %v, 13
  br i1 %bad, label %fail, label %exit
fail:
  %code = getelementptr i64, ptr %lane, i64 3
  store i64 4, ptr %code, align 8
  %row_at = getelementptr i64, ptr %lane, i64 2
  %row = load i64, ptr %row_at, align 8
  %status_row = getelementptr i64, ptr %lane, i64 4
  store i64 %row, ptr %status_row, align 8
  %value = getelementptr i64, ptr %lane, i64 5
  store i64 %v, ptr %value, align 8
  br label %exit
exit:
  ret void
}
"""


@cache
def _native() -> LoadedCode:
    return load_object(compile_ir(_NATIVE, host_target()))


def test_a_c_function_gets_pointers_sizes_and_variables() -> None:
    semel.register_native_function("test_c", _native().address("c_scale"), reads=(0,), writes=(1,))
    x = np.arange(5)
    by = RuntimeVar("by", 0, 100)
    plan = _plan("test_c", None, x, np.zeros_like(x), runtime_vars=(by,))
    for factor in (3, 10):
        plan.execute_with_vars(by=factor)
        np.testing.assert_array_equal(plan.output_buffers[1].numpy(), factor * x)


def test_a_kernel_function_is_a_row_of_the_runner_and_may_fail() -> None:
    semel.register_native_function(
        "test_k", _native().address("k_store"), convention="kernel", reads=(), writes=(0,)
    )
    value = RuntimeVar("v", 0, 100)
    plan = _plan("test_k", None, np.zeros(1, np.int64), runtime_vars=(value,))
    plan.execute_with_vars(v=42)
    assert plan.output_buffer.numpy()[0] == 42
    with pytest.raises(CustomFunctionError, match="status 4 with value 13"):
        plan.execute_with_vars(v=13)
    plan.execute_with_vars(v=14)
    assert plan.output_buffer.numpy()[0] == 14


def test_a_ctypes_callback_is_a_native_function_too() -> None:
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

    def fill(buffers: int, sizes: int, values: int) -> None:
        size = ctypes.c_int64.from_address(sizes).value
        ctypes.memset(ctypes.c_void_p.from_address(buffers).value or 0, 7, size)

    callback = kind(fill)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    semel.register_native_function("test_fill", address or 0, reads=(), writes=(0,))
    plan = _plan("test_fill", None, np.zeros(9, np.uint8))
    np.testing.assert_array_equal(_results(plan)[0], np.full(9, 7))


@pytest.mark.parametrize(("options", "message"), [({"address": 0}, "address"), ({}, "convention")])
def test_bad_native_registrations_are_refused(options: dict[str, int], message: str) -> None:
    address = options.get("address", 8)
    convention = "c" if "address" in options else "fortran"
    with pytest.raises(PlanError, match=message):
        semel.register_native_function("test_bad", address, convention=convention)


# ---------------------------------------------------------------- failures


def _declared(action: Any, *, threads: int = 1) -> tuple[Sketch, ExecutionPlan]:
    semel.custom_function("test_action")(lambda attrs, buffers, variables: action(buffers))
    s = Sketch(64 * TILE, bytes_per_element=1000)
    s.op("double", "x", "a", id=1)
    s.builder.add_op(PreparedCustomFunction(2, "test_action", None, (s.buffer("a"),)))
    s.op("reverse", "a", "out", id=3)
    s.builder.declare_input("x", s.buffer("x"), typed((64 * TILE,)))
    s.builder.declare_output("out", s.buffer("out"), typed((64 * TILE,)))
    return s, s.build("out", threads=threads)


def test_outputs_are_invalid_after_a_failure_until_the_next_success() -> None:
    fail = [False]

    def action(buffers: Buffers) -> None:
        if fail[0]:
            raise ValueError("on purpose")

    _, plan = _declared(action)
    x = np.ones(64 * TILE, np.float32)
    plan(x=x)
    view = plan.output_buffer.borrow()
    fail[0] = True
    with pytest.raises(CustomFunctionError, match="ValueError: on purpose"):
        plan.execute()
    for read in (plan.output_buffer.numpy, plan.output_buffer.borrow, view.numpy):
        with pytest.raises(StaleError, match=r"the last execute failed|ran again"):
            read()
    fail[0] = False
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), 2 * x)


def test_the_first_run_may_fail_too() -> None:
    def action(buffers: Buffers) -> None:
        raise ValueError("on purpose")

    _, plan = _declared(action)
    with pytest.raises(StaleError, match="nothing was executed"):
        plan.output_buffer.numpy()
    with pytest.raises(CustomFunctionError, match="on purpose"):
        plan(x=np.ones(64 * TILE, np.float32))
    with pytest.raises(StaleError, match="last execute failed"):
        plan.output_buffer.numpy()


def test_nothing_of_the_plan_can_be_changed_from_inside_its_run() -> None:
    x = np.ones(64 * TILE, np.float32)
    errors: list[str] = []

    def action(buffers: Buffers) -> None:
        for attempt in (
            plan.execute,
            lambda: plan(x=x),
            plan.release_all_buffers,
            plan.release_intermediate_buffers,
            plan.clone,
            lambda: plan.bind_input("x", x),
            plan.unbind,
            lambda: plan.buffers[s.buffer("x")].copyin(x),
            plan.execute_profiled,
        ):
            try:
                attempt()
                errors.append(f"{attempt} passed")
            except BusyError:
                pass

    s, plan = _declared(action)
    np.testing.assert_array_equal(plan(x=x), 2 * x)
    assert not errors


def test_the_workers_are_free_during_a_host_call() -> None:
    """Another plan gets a helper while the first one sits in Python."""
    other = Sketch(16 * TILE)
    other.op("who", "x", "out")
    helper = other.build("out", threads=2)
    lanes: set[float] = set()

    def action(buffers: Buffers) -> None:
        assert not table_of(plan).words[Header.RECRUITED]
        for _ in range(200):
            helper.execute()
            lanes.update(helper.output_buffer.numpy().tolist())
            if len(lanes) == 2:
                break

    _, plan = _declared(action, threads=2)
    plan(x=np.ones(64 * TILE, np.float32))
    assert lanes == {0.0, 1.0}


def test_a_host_function_may_use_threads_and_other_plans() -> None:
    inner = Sketch(8)
    inner.op("double", "x", "out")
    inner_plan = inner.build("out")
    done: list[bool] = []

    def action(buffers: Buffers) -> None:
        thread = threading.Thread(target=inner_plan.execute)
        thread.start()
        thread.join(100)
        done.append(not thread.is_alive())

    _, plan = _declared(action)
    plan(x=np.ones(64 * TILE, np.float32))
    assert done == [True]


# ---------------------------------------------------------------- built-ins


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_all_reduce_gives_everybody_the_result(op: str, dtype: str) -> None:
    kind = semel.ir.types.as_dtype(dtype).numpy
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((3, 5)).astype(kind) for _ in range(3)]
    results = _results(_plan("all_reduce", {"op": op}, *parts))
    wide = np.stack([p.astype(np.float64) for p in parts])
    expected = getattr(wide, op)(axis=0)
    for result in results:
        np.testing.assert_array_equal(result, results[0])
        np.testing.assert_allclose(
            result.astype(np.float64), expected, rtol=2 * ONE_ROUNDING.get(dtype, 1e-7)
        )


def test_all_reduce_of_integers() -> None:
    a, b = np.array([1, 5]), np.array([7, -2])
    assert _results(_plan("all_reduce", None, a, b))[1].tolist() == [8, 3]
    assert _results(_plan("all_reduce", {"op": "max"}, a, b))[0].tolist() == [7, 5]


@pytest.mark.parametrize(
    ("attrs", "arrays", "message"),
    [
        ({"op": "xor"}, [np.zeros(2)], "op must be one of"),
        ({"op": "mean"}, [np.zeros(2, np.int64)], "mean needs floats"),
        ({"op": "sum"}, [np.zeros(2, bool)], "sum needs numbers"),
        ({}, [np.zeros(2), np.zeros(3)], "one type"),
        ([], [np.zeros(2)], "attrs must be a mapping"),
    ],
)
def test_all_reduce_is_checked_at_build(attrs: Any, arrays: list[Any], message: str) -> None:
    with pytest.raises(CustomFunctionError, match=message):
        _plan("all_reduce", attrs, *arrays)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool"])
def test_decode_undoes_encode(seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.integers(0, 256, 1000) if seed % 2 else np.arange(1000) // 100).astype(dtype)
    room = np.zeros(encoded_bytes_at_most(x.nbytes), np.uint8)
    builder = ExecutionPlanBuilder()
    indices = [builder.add_buffer(i, Buffer(a)) for i, a in enumerate((x, room, np.zeros_like(x)))]
    builder.add_op(PreparedCustomFunction(1, "encode", {"level": 9}, (indices[0], indices[1])))
    builder.add_op(PreparedCustomFunction(2, "decode", None, (indices[1], indices[2])))
    builder.set_output_buffer(indices[2])
    np.testing.assert_array_equal(_results(builder.build(threads=1))[0], x)


def _encoded(x: np.ndarray) -> np.ndarray:
    room = np.zeros(encoded_bytes_at_most(x.nbytes), np.uint8)
    return _results(_plan("encode", None, x, room))[1]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d.__setitem__(0, 0), "must start with"),
        (lambda d: d.__setitem__(8, d[8] ^ 1), "dst must be as large"),
        (lambda d: d.__setitem__(slice(16, 24), 255), "cut short"),
        (lambda d: d.__setitem__(slice(30, 40), 0), "zlib data|cut short"),
        (lambda d: d.__setitem__(16, d[16] - 5), "cut short"),
    ],
)
def test_damaged_bytes_are_a_codec_error(damage: Any, message: str) -> None:
    x = np.arange(500, dtype=np.int64)
    data = _encoded(x)
    damage(data)
    plan = _plan("decode", None, data, np.zeros_like(x))
    with pytest.raises(CodecError, match=message):
        plan.execute()
    plan.buffers[0].copyin(_encoded(x))
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffers[1].numpy(), x)


def test_every_flipped_byte_is_noticed_or_harmless() -> None:
    x = np.arange(64, dtype=np.int32)
    data = _encoded(x)
    used = 24 + int.from_bytes(data[16:24].tobytes(), "little")
    plan = _plan("decode", None, data, np.zeros_like(x))
    for position in range(used):
        damaged = data.copy()
        damaged[position] ^= 0x10
        plan.buffers[0].copyin(damaged)
        try:
            plan.execute()
        except CodecError:
            continue
        np.testing.assert_array_equal(plan.output_buffers[1].numpy(), x)


def test_encode_needs_room_for_the_worst_case() -> None:
    with pytest.raises(CustomFunctionError, match="dst must hold"):
        _plan("encode", None, np.zeros(100, np.float32), np.zeros(100, np.uint8))


@pytest.mark.parametrize("largest", [True, False])
def test_top_k_is_sorted_and_stable(largest: bool) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 6, (4, 20)).astype(np.float32)
    attrs = {"k": 5, "largest": largest}
    _, values, indices = _results(
        _plan("top_k", attrs, x, np.zeros((4, 5), np.float32), np.zeros((4, 5), np.int64))
    )
    for row in range(4):
        key = [(-v if largest else v, i) for i, v in enumerate(x[row].tolist())]
        assert indices[row].tolist() == [i for _, i in sorted(key)[:5]]
    np.testing.assert_array_equal(values, np.take_along_axis(x, indices, -1))


def test_top_k_is_checked_at_build() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(CustomFunctionError, match="k must be <= 3"):
        _plan("top_k", {"k": 4}, x, np.zeros((2, 4), np.float32), np.zeros((2, 4), np.int64))
    with pytest.raises(CustomFunctionError, match="indices must be int64"):
        _plan("top_k", {"k": 1}, x, np.zeros((2, 1), np.float32), np.zeros((2, 1), np.int32))


def test_random_fill_is_a_function_of_key_and_stream() -> None:
    def draw(key: int, stream: int, distribution: str = "uniform") -> np.ndarray:
        attrs = {"key": key, "stream": "step", "distribution": distribution}
        step = RuntimeVar("step", 0, None)
        plan = _plan("random_fill", attrs, np.zeros(20_000, np.float32), runtime_vars=(step,))
        plan.execute_with_vars(step=stream)
        return plan.output_buffer.numpy()

    a = draw(1, 0)
    np.testing.assert_array_equal(a, draw(1, 0))
    assert not np.array_equal(a, draw(2, 0))
    assert not np.array_equal(a, draw(1, 1))
    assert a.min() >= 0 and a.max() <= 1 and abs(a.mean() - 0.5) < 0.01
    normal = draw(1, 0, "normal")
    assert abs(normal.mean()) < 0.03 and abs(normal.std() - 1) < 0.03


def test_random_fill_is_checked_at_build() -> None:
    x = np.zeros(3, np.float32)
    for attrs, message in (
        ({}, "key must be"),
        ({"key": 1, "stream": "step"}, "stream must be a variable"),
        ({"key": 1, "distribution": "bits"}, "bits need integers"),
        ({"key": 1, "distribution": "cauchy"}, "distribution must be one of"),
    ):
        with pytest.raises(CustomFunctionError, match=message):
            _plan("random_fill", attrs, x)


def test_built_in_functions_are_found_by_name_in_the_modules_that_the_table_names() -> None:
    for name in ("all_reduce", "encode", "decode", "top_k", "random_fill", "graph"):
        found = find_custom_function(name)
        assert found is not None
        assert found.name == name
        assert name in custom_function_names()


def test_a_built_in_function_gives_way_to_one_of_that_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(custom, "_registered", dict(custom._registered))
    built_in = find_custom_function("top_k")
    unregister_custom_function("top_k")
    assert find_custom_function("top_k") is None
    custom_function("top_k")(lambda attrs, buffers, variables: None)
    assert find_custom_function("top_k") not in (None, built_in)


def test_encoded_bytes_may_fill_their_buffer() -> None:
    x = np.arange(500, dtype=np.int64)
    data = _encoded(x)
    size = 24 + int.from_bytes(data[16:24].tobytes(), "little")
    plan = _plan("decode", None, data[:size].copy(), np.zeros_like(x))
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffers[1].numpy(), x)
    with pytest.raises(CodecError, match="cut short"):
        _plan("decode", None, data[: size - 1].copy(), np.zeros_like(x)).execute()
