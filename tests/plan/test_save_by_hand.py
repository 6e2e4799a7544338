"""Plan files of plans built by hand: what comes back, what cannot be saved, what is refused."""

from __future__ import annotations

import enum
import json
import math
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.build import symbolic_add, typed
from tests.plan.test_custom import _native
from tests.plan.test_custom import _plan as function_plan
from tests.plan.test_save import _break, header_of, resigned

import semel
from semel import Tensor, Variable, loading
from semel.errors import (
    BusyError,
    CustomFunctionError,
    InputError,
    OutOfMemoryError,
    PlanError,
    PlanFileError,
    ReleasedError,
    SemelError,
    StaleError,
    VariableError,
)
from semel.ir.plain import MAX_DEPTH, decode_plain, encode_plain
from semel.ir.types import FLOAT32, TensorType
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.plan import ExecutionPlan
from semel.plan.row import RuntimeVar
from semel.plan.rows import PreparedBufferView, PreparedCopy, PreparedCustomFunction, PreparedKernel
from semel.runtime.allocator import counters
from semel.runtime.buffer import Array, Buffer
from semel.runtime.custom import (
    custom_function,
    custom_function_names,
    register_native_function,
    unregister_custom_function,
)
from semel.runtime.kernel import CachedKernel

TOP = 64
N = Variable("n", 0, TOP)
X = np.arange(TOP, dtype=np.float32)
ROW = TensorType((N,), FLOAT32)


@cache
def kernels() -> dict[str, CachedKernel]:
    """Compiled kernels over n floats: what they write comes first."""
    x, y = Tensor.input("x", (N,), "float32"), Tensor.input("y", (N,), "float32")
    made = {"double": x * 2, "add": x + y}
    programs = {name: tensor.prepare().program for name, tensor in made.items()}
    found = {name: p.kernels[0] for name, p in programs.items()}
    serial = replace(found["double"].signature, host_parallel_safe=False)
    return {**found, "double": replace(found["double"], signature=serial)}


def call(op_id: int, name: str, *buffers: int, **options: Any) -> PreparedKernel:
    """A call of a kernel; the first buffer is written."""
    options.setdefault("ast", None)
    return PreparedKernel(
        id=op_id,
        kernel=kernels()[name],
        device="cpu",
        buffer_indices=buffers,
        output_indices=(0,),
        **options,
    )


@pytest.fixture(autouse=True)
def clean_registry() -> Iterator[None]:
    before = set(custom_function_names())
    yield
    for name in set(custom_function_names()) - before:
        unregister_custom_function(name)


def scale(attrs: Any, buffers: Sequence[Buffer], variables: Mapping[str, int]) -> None:
    buffers[1].copyin(buffers[0].numpy() * np.float32(attrs["by"]) + variables["shift"])


def register_scale() -> None:
    custom_function("scale", reads=(0,), writes=(1,))(scale)


