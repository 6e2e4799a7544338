"""prepare(bindings=, keep=), the arena switch, pairs of variables, repeated profiles, repr."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plan.build import Sketch, symbolic_add
from tests.plan.kernels import kernel

import semel
from semel import GraphError, PlanError, StaleError, Tensor, Variable, VariableError, config
from semel.plan.plan import ExecutionPlan
from semel.plan.row import RuntimeVar
from semel.plan.rows import PreparedKernel

N = Variable("n", 1, 64)
X = Tensor.input("x", (N, 4), "float32")
ROWS = np.arange(20, dtype=np.float32).reshape(5, 4)

# ---------------------------------------------------------------- bindings


@pytest.mark.parametrize("bindings", [{"n": 5}, [("n", 5)], [N.bind(5)], {"n": np.int64(5)}])
def test_a_plan_starts_with_its_bindings(bindings: Any) -> None:
    plan = (X * 2).prepare(bindings=bindings)
    assert plan.variables == {"n": 5}
    assert plan.prepared_kernels[0].vals == (5,)
    plan.buffer(X).copyin(ROWS)  # type: ignore[union-attr]
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), ROWS * 2)
    plan(x=ROWS[:3])
    assert plan.variables == {"n": 3}  # a first value, not a fixed one


def test_bindings_may_go_past_the_first_capacity() -> None:
    n = Variable("n", 1)
    plan = (Tensor.input("x", (n,), "float32") + 1).prepare(bindings={"n": 5000})
    plan(x=np.zeros(5000, np.float32))
    assert plan.growths == 0


def test_bindings_are_checked() -> None:
    with pytest.raises(VariableError, match=r"\(n\), got m\."):
        (X + 1).prepare(bindings={"m": 5})
    with pytest.raises(VariableError, match=r"'n' must lie in \[1, 64\], got 65"):
        (X + 1).prepare(bindings={"n": 65})
    with pytest.raises(VariableError, match=r"must be a mapping or pairs of name and value, got 5"):
        (X + 1).prepare(bindings=5)  # type: ignore[arg-type]


def test_bind_checks_and_names() -> None:
    assert N.bind(5) == ("n", 5)
    assert Variable("m", 2).bind(1 << 40) == ("m", 1 << 40)
    for wrong in (0, 65):
        with pytest.raises(VariableError, match=rf"must lie in \[1, 64\], got {wrong}"):
            N.bind(wrong)
    for no_int in (1.5, True, "5"):
        with pytest.raises(VariableError, match="must be an int"):
            N.bind(no_int)  # type: ignore[arg-type]


# ---------------------------------------------------------------- keep


def _two_layers() -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(0)
    w = Tensor(rng.standard_normal((4, 4), dtype=np.float32))
    hidden = X @ w
    return hidden, hidden.relu(), (hidden.relu() @ w).softmax(-1)


def test_what_is_kept_can_be_read_by_tensor_and_by_name() -> None:
    hidden, active, y = _two_layers()
    plan = y.prepare(keep={"hidden": hidden, "active": active})
    plain = y.prepare()
    assert plan.num_outputs == 1
    np.testing.assert_array_equal(plan(x=ROWS), plain(x=ROWS))
    wanted = hidden.prepare()(x=ROWS)
    for buffer in (plan.buffer(hidden), plan.kept["hidden"]):
        assert buffer is not None
        np.testing.assert_array_equal(buffer.numpy(), wanted)
    np.testing.assert_array_equal(plan.kept["active"].numpy(), np.maximum(wanted, 0))
    assert plain.kept == {}


def test_what_is_kept_shares_bytes_with_nothing() -> None:
    hidden, active, y = _two_layers()
    plan = y.prepare(keep=[hidden, active])
    assert list(plan.kept) == ["kept0", "kept1"]
    ranges = {b.byte_range for b in (*plan.kept.values(), *plan.output_buffers)}
    assert len({(start, end) for _, start, end in ranges}) == 3
    assert not any(e.shares_with for e in plan.explain().buffers if e.kind == "output")


def test_what_is_kept_is_stale_before_a_run() -> None:
    hidden, _, y = _two_layers()
    plan = y.prepare(keep=hidden)
    with pytest.raises(StaleError, match="nothing was executed"):
        plan.kept["kept0"].numpy()


def test_inputs_outputs_and_constants_can_be_kept() -> None:
    constant = Tensor(np.arange(4, dtype=np.float32))
    y = X + constant
    plan = y.prepare(keep=[X, y, constant])
    out = plan(x=ROWS)
    np.testing.assert_array_equal(plan.kept["kept0"].numpy(), ROWS)
    np.testing.assert_array_equal(plan.kept["kept1"].numpy(), out)
    np.testing.assert_array_equal(plan.kept["kept2"].numpy(), np.arange(4))
    assert plan.buffer(X) is plan.kept["kept0"]
    assert plan.num_outputs == 1


def test_a_clone_and_a_file_keep_too(tmp_path: Path) -> None:
    hidden, _, y = _two_layers()
    plan = y.prepare(keep={"hidden": hidden})
    plan(x=ROWS)
    wanted = plan.kept["hidden"].numpy()
    plan.save(tmp_path / "kept.plan")
    for other in (plan.clone(), semel.load_plan(tmp_path / "kept.plan")):
        other(x=ROWS)
        np.testing.assert_array_equal(other.kept["hidden"].numpy(), wanted)


def test_only_what_is_computed_can_be_kept() -> None:
    _, _, y = _two_layers()
    with pytest.raises(GraphError, match=r"must be computed for the outputs, 'kept0' .* is not"):
        y.prepare(keep=[X - 1])
    with pytest.raises(GraphError, match="keep must be Tensors, got int"):
        y.prepare(keep=[3])  # type: ignore[list-item]
    with pytest.raises(GraphError, match="names must not be those of outputs, got output0"):
        y.prepare(keep={"output0": y})


def test_the_buffer_of_an_output_is_found_by_its_tensor() -> None:
    y = (X + 0).sum()  # the sum is rewritten on its way to a kernel
    plan = y.prepare()
    plan(x=ROWS)
    found = plan.buffer(y)
    assert found is plan.output_buffer


# ---------------------------------------------------------------- the arena


@pytest.mark.parametrize("top", [64, None])
def test_values_that_share_no_bytes_give_the_same_bits(top: int | None) -> None:
    n = Variable("n", 1, top)
    x = Tensor.input("x", (n, 4), "float32")
    y = x
    for i in range(4):
        y = (y @ Tensor(np.full((4, 4), 0.3 + i, np.float32))).softmax(-1) + y.mean()
    with config.override(arena=False):
        apart = y.prepare()
        assert apart.memory.arena_bytes == apart.memory.naive_bytes
    shared = y.prepare()
    assert shared.memory.arena_bytes < shared.memory.naive_bytes
    for rows in (5, 64, *([200] if top is None else [])):
        data = np.random.default_rng(rows).standard_normal((rows, 4), dtype=np.float32)
        assert apart(x=data).tobytes() == shared(x=data).tobytes()
    for plan in (apart, apart.clone()):
        assert not any(b.shares_with for b in plan.explain().buffers if b.kind == "arena")
        assert plan.memory.arena_bytes == plan.memory.naive_bytes
        assert plan.memory.at(n=8).arena_bytes == plan.memory.at(n=8).naive_bytes


# ---------------------------------------------------------------- variables as pairs


def test_variables_are_given_as_pairs_too() -> None:
    plan = symbolic_add()
    for name in ("x", "y"):
        plan.buffers[plan.inputs[name].index].copyin(np.ones(5, np.float32))
    plan.execute_with_vars([("n", 5)])
    assert plan.variables == {"n": 5}
    report = plan.execute_with_vars_profiled([("n", 4), ("n", 5)])  # the last one counts
    assert report.run.variables == {"n": 5}
    for wrong in ([("n",)], [5], 5, [(["n"], 5)], [(5, 5)]):
        with pytest.raises(VariableError, match="must be a mapping or pairs of name"):
            plan.execute_with_vars(wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- repeated profiles


def test_a_profile_of_several_runs_has_medians_and_every_sample() -> None:
    s = Sketch(4096)
    s.op("reverse", "x", "a")
    s.op("reverse", "a", "b")
    plan = s.build("b")
    report = plan.execute_profiled(limits=False, runs=5)
    run = report.run
    assert (run.runs, len(run.makespans), len(run.switches)) == (5, 5, 5)
    assert report.makespan_seconds == sorted(run.makespans)[2]
    assert [p.op_index for p in report] == [0, 1]
    for profile in report:
        assert len(profile.samples) == 5
        assert profile.elapsed == statistics.median(profile.kept)
        assert profile.elapsed > 0


def test_every_profiled_run_is_a_run() -> None:
    s = Sketch(16)
    s.op("increment", "x", "a")
    s.op("double", "a", "b")
    plan = s.build("b")
    before = plan.output_buffer.keeper
    generation = before.generation() if before is not None else 0
    plan.execute_profiled(limits=False, runs=3)
    assert before is not None and before.generation() == generation + 3


@pytest.mark.parametrize("runs", [0, -1, 1.5, True, "3"])
def test_runs_must_be_a_count(runs: Any) -> None:
    with pytest.raises(PlanError, match=r"runs must be (>= 1|an int), got"):
        symbolic_add().execute_profiled(runs=runs)


def test_runs_may_be_an_integer_of_numpy() -> None:
    plan = symbolic_add(4)
    plan.buffers[0].copyin(np.ones(4, np.float32))
    plan.buffers[1].copyin(np.ones(4, np.float32))
    report = plan.execute_profiled({"n": 4}, limits=False, runs=np.int64(2))  # type: ignore[arg-type]
    assert report.run.runs == 2


# ---------------------------------------------------------------- repr


def test_a_plan_says_what_it_is() -> None:
    plan = (X * 2).prepare()
    line = "(x: float32[n, 4]) -> (output0: float32[n, 4])"
    known = f"ExecutionPlan(cpu; {line}; n={{}} in [1, 64]; 1 ops; "
    assert repr(plan).startswith(known.format("?"))
    plan(x=ROWS)
    assert repr(plan) == known.format(5) + f"{plan.memory.peak_bytes:,} bytes)"
    plan.release_all_buffers()
    assert repr(plan) == "ExecutionPlan(cpu, released)"


def test_a_plan_of_many_inputs_names_some() -> None:
    total = sum((Tensor.input(f"x{i}", (2,), "float32") for i in range(6)), Tensor(0.0))
    assert "x3: float32[2], 2 more) -> (output0" in repr(total.prepare())
    assert repr(semel.ExecutionPlanBuilder().build()).startswith("ExecutionPlan(cpu; () -> ()")


def test_a_plan_built_by_hand_says_what_it_is() -> None:
    s = Sketch(16)
    s.op("double", "x", "y")
    plan: ExecutionPlan = s.build("y")
    assert repr(plan) == "ExecutionPlan(cpu; () -> (output0: float32[16]); 1 ops; " + (
        f"{plan.memory.peak_bytes:,} bytes)"
    )


# ---------------------------------------------------------------- variables below zero


def test_a_variable_that_is_no_dim_may_be_negative() -> None:
    shift = Variable("shift", -4, 4)
    x = Tensor.input("x", (16,), "float32")
    plan = x[shift + 4 : shift + 12].prepare()
    data = np.arange(16, dtype=np.float32)
    for value in (-4, -1, 0, 4):
        plan.buffer(x).copyin(data)  # type: ignore[union-attr]
        plan.execute_with_vars([shift.bind(value)])
        np.testing.assert_array_equal(plan.output_buffer.numpy(), data[value + 4 : value + 12])
    with pytest.raises(VariableError, match=r"'shift' must lie in \[-4, 4\], got -5"):
        plan.execute_with_vars(shift=-5)


def test_a_kernel_takes_a_negative_value() -> None:
    low = Variable("n", -8, 16)
    s = Sketch(16, fixed=False)
    made = kernel("double", low)
    s.builder.add_kernel(
        PreparedKernel(
            1,
            None,
            made,
            "cpu",
            (s.buffer("x"), s.buffer("y")),
            (1,),
            vals=(-8,),
            runtime_vars=(RuntimeVar("n", -8, 16),),
        )
    )
    plan = s.build("y")
    assert plan.variables == {"n": -8}
    assert plan.prepared_kernels[0].vals == (-8,)


def test_where_it_is_a_dim_a_negative_value_is_refused() -> None:
    k = Variable("k", -3, 3)
    x = Tensor.input("x", (k + 3, 2), "float32")
    plan = (x * 2).prepare()
    for rows in (0, 1, 6):
        assert plan(x=np.ones((rows, 2), np.float32)).shape == (rows, 2)
        assert plan.variables == {"k": rows - 3}
    with pytest.raises(semel.InputError, match=r"gives k=4, which must lie in \[-3, 3\]"):
        plan(x=np.ones((7, 2), np.float32))
    bare = (Tensor.input("y", (k,), "float32") * 2).prepare()
    assert bare(y=np.ones(3, np.float32)).shape == (3,)
    with pytest.raises(VariableError, match=r"dims must be >= 0, got k"):
        bare.execute_with_vars(k=-1)


def test_expressions_of_negative_variables_round_down(tmp_path: Path) -> None:
    k = Variable("k", -7, 7)
    x = Tensor.input("x", (8,), "int64")
    plan = (x + k // 2 + k % 4).prepare()
    data = np.zeros(8, np.int64)
    plan.save(tmp_path / "negative.plan")
    for p in (plan, semel.load_plan(tmp_path / "negative.plan")):
        p.buffers[0].copyin(data)
        for value in (-7, -4, -1, 0, 3):
            p.execute_with_vars(k=value)
            assert p.output_buffer.numpy().tolist() == [value // 2 + value % 4] * 8
    with pytest.raises(GraphError, match=r"'k' needs min <= max, got \[-1, -2\]"):
        Variable("k", -1, -2)
