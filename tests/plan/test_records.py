"""What records, the builder and the plan take: copies, of the right types, or a typed error."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
from tests.plan.build import Sketch, symbolic_add, typed
from tests.plan.kernels import kernel

import semel
from semel import Variable
from semel.errors import (
    CustomFunctionError,
    CycleError,
    InputError,
    PlanError,
    SemelError,
    UnsupportedError,
    UserError,
)
from semel.ir.signature import BufferSpec, KernelSignature
from semel.ir.types import FLOAT32
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.row import RuntimeVar
from semel.plan.rows import (
    PreparedBranch,
    PreparedBufferView,
    PreparedCopy,
    PreparedCustomFunction,
    PreparedKernel,
    PreparedLoop,
    PreparedSignal,
    PreparedWait,
)
from semel.runtime.buffer import Buffer
from semel.runtime.kernel import CachedKernel
from semel.runtime.timeline import TimelineSignal

N = Variable("n", 0, 16)
GOOD: dict[type[Any], dict[str, Any]] = {
    PreparedKernel: {
        "id": 1,
        "ast": None,
        "kernel": kernel("double", N),
        "device": "cpu",
        "buffer_indices": (0, 1),
        "output_indices": (1,),
    },
    PreparedCopy: {"id": 1, "buffer_indices": (0, 1)},
    PreparedBufferView: {"id": 1, "buffer_indices": (0, 1), "byte_offset": 0, "byte_size": 4},
    PreparedCustomFunction: {"id": 1, "kind": "all_reduce", "attrs": None, "buffer_indices": (0,)},
    PreparedLoop: {"id": 1, "counter": "i", "trip": 3, "body": ()},
    PreparedBranch: {"id": 1, "buffer_indices": (0,), "then": ()},
    PreparedSignal: {"id": 1, "signal": TimelineSignal("s"), "value": 3},
    PreparedWait: {"id": 1, "signal": TimelineSignal("s"), "value": 3},
    RuntimeVar: {"name": "n", "min_val": 0, "max_val": 4},
}
NO_INT = (3.5, "3", None, True, [1])
NO_INTS = (3, None, "12", b"12", (3.5,), ("x",), (None,), (True,), 2.5, [[1]])
NO_VALUES = (None, 3, "n", [("n", 1)], {"n": 3.5}, {"n": None}, {"n": True}, {5: 3}, {"n": 1 << 70})
NO_TEXT = (None, 5, b"x", ("x",))
NO_VARS = (None, 3, "n", ("n",), (N,), RuntimeVar("n", 0))
WRONG: dict[str, tuple[Any, ...]] = {
    "id": NO_INT,
    "kernel": (None, "x", 5, kernel("double", N).signature),
    "device": NO_TEXT,
    "lane": NO_TEXT,
    "kind": NO_TEXT,
    "counter": NO_TEXT,
    "name": NO_TEXT,
    "buffer_indices": NO_INTS,
    "output_indices": NO_INTS,
    "dependencies": NO_INTS,
    "buffer_ptrs": NO_INTS,
    "buffer_ids": NO_INTS,
    "vals": (*NO_INTS, (1 << 70,)),
    "fixedvars": NO_VALUES,
    "runtime_vars": NO_VARS,
    "byte_offset": NO_INT,
    "byte_size": NO_INT,
    "trip": (3.5, "n", None, True, (3,)),
    "size": (3.5, "n", True, (3,)),
    "min_val": (3.5, "3", None, True, -(1 << 70)),
    "max_val": (3.5, "3", True, -1, 1 << 70),
    "body": (None, 5, "x", (5,), [None], (RuntimeVar("n", 0),)),
    "test": (None, 5, "x", (5,), [None]),
    "then": (None, 5, "x", (5,), [None]),
    "orelse": (None, 5, "x", (5,), [None]),
    "signal": (None, "s", 3),
    "value": (3.5, "n", None, True, (3,)),
    "notes": (None, "x", ("x",)),
}


@pytest.mark.parametrize("record", GOOD, ids=lambda record: record.__name__)
def test_every_field_refuses_what_it_is_not(record: type[Any]) -> None:
    record(**GOOD[record])
    for name in record.__dataclass_fields__.keys() - {"ast", "attrs"}:
        for wrong in WRONG[name]:
            with pytest.raises(UserError, match="must"):
                record(**{**GOOD[record], name: wrong})


@pytest.mark.parametrize(
    "record", [r for r in GOOD if r is not RuntimeVar], ids=lambda record: record.__name__
)
def test_records_keep_nothing_that_the_caller_can_change(record: type[Any]) -> None:
    given = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in GOOD[record].items()
    }
    given |= {"dependencies": np.array([7, 8])}
    fixed = {"n": np.int64(3)}
    if "fixedvars" in record.__dataclass_fields__:
        given |= {"fixedvars": fixed, "runtime_vars": [RuntimeVar("n", 0, 4)]}
    op = record(**given)
    before = {name: getattr(op, name) for name in record.__dataclass_fields__}
    before = {n: dict(v) if n == "fixedvars" else v for n, v in before.items()}
    fixed["n"] = np.int64(99)
    for value in given.values():
        if isinstance(value, list):
            value.clear()
        elif isinstance(value, np.ndarray):
            value[:] = 0
    for name, value in before.items():
        assert getattr(op, name) == value
    assert op.dependencies == (7, 8)
    assert all(type(dependency) is int for dependency in op.dependencies)
    if "fixedvars" in before:
        assert (dict(op.fixedvars), type(op.fixedvars["n"])) == ({"n": 3}, int)
        with pytest.raises(TypeError, match="does not support item assignment"):
            op.fixedvars["n"] = 4


def test_a_signature_keeps_nothing_that_the_caller_can_change() -> None:
    specs = [BufferSpec("out", FLOAT32, "w", 4)]
    signature = KernelSignature("k", specs, [N], 1)  # type: ignore[arg-type]
    specs.clear()
    assert (len(signature.buffers), signature.variables) == (1, (N,))


def test_a_clone_runs_what_build_checked() -> None:
    s = Sketch(16, fixed=False)
    fixed = {"n": 4}
    s.op("increment", "x", "out", fixedvars=fixed)
    plan = s.build("out")
    fixed["n"] = 1 << 20  # a clone that believed this would write past its buffer
    copy = plan.clone()
    copy.execute()
    assert copy.output_buffer.numpy().tolist() == [1] * 4 + [0] * 12


def _builder() -> ExecutionPlanBuilder:
    builder = ExecutionPlanBuilder()
    for i in range(3):
        builder.add_buffer(i, Buffer.empty((16,), "float32"))
    builder.set_output_buffer(1)
    return builder


COPY = PreparedCopy(1, (1, 0))
#: Each method with arguments that it takes, and for each argument what it does not.
METHODS: list[tuple[str, dict[str, tuple[Any, tuple[Any, ...]]]]] = [
    (
        "add_buffer",
        {
            "ast_id": (7, (3.5, "3", True)),
            "buffer": (Buffer.empty((4,), "float32"), (None, 3, np.zeros(3))),
        },
    ),
    ("map_buffer", {"ast_id": (7, NO_INT), "index": (1, (*NO_INT, 3, -1))}),
    (
        "replace_buffer",
        {
            "index": (1, (*NO_INT, 3, -1)),
            "buffer": (Buffer.empty((16,), "float32"), (None, np.zeros(3))),
        },
    ),
    ("set_output_buffer", {"index": (1, NO_INT)}),
    ("set_output_buffers", {"indices": ((1,), NO_INTS)}),
    ("add_kernel", {"kernel": (COPY, (None, "x", 3))}),
    ("add_op", {"op": (COPY, (None, "x", 3))}),
    (
        "add_op_with_instance_dependencies",
        {"op": (COPY, (None, "x", 3)), "positions": ((), NO_INTS)},
    ),
    ("add_alias_ids", {"ids": ((5, 6), (*NO_INTS, "abc"))}),
    (
        "declare_variable",
        {
            "variable": (N, (None, "n", 3)),
            "initial": (3, (3.5, "3", True, 17)),
            "capacity": (16, (3.5, "3", True, 1 << 70)),
        },
    ),
    ("add_guard", {"expr": (N % 2, (3.5, "n", None)), "message": ("even", (None, 3))}),
    (
        "declare_input",
        {
            "name": ("x", NO_TEXT),
            "index": (0, (*NO_INT, 3)),
            "type": (typed((16,)), (None, "f32[16]", 3)),
        },
    ),
    (
        "declare_output",
        {
            "name": ("x", NO_TEXT),
            "index": (1, (*NO_INT, 3)),
            "type": (typed((16,)), (None, "f32[16]", 3)),
        },
    ),
    ("build", {"threads": (1, (1.5, "1", True, 0, -1)), "order": ((), (5, "abc", (0.5,), (0,)))}),
]


@pytest.mark.parametrize(("name", "arguments"), METHODS, ids=[name for name, _ in METHODS])
def test_every_builder_method_refuses_what_it_does_not_take(
    name: str, arguments: dict[str, tuple[Any, tuple[Any, ...]]]
) -> None:
    good = {argument: value for argument, (value, _) in arguments.items()}
    builder = _builder()
    for argument, (_, wrong) in arguments.items():
        for value in wrong:
            with pytest.raises(UserError, match="must"):
                getattr(builder, name)(**{**good, argument: value})
    # None of the refused calls left anything behind.
    assert builder.build(threads=1).num_outputs == 1 if name == "build" else True
    getattr(_builder(), name)(**good)


@pytest.mark.parametrize(("name", "arguments"), METHODS, ids=[name for name, _ in METHODS])
def test_nothing_can_be_added_after_build(name: str, arguments: dict[str, Any]) -> None:
    builder = _builder()
    plan = builder.build(threads=1)
    with pytest.raises(PlanError, match=r"build\(\) was already called"):
        getattr(builder, name)(**{argument: value for argument, (value, _) in arguments.items()})
    assert (len(plan.buffers), plan.prepared_ops, plan.num_outputs) == (3, (), 1)


def test_text_for_ids_is_one_mistake() -> None:
    builder = _builder()
    with pytest.raises(PlanError, match="ids must be ints, got 'abc'"):
        builder.add_alias_ids("abc")  # type: ignore[arg-type]
    seen: list[int] = []
    builder.build(threads=1).release_all_buffers(seen.append)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("device", ["banana", "cuda:0", "", 3])
def test_a_device_that_is_not_there_is_refused(device: Any) -> None:
    makers: list[Callable[[], object]] = [
        lambda: Buffer.empty((4,), "float32", device=device),
        lambda: ExecutionPlanBuilder(device),
    ]
    for make in makers:
        with pytest.raises(UnsupportedError, match=r"device must be (one of cpu|written kind)"):
            make()


@pytest.mark.parametrize("address", ["x", 3.5, None])
def test_a_kernel_needs_an_address(address: Any) -> None:
    with pytest.raises(PlanError, match="address must be an int"):
        CachedKernel(kernel("double", N).signature, address, "double")
    with pytest.raises(PlanError, match="address must be an int"):
        semel.register_native_function("records.native", address)


# ---------------------------------------------------------------- outputs


def test_outputs_that_are_declared_and_set_must_agree() -> None:
    number = count()
    for declared, chosen in (((1,), (2,)), ((1, 2), (1,)), ((1, 2), (2, 1)), ((1, 1), (1,))):
        builder = _builder()
        for index in declared:
            builder.declare_output(f"out{next(number)}", index, typed((16,)))
        builder.set_output_buffers(chosen)
        with pytest.raises(PlanError, match="declared outputs must be set in the same order"):
            builder.build(threads=1)
        builder.set_output_buffers((*declared, 0))  # what is not declared may come on top
        assert builder.build(threads=1).num_outputs == len(declared) + 1


def test_one_buffer_has_one_type() -> None:
    builder = _builder()
    builder.declare_input("a", 0, typed((16,)))
    builder.declare_input("b", 0, typed((4, 4)))
    with pytest.raises(PlanError, match=r"'b'.*buffer 0 is the input 'a'"):
        builder.build(threads=1)
    builder = _builder()
    builder.declare_output("a", 1, typed((16,)))
    builder.declare_output("b", 1, typed((16,)))
    builder.set_output_buffers((1, 1))
    builder.declare_output("c", 1, typed((4, 4)))
    builder.set_output_buffers((1, 1, 1))
    with pytest.raises(PlanError, match=r"'c'.*must be f32\[16\] as the output 'a'"):
        builder.build(threads=1)


# ---------------------------------------------------------------- ids and custom functions


def test_a_cycle_of_repeated_ids_names_positions() -> None:
    builder = _builder()
    builder.add_op_with_instance_dependencies(PreparedCopy(42, (1, 0)), (1,))
    builder.add_op_with_instance_dependencies(PreparedCopy(42, (2, 0)), (0,))
    with pytest.raises(CycleError, match=r"42 -> 42 -> 42 \(ids repeat .* positions 1 -> 0 -> 1"):
        builder.build(threads=1)


def test_errors_of_ours_inside_a_custom_function_say_which() -> None:
    def wrong_shape(attrs: Any, buffers: Any, variables: Any) -> None:
        buffers[0].copyin(np.zeros(3, np.float32))

    def has_op(attrs: Any, buffers: Any, variables: Any) -> None:
        raise semel.IndexRangeError("gather", "index is out.", op="gather")

    for function, op_field in ((wrong_shape, 9), (has_op, "gather")):
        semel.custom_function("records.fails", writes=(0,))(function)
        try:
            builder = _builder()
            builder.add_op(PreparedCustomFunction(9, "records.fails", None, (1,)))
            plan = builder.build(threads=1)
            with pytest.raises(SemelError, match=r"\[op 9 \(records.fails\)\] \[") as caught:
                plan.execute()
        finally:
            semel.unregister_custom_function("records.fails")
        error: Any = pickle.loads(pickle.dumps(caught.value))
        assert (error.op, error.kind) == (op_field, "records.fails")
        assert type(error) in (InputError, semel.IndexRangeError)


def test_whatever_a_check_raises_names_the_operation() -> None:
    def check(attrs: Any, types: Any, names: Any) -> None:
        attrs["missing"]

    semel.custom_function("records.checked", check=check)(lambda attrs, buffers, variables: None)
    try:
        builder = _builder()
        builder.add_op(PreparedCustomFunction(9, "records.checked", {}, (1,)))
        with pytest.raises(CustomFunctionError, match="called wrongly: KeyError") as caught:
            builder.build(threads=1)
    finally:
        semel.unregister_custom_function("records.checked")
    error: Any = caught.value
    assert (error.op, error.kind) == (9, "records.checked")


@pytest.mark.parametrize(
    ("name", "options"),
    [(5, {}), ("records.f", {"reads": "ab"}), ("records.f", {"writes": 3})],
)
def test_a_custom_function_is_registered_with_names_and_positions(
    name: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(PlanError, match="must be"):
        semel.custom_function(name, **options)(lambda attrs, buffers, variables: None)
    with pytest.raises(PlanError, match="must be callable"):
        semel.custom_function("records.f")(5)  # type: ignore[arg-type]


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("values", [5, "n", b"n", 3.5, [3], ["nn"], [("n", 1, 2)]])
def test_values_of_variables_go_by_name(values: Any) -> None:
    plan = symbolic_add()
    for method in (plan.execute_with_vars, plan.execute_with_vars_profiled, plan.execute_profiled):
        with pytest.raises(UserError, match="must"):
            method(values)
    assert plan.variables == {"n": None}


def test_values_may_be_pairs() -> None:
    plan = symbolic_add()
    for given, expected in (([("n", 5)], 5), ((("n", 5), ["n", 6]), 6)):
        plan.buffers[0].copyin(np.ones(expected, np.float32))
        plan.buffers[1].copyin(np.ones(expected, np.float32))
        plan.execute_with_vars(given)  # type: ignore[arg-type]
        assert plan.variables == {"n": expected}


#: Names that parameters have somewhere on the way of a variable or an input.
AWKWARD = ("self", "limits", "values", "named", "inputs", "name", "array", "copy", "order")


@pytest.mark.parametrize("name", AWKWARD)
def test_a_variable_may_have_any_name(name: str) -> None:
    s = Sketch(16, fixed=False)
    s.op("increment", "x", "out", runtime_vars=(RuntimeVar(name, 0, 16),))
    plan = s.build("out")
    for size, run in enumerate((plan.execute_with_vars, plan.execute_with_vars_profiled), 3):
        s.buffers["out"].copyin(np.zeros(16, np.float32))
        run(**{name: size})
        assert plan.variables == {name: size}
        assert s.buffers["out"].numpy().sum() == size
    assert plan.memory.at(**{name: 3}) == plan.memory


@pytest.mark.parametrize("name", AWKWARD)
def test_an_input_may_have_any_name(name: str) -> None:
    plan = semel.prepare(semel.Tensor.input(name, (3,), "float32") + 1, threads=1)
    for _ in range(2):  # the slow path, then the one that remembers
        assert plan(**{name: np.arange(3, dtype=np.float32)}).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("buffer", ("none", None, 1.5, True)),
        ("output_buffer_at", ("0", None, 1.5, True)),
        ("release_intermediate_buffers", (5, "f")),
        ("release_all_buffers", (5, "f")),
    ],
)
def test_every_plan_method_refuses_what_it_does_not_take(name: str, wrong: tuple[Any, ...]) -> None:
    plan = symbolic_add()
    for value in wrong:
        with pytest.raises(PlanError, match="must be"):
            getattr(plan, name)(value)
    ones = np.ones(4, np.float32)
    assert plan(x=ones, y=ones).tolist() == [2] * 4  # nothing was released