def full_plan() -> ExecutionPlan:
    """Every kind of operation, and every field with a value that is not its default.

    mid = 2x; tail = the second half of mid; held = tail copied; out = 3 * held + shift.
    """
    if "scale" not in custom_function_names():
        register_scale()
    b = ExecutionPlanBuilder()
    mid = Buffer.empty((TOP,), "float32")
    half = 2 * TOP  # bytes
    x = b.add_buffer(10, Buffer.empty((TOP,), "float32"))
    m = b.add_buffer(11, mid)
    tail = b.add_buffer(12, mid.view(half, half))
    held = b.add_buffer(13, Buffer.empty((TOP // 2,), "float32"))
    out = b.add_buffer(14, Buffer.empty((TOP // 2,), "float32"))
    b.map_buffer(99, m)
    b.add_alias_ids([7, 8])
    b.declare_variable(Variable("shift", 0, 5))
    b.declare_input("x", x, TensorType((Variable("rows", 1, TOP),), FLOAT32))
    b.declare_output("out", out, typed((TOP // 2,)))
    b.set_output_buffers([out, m])
    b.add_guard(Variable("rows", 1, TOP) - TOP, "rows must be all of them")
    rows = RuntimeVar("rows", 1, TOP)
    b.add_op(call(1, "double", m, x, ast=("model.py:3",), vals=(TOP,), runtime_vars=(rows,)))
    b.add_op(PreparedBufferView(2, (tail, m), half, half, dependencies=(1,)))
    b.add_op(PreparedCopy(3, (held, tail), dependencies=(2, 1)))
    b.add_op_with_instance_dependencies(
        PreparedCustomFunction(
            4,
            "scale",
            {"by": 3.0, "tag": (b"\0\1", None)},
            (held, out),
            {"fixed": 3},
            (3,),
            (rows,),
        ),
        [0],
    )
    return b.build(threads=1)


def expected(shift: int) -> Array:
    result: Array = (2 * X)[TOP // 2 :] * np.float32(3) + np.float32(shift)
    return result


def through_file(plan: ExecutionPlan, place: Path, **options: Any) -> ExecutionPlan:
    plan.save(place)
    return semel.load_plan(place, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the full plan."""
    place = tmp_path / "hand.plan"
    full_plan().save(place)
    return place


# ---------------------------------------------------------------- what comes back


def test_a_plan_of_every_kind_of_operation_runs_after_a_load(path: Path) -> None:
    loaded = semel.load_plan(path)
    loaded.buffers[0].copyin(X)
    loaded.execute_with_vars(shift=2)
    assert np.array_equal(loaded.output_buffer.numpy(), expected(2))
    assert np.array_equal(loaded(x=X)[1], 2 * X)
    assert loaded.compile_count == 0


def test_every_field_of_every_record_comes_back(path: Path) -> None:
    """A field that is added and not saved comes back as its default, and fails here."""
    made, loaded = full_plan(), semel.load_plan(path, threads=1)
    here = {"buffer_ptrs", "buffer_ids", "kernel"}  # addresses
    for op, other in zip(made.prepared_ops, loaded.prepared_ops, strict=True):
        assert type(op) is type(other)
        for field in fields(op):
            if field.name not in here:
                assert getattr(op, field.name) == getattr(other, field.name), field.name
    completed = {"rows", "guards", "variables", "compile_count"}  # those of the plan are compared
    for field in fields(made.program):
        if field.name not in completed:
            found = getattr(loaded.program, field.name)
            assert getattr(made.program, field.name) == found, field.name
    for name in ("after", "order", "blocks", "variables", "guards", "ast_to_buffer"):
        assert getattr(made.engine.parts, name) == getattr(loaded.engine.parts, name), name
    assert [b.type for b in made.buffers] == [b.type for b in loaded.buffers]
    assert loaded.device == made.device
    assert loaded.engine.parts.functions == made.engine.parts.functions
    assert loaded.op_dependencies == made.op_dependencies
    assert loaded.steps == made.steps
    assert [k.signature for k in loaded.kernels] == [k.signature for k in made.kernels]
    assert "model.py:3" in str(loaded.explain()) + str(loaded.prepared_kernels[0].ast)


def test_no_saved_field_of_the_full_plan_has_its_default() -> None:
    """What keeps the test above honest."""
    parts = full_plan().engine.parts
    for name in ("alias_ids", "guards", "input_io", "output_io", "variables", "functions"):
        assert getattr(parts, name), name
    assert any(v.initial is not None for v in parts.variables)
    assert set(parts.ast_to_buffer) == {10, 11, 12, 13, 14, 99}
    function = next(op for op in parts.ops if isinstance(op, PreparedCustomFunction))
    assert function.fixedvars and function.runtime_vars and function.attrs
    assert all(op.dependencies for op in parts.ops[1:])
    assert 0 in parts.after[3] and 1 not in function.dependencies


def test_release_callbacks_hear_of_all_ids(path: Path) -> None:
    heard: list[int] = []
    semel.load_plan(path).release_all_buffers(heard.append)
    assert heard == [10, 11, 99, 12, 13, 14, 7, 8]


def test_a_loaded_plan_saves_the_file_it_came_from(path: Path) -> None:
    again, third = path.with_name("again.plan"), path.with_name("third.plan")
    semel.load_plan(path).save(again)
    full_plan().save(third)
    assert path.read_bytes() == again.read_bytes() == third.read_bytes()


def test_a_plan_without_kernels_comes_back(tmp_path: Path) -> None:
    b = ExecutionPlanBuilder()
    source, target = b.add_buffer(0, Buffer(X)), b.add_buffer(1, Buffer.empty((TOP,), "float32"))
    b.add_op(PreparedCopy(1, (target, source)))
    b.set_output_buffer(target)
    loaded = through_file(b.build(), tmp_path / "copy.plan")
    loaded.execute()
    assert np.array_equal(loaded.output_buffer.numpy(), X)


def test_a_plan_of_nothing_comes_back(tmp_path: Path) -> None:
    loaded = through_file(ExecutionPlanBuilder().build(), tmp_path / "none.plan")
    loaded.execute()
    assert loaded.num_outputs == 0


def test_repeated_ids_keep_their_meaning(tmp_path: Path) -> None:
    """With repeated ids a dependency means the latest earlier operation of that id."""
    b = ExecutionPlanBuilder()
    at = [b.add_buffer(i, Buffer.empty((TOP,), "float32")) for i in range(4)]
    b.add_op(PreparedCopy(5, (at[1], at[0])))
    b.add_op(PreparedCopy(5, (at[2], at[0])))
    b.add_op(PreparedCopy(6, (at[3], at[0]), dependencies=(5,)))
    b.set_output_buffers(at[1:])
    made = b.build(threads=1)
    loaded = through_file(made, tmp_path / "ids.plan", threads=1)
    assert loaded.op_dependencies == made.op_dependencies == [(), (), (1,)]


def test_a_given_order_comes_back(tmp_path: Path) -> None:
    def build(order: Sequence[int] | None) -> ExecutionPlan:
        b = ExecutionPlanBuilder()
        at = [b.add_buffer(i, Buffer.empty((TOP,), "float32")) for i in range(4)]
        for i in range(3):
            b.add_op(PreparedCopy(i, (at[i + 1], at[0])))
        b.set_output_buffers(at[1:])
        return b.build(threads=1, order=order)

    assert through_file(build([2, 0, 1]), tmp_path / "a.plan").op_order == (2, 0, 1)
    assert through_file(build(None), tmp_path / "b.plan").op_order == (0, 1, 2)


# ---------------------------------------------------------------- memory


def test_overlaps_survive(tmp_path: Path) -> None:
    """A shift by one element through overlapping views of one storage, and windows of no view."""
    b = ExecutionPlanBuilder()
    base = Buffer(X)
    low = b.add_buffer(1, base.view(0, 4 * (TOP - 1)))
    high = b.add_buffer(2, Buffer.window(base.memory, 4, 4 * (TOP - 1), typed((TOP - 1,))))
    whole = b.add_buffer(3, base)
    held = b.add_buffer(4, Buffer.empty((TOP - 1,), "float32"))
    b.add_op(PreparedCopy(1, (held, low)))
    b.add_op(PreparedCopy(2, (high, held)))
    b.set_output_buffer(whole)
    made = b.build(threads=1)
    loaded = through_file(made, tmp_path / "shift.plan")
    assert loaded.op_dependencies == made.op_dependencies
    ranges = [buffer.byte_range for buffer in loaded.buffers]
    assert [r[1:] for r in ranges[:3]] == [(0, 252), (4, 256), (0, 256)]
    assert len({r[0] for r in ranges}) == 2
    for plan in (made, loaded):
        plan.execute()
        plan.execute()
    assert loaded.output_buffer.numpy().tolist() == [0, 0, 0, *range(1, TOP - 2)]
    assert np.array_equal(loaded.output_buffer.numpy(), made.output_buffer.numpy())


def test_contents_are_those_at_save_time(tmp_path: Path) -> None:
    """An accumulator goes on from where it was."""
    b = ExecutionPlanBuilder()
    total, step = Buffer(X), Buffer(np.ones(TOP, np.float32))
    t, s = b.add_buffer(1, total), b.add_buffer(2, step)
    b.add_op(PreparedCustomFunction(1, "all_reduce", {"op": "sum"}, (t, s)))
    b.set_output_buffer(t)
    plan = b.build()
    plan.execute()
    loaded = through_file(plan, tmp_path / "total.plan")
    plan.execute()
    loaded.execute()
    assert np.array_equal(loaded.output_buffer.numpy(), 2 * (X + 1))
    assert np.array_equal(loaded.output_buffer.numpy(), plan.output_buffer.numpy())


def test_undeclared_buffers_can_be_written_and_leave_the_file_alone(tmp_path: Path) -> None:
    """A plan built by hand need not declare its inputs."""
    b = ExecutionPlanBuilder()
    at = [b.add_buffer(i, Buffer(X)) for i in range(2)]
    b.add_op(call(1, "double", at[1], at[0], fixedvars={"n": TOP}))
    b.set_output_buffer(at[1])
    place = tmp_path / "double.plan"
    first = through_file(b.build(), place)
    before = place.read_bytes()
    first.buffers[0].copyin(X + 1)
    first.execute()
    second = semel.load_plan(place)
    second.execute()
    assert np.array_equal(first.output_buffer.numpy(), 2 * X + 2)
    assert np.array_equal(second.output_buffer.numpy(), 2 * X)
    assert place.read_bytes() == before


@pytest.mark.usefixtures("settled")
def test_what_is_never_written_stays_in_the_file(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32)
    b = ExecutionPlanBuilder()
    w, out = b.add_buffer(0, Buffer(weights)), b.add_buffer(1, Buffer.empty((4,), "float32"))
    part = b.add_buffer(2, b._buffers[w].view(400, 16))
    b.add_op(PreparedCopy(1, (out, part)))
    b.set_output_buffer(out)
    b.build().save(tmp_path / "weights.plan")
    before = counters().live_bytes
    loaded = semel.load_plan(tmp_path / "weights.plan")
    loaded.execute()
    assert counters().live_bytes - before < 4096
    assert np.array_equal(loaded.output_buffer.numpy(), weights[100:104])
    assert loaded.buffers[w].address % 64 == 0


def test_zeros_take_no_room(tmp_path: Path) -> None:
    b = ExecutionPlanBuilder()
    at = [b.add_buffer(i, Buffer.empty((1 << 20,), "float32")) for i in range(2)]
    b.add_op(PreparedCopy(1, (at[1], at[0])))
    b.set_output_buffer(at[1])
    place = tmp_path / "zeros.plan"
    assert not through_file(b.build(), place).buffers[0].numpy().any()
    assert place.stat().st_size < 1 << 16


def test_one_buffer_under_two_indices_stays_one(tmp_path: Path) -> None:
    b = ExecutionPlanBuilder()
    buffer = Buffer.empty((TOP,), "float32")
    x, again = b.add_buffer(1, buffer), b.add_buffer(1, buffer)
    out = b.add_buffer(2, Buffer.empty((TOP,), "float32"))
    b.declare_input("x", x, typed((TOP,)))
    b.add_op(PreparedCopy(1, (out, again)))
    b.set_output_buffer(out)
    loaded = through_file(b.build(), tmp_path / "twice.plan")
    assert loaded.buffers[x] is loaded.buffers[again]
    assert loaded.ast_to_buffer_map == {1: again, 2: out}
    assert np.array_equal(loaded(x=X), X)


def test_a_view_of_a_void_output_stays_void(path: Path) -> None:
    """A view asks the buffer that it is part of, before and after a load."""
    b = ExecutionPlanBuilder()
    result = Buffer.empty((TOP,), "float32")
    part = b.add_buffer(3, result.view(0, 8))
    src, out = b.add_buffer(1, Buffer(X)), b.add_buffer(2, result)
    b.add_op(PreparedCopy(1, (out, src)))
    b.declare_output("out", out, typed((TOP,)))
    loaded = through_file(b.build(), path)
    with pytest.raises(StaleError, match="nothing was executed"):
        loaded.buffers[part].numpy()
    loaded.execute()
    assert loaded.buffers[part].numpy().tolist() == [0, 1]


def test_a_memory_limit_holds(path: Path) -> None:
    with pytest.raises(OutOfMemoryError, match="100 are free"):
        semel.load_plan(path, memory_limit=100)
    assert semel.load_plan(path, memory_limit=1 << 20).memory_limit == 1 << 20


# ---------------------------------------------------------------- variables and inputs


def test_unbound_variables_stay_unbound(path: Path) -> None:
    loaded = semel.load_plan(path)
    assert loaded.variables == {"rows": TOP, "shift": None}
    loaded.buffers[0].copyin(X)
    with pytest.raises(VariableError, match="shift"):
        loaded.execute()


def test_current_values_come_back_and_not_the_first_ones(tmp_path: Path) -> None:
    plan = symbolic_double()
    assert plan.variables == {"n": 8}
    plan.buffers[0].copyin(X[:5])
    plan.execute_with_vars(n=5)
    loaded = through_file(plan, tmp_path / "n.plan")
    assert loaded.variables == {"n": 5}
    loaded.execute()
    assert loaded.output_buffer.numpy().tolist() == [0, 2, 4, 6, 8]
    assert loaded.prepared_kernels[0].vals == (5,)


def symbolic_double() -> ExecutionPlan:
    b = ExecutionPlanBuilder()
    x, out = (b.add_buffer(i, Buffer.empty((TOP,), "float32")) for i in range(2))
    b.declare_input("x", x, ROW)
    b.declare_output("out", out, ROW)
    b.add_op(call(1, "double", out, x, vals=(8,)))
    return b.build(threads=1)


def test_bounds_and_guards_hold_after_a_load(path: Path) -> None:
    loaded = semel.load_plan(path)
    loaded.buffers[0].copyin(X)
    with pytest.raises(VariableError, match=r"\[0, 5\], got 6"):
        loaded.execute_with_vars(shift=6)
    with pytest.raises(VariableError, match="rows must be all of them"):
        loaded.execute_with_vars(shift=1, rows=3)


def test_a_written_input_is_written_after_a_load(tmp_path: Path) -> None:
    plan = full_plan()
    plan.buffers[0].copyin(X)
    plan.execute_with_vars(shift=1)
    loaded = through_file(plan, tmp_path / "written.plan")
    loaded.execute()
    assert np.array_equal(loaded.output_buffer.numpy(), expected(1))


def test_an_input_that_was_never_written_is_refused_after_a_load(path: Path) -> None:
    with pytest.raises(InputError, match="'x'"):
        semel.load_plan(path).execute_with_vars(shift=1)


def test_a_bound_array_is_saved_and_stays_bound(tmp_path: Path) -> None:
    """The file has the contents of the array; the plan goes on reading the array."""
    plan, array = symbolic_double(), X[:8].copy()
    plan.bind_input("x", array)
    loaded = through_file(plan, tmp_path / "bound.plan")
    assert plan.buffers[0].address == array.ctypes.data and plan.engine.bindings.staged() == []
    array += 1
    plan.execute()
    loaded.execute()
    assert plan.output_buffer.numpy().tolist() == list(range(2, 18, 2))
    assert loaded.output_buffer.numpy().tolist() == list(range(0, 16, 2))
    loaded.buffers[0].copyin(X[:8])


def test_a_variable_without_a_maximum_keeps_its_capacity(tmp_path: Path) -> None:
    b = ExecutionPlanBuilder()
    x, out = (b.add_buffer(i, Buffer.empty((TOP,), "float32")) for i in range(2))
    m = Variable("m", 1)
    b.declare_variable(m, 3, capacity=TOP)
    b.add_op(call(1, "double", out, x, runtime_vars=(RuntimeVar("m", 1, TOP),)))
    b.set_output_buffer(out)
    made = b.build()
    loaded = through_file(made, tmp_path / "m.plan")
    assert loaded.engine.parts.variables == made.engine.parts.variables
    assert loaded.variables == {"m": 3}


# ---------------------------------------------------------------- custom functions


@pytest.mark.parametrize(
    "attrs",
    [
        None,
        {"by": 2},
        {"a": [1, 2.5, "x", b"\xff\0", None, True], "b": {"c": ()}, 3: (1, [2])},
        [math.inf, -math.inf, -0.0, 5e-324, 1 << 127, -(1 << 200), 10**5000],
        "text with \ud800 and \0",
        {(1, "two"): {b"key": 3j}},
    ],
)
def test_plain_attrs_come_back_with_their_types(tmp_path: Path, attrs: Any) -> None:
    seen: list[Any] = []

    @custom_function("look", reads=(0,), writes=(0,))
    def look(given: Any, buffers: Sequence[Buffer], variables: Mapping[str, int]) -> None:
        seen.append(given)

    through_file(one_function("look", attrs), tmp_path / "look.plan").execute()
    assert _typed(seen[0]) == _typed(attrs)


def _typed(value: Any) -> Any:
    """The value with the types of all its parts; -0.0 and 0.0 differ."""
    if isinstance(value, dict):
        return [(_typed(k), _typed(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [_typed(v) for v in value]
    return type(value), repr(value) if isinstance(value, (float, complex)) else value


def one_function(kind: str, attrs: Any, **options: Any) -> ExecutionPlan:
    b = ExecutionPlanBuilder()
    b.set_output_buffer(b.add_buffer(0, Buffer(X)))
    b.add_op(PreparedCustomFunction(1, kind, attrs, (0,), **options))
    return b.build(threads=1)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary() | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(PLAIN)
def test_any_plain_data_survives_json(value: Any) -> None:
    blobs: list[bytes] = []

    def add(data: bytes) -> list[int]:
        blobs.append(data)
        return [len(blobs) - 1, len(data)]

    entry = json.loads(json.dumps(encode_plain(value, "value", add)))
    assert _typed(decode_plain(entry, lambda place: blobs[place[0]])) == _typed(value)


class Colour(enum.IntEnum):
    RED = 1


def _cyclic() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize(
    ("attrs", "where"),
    [
        ({"by": np.ones(3)}, r"op 1 \(look\): attrs\['by'\] must be plain data .* got ndarray"),
        ({"by": [1, {2: np.float32(1)}]}, r"attrs\['by'\]\[1\]\[2\] must .* got float32"),
        ({"by": len}, r"attrs\['by'\] must .* got builtin_function_or_method"),
        ([np.float64(2)], r"attrs\[0\] must .* got float64"),
        ({1, 2}, r"attrs must be plain data .* got set"),
        ({"c": Colour.RED}, r"attrs\['c'\] must .* got Colour"),
        ({Colour.RED: 1}, r"attrs key .* must .* got Colour"),
        (_cyclic(), f"must be nested less than {MAX_DEPTH} deep"),
    ],
)
def test_attrs_that_are_not_plain_data_are_named(tmp_path: Path, attrs: Any, where: str) -> None:
    custom_function("look", reads=(0,), writes=(0,))(lambda attrs, buffers, variables: None)
    plan = one_function("look", attrs)
    with pytest.raises(PlanError, match=where):
        plan.save(tmp_path / "look.plan")
    with pytest.raises(PlanError, match=where):
        pickle.dumps(plan)
    assert not list(tmp_path.iterdir())
    plan.execute()


def test_an_ast_that_is_not_plain_data_is_left_out(tmp_path: Path) -> None:
    b = ExecutionPlanBuilder()
    x, out = (b.add_buffer(i, Buffer(X)) for i in range(2))
    b.add_op(call(1, "double", out, x, ast=object(), fixedvars={"n": 4}))
    b.set_output_buffer(out)
    loaded = through_file(b.build(), tmp_path / "ast.plan")
    assert loaded.prepared_kernels[0].ast is None
    loaded.execute()
    assert loaded.output_buffer.numpy()[:5].tolist() == [0, 2, 4, 6, 4]


def test_functions_that_are_not_registered_are_named_before_anything_is_loaded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unregister_custom_function("scale")
    monkeypatch.setattr(loading, "_load_kernels", lambda file: pytest.fail("code was loaded"))
    monkeypatch.setattr(loading, "_rebuild_kernels", lambda file: pytest.fail("code was made"))
    for options in ({}, {"recompile": True}, {"trust": False}):
        with pytest.raises(PlanFileError, match="not registered: scale") as caught:
            semel.load_plan(path, **options)
        assert caught.value.functions == ["scale"]  # type: ignore[attr-defined]
    monkeypatch.undo()
    register_scale()
    semel.load_plan(path)


def test_a_function_that_refuses_the_call_now_is_an_error_of_the_call(path: Path) -> None:
    def check(attrs: Any, types: Any, names: Any) -> None:
        raise PlanError("scale", f"by must be small, got {attrs['by']}")

    unregister_custom_function("scale")
    custom_function("scale", reads=(0,), writes=(1,), check=check)(scale)
    with pytest.raises(CustomFunctionError, match=r"by must be small, got 3\.0"):
        semel.load_plan(path)


def test_built_in_functions_are_always_there(tmp_path: Path) -> None:
    attrs = {"key": 1 << 100, "stream": "s", "distribution": "normal"}
    plan = one_function("random_fill", attrs, runtime_vars=(RuntimeVar("s", 0, 9),))
    plan.execute_with_vars(s=3)
    loaded = through_file(plan, tmp_path / "random.plan")
    loaded.execute()
    assert np.array_equal(loaded.output_buffer.numpy(), plan.output_buffer.numpy())
    loaded.execute_with_vars(s=4)
    assert not np.array_equal(loaded.output_buffer.numpy(), plan.output_buffer.numpy())


@pytest.mark.parametrize(
    ("convention", "name", "result"), [("c", "c_scale", [0, 4, 8]), ("kernel", "k_store", [4])]
)
def test_native_functions_go_by_their_names(
    tmp_path: Path, convention: str, name: str, result: list[int]
) -> None:
    register_native_function("native", _native().address(name), convention=convention)
    arrays = [np.arange(len(result)), np.zeros(len(result), np.int64)]
    plan = function_plan("native", None, *arrays, runtime_vars=(RuntimeVar("k", 0, 9),))
    place = tmp_path / "native.plan"
    loaded = through_file(plan, place)
    loaded.execute_with_vars(k=4)
    assert loaded.output_buffers[convention == "c"].numpy().tolist() == result
    unregister_custom_function("native")
    with pytest.raises(PlanFileError, match="not registered: native"):
        semel.load_plan(place)


# ---------------------------------------------------------------- what cannot be saved


def test_kernels_without_code_are_named(tmp_path: Path) -> None:
    b = ExecutionPlanBuilder()
    x, out = (b.add_buffer(i, Buffer(X)) for i in range(2))
    kind = typed((TOP,))
    for i, address in enumerate((0x1000, 0x2000)):
        kernel = CachedKernel.from_pointer(address, [kind], [kind])
        b.add_op(PreparedKernel(i, None, kernel, "cpu", (x, out), (1,)))
    b.add_op(call(3, "double", out, x, fixedvars={"n": 4}))
    b.set_output_buffer(out)
    plan = b.build()
    with pytest.raises(PlanError, match="pointer_1000, pointer_2000") as caught:
        plan.save(tmp_path / "pointers.plan")
    assert caught.value.kernels == ["pointer_1000", "pointer_2000"]  # type: ignore[attr-defined]
    with pytest.raises(PlanError, match="no code is known of add"):
        symbolic_add().save(tmp_path / "add.plan")
    with pytest.raises(PlanError, match="pointer_1000"):
        pickle.dumps(plan)
    assert not list(tmp_path.iterdir())


def test_a_released_plan_cannot_be_saved(tmp_path: Path) -> None:
    plan = full_plan()
    plan.release_all_buffers()
    with pytest.raises(ReleasedError, match="its buffers were released"):
        plan.save(tmp_path / "gone.plan")
    assert not list(tmp_path.iterdir())


def test_a_plan_cannot_be_saved_from_inside_its_run(tmp_path: Path) -> None:
    def look(attrs: Any, buffers: Sequence[Buffer], variables: Mapping[str, int]) -> None:
        plan.save(tmp_path / "inside.plan")

    custom_function("look", reads=(0,), writes=(0,))(look)
    plan = one_function("look", None)
    with pytest.raises(BusyError, match="inside itself"):
        plan.execute()
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- other ways to load


@pytest.mark.parametrize("options", [{"recompile": True}, {"trust": False}])
def test_kernels_can_be_rebuilt(path: Path, options: dict[str, bool]) -> None:
    loaded = semel.load_plan(path, **options)
    assert loaded.compile_count == 1
    loaded.buffers[0].copyin(X)
    loaded.execute_with_vars(shift=2)
    assert np.array_equal(loaded.output_buffer.numpy(), expected(2))


def test_pickle_carries_everything() -> None:
    plan = full_plan()
    plan.buffers[0].copyin(X)
    plan.execute_with_vars(shift=5)
    copy = pickle.loads(pickle.dumps(plan))
    assert copy.threads == plan.threads and copy.variables == plan.variables
    plan.execute_with_vars(shift=1)
    copy.execute()
    assert np.array_equal(copy.output_buffer.numpy(), expected(5))
    copy.buffers[0].copyin(X)


def test_a_clone_of_a_loaded_plan_runs(path: Path) -> None:
    clone = semel.load_plan(path).clone()
    clone.buffers[0].copyin(X)
    clone.execute_with_vars(shift=0)
    assert np.array_equal(clone.output_buffer.numpy(), expected(0))


def test_a_fresh_process_loads_without_a_compiler(path: Path) -> None:
    code = (
        "import json, sys, semel, numpy as np\n"
        "@semel.custom_function('scale', reads=(0,), writes=(1,))\n"
        "def scale(attrs, buffers, variables):\n"
        "    buffers[1].copyin(buffers[0].numpy() * np.float32(attrs['by']))\n"
        "plan = semel.load_plan(sys.argv[1])\n"
        "plan.buffers[0].copyin(np.arange(64, dtype=np.float32))\n"
        "plan.execute_with_vars(shift=0)\n"
        "print(json.dumps(['llvmlite' in sys.modules, plan.output_buffer.numpy().tolist()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "SEMEL_CACHE": "0"},
    )
    assert json.loads(done.stdout) == [False, expected(0).tolist()]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "change",
    [
        _break("memory", "nobody"),
        _break("program.device", "abacus"),
        _break("memory.storages.1", [-1, True, None, "cpu"]),
        _break("memory.storages.1", [256, True, 1 << 40, "cpu"]),
        _break("memory.storages.1", [256, False, 1 << 40, "cpu"]),
        _break("memory.storages.1", [256, False, None, "tpu"]),
        _break("memory.buffers.0", [0, 0, 1 << 20, ["float32", 64], None]),
        _break("memory.buffers.0", [0, -4, 64, ["float32", 16], None]),
        _break("memory.buffers.0", [9, 0, 64, ["float32", 16], None]),
        _break("memory.buffers.0.3", ["float32", 65]),
        _break("memory.buffers.0.3", ["float64", 64]),
        _break("memory.buffers.0", 0),
        _break("memory.buffers.1.4", 1),
        _break("memory.buffers.1.4", 2),
        _break("memory.buffers.0.4", 1),
        _break("program.values.0.ids", ["x"]),
        _break("program.rows.0.kernel", 3),
        _break("program.rows.0.outputs", []),
        _break("program.rows.0.kind", "python"),
        _break("program.rows.0.buffers", [2, 0]),
        _break("program.rows.1.bytes", [0, 128]),
        _break("program.rows.2.dependencies", [4]),
        _break("program.rows.3.function", ["os", "system"]),
        _break("program.rows.3.attrs", ["eval", "1"]),
        _break("program.rows.3.attrs", ["bytes", 0, 1 << 40]),
        _break("program.rows.3.attrs", ["dict", [["list"], 1]]),
        _break("program.order", [3, 2, 1, 0]),
        _break("program.order", [0, 0, 1, 2]),
        _break("program.results", [5]),
        _break("memory.values.n", 65),
        _break("memory.values.shift", 1 << 70),
        _break("memory.shapes.x", [65]),
        _break("memory.shapes.x", [1, 1]),
        _break("program.guards.0.1", 5),
    ],
)
def test_records_that_make_no_plan_are_refused(path: Path, change: Callable[[Any], None]) -> None:
    with pytest.raises(SemelError, match=r"must|needs|got"):
        loading.plan_from_bytes(resigned(path.read_bytes(), change))


def test_mutilated_records_never_escape_the_error_family(path: Path) -> None:
    """Whatever stands in the records, a load and a run work or raise an error of ours."""
    data, chance = path.read_bytes(), random.Random(0)
    odd: list[Any] = [None, -1, 3, 1 << 70, "x", [], {}, [[0]], True, 0.5]

    def mutilate(node: Any) -> None:
        # Kernels are code: what is said of them is not checked against what they do.
        node = {k: v for k, v in node.items() if k not in ("kernels", "runner", "targets")}
        while isinstance(node, (list, dict)) and node:
            key = chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if chance.random() < 0.3 or not isinstance(node[key], (list, dict)):
                node[key] = chance.choice(odd)
                return
            node = node[key]

    outcomes = set()
    for _ in range(400):
        try:
            plan = loading.plan_from_bytes(resigned(data, mutilate))
            outcomes.add("loaded")
            plan.buffers[0].copyin(X)
            plan.execute_with_vars(shift=1)
            for buffer in plan.buffers:
                buffer.numpy()
        except SemelError:
            outcomes.add("refused")
    assert outcomes == {"loaded", "refused"}


def test_a_flipped_bit_anywhere_is_refused(path: Path) -> None:
    plan = full_plan()
    plan.buffers[0].copyin(X)
    data = bytearray(plan.pack())
    for at in [*range(64), *range(64, len(data), 97), len(data) - 1]:
        data[at] ^= 1 << at % 8
        with pytest.raises(PlanFileError, match=r"^\[load_plan\]"):
            loading.plan_from_bytes(bytes(data))
        data[at] ^= 1 << at % 8
    loading.plan_from_bytes(bytes(data))


def test_a_file_without_the_memory_of_its_plan_is_refused(path: Path) -> None:
    rows = header_of(path.read_bytes())["program"]["rows"]
    assert [row["kind"] for row in rows] == ["kernel", "view", "copy", "function"]
    with pytest.raises(PlanError, match="place of a value must be known, got 'given'"):
        loading.plan_from_bytes(resigned(path.read_bytes(), _break("memory", None)))
