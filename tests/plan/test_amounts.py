"""Counts that variables give: what cannot be used is refused at build, or at the bind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.plan.build import Sketch, typed
from tests.plan.kernels import kernel

import semel
from semel import Tensor, Variable
from semel.errors import PlanError, SemelError, UserError, VariableError
from semel.ir.expr import Dim
from semel.plan.row import RuntimeVar
from semel.plan.rows import PreparedCopy, PreparedKernel
from semel.runtime.kernel import CachedKernel

N, M = Variable("n", 0, 16), Variable("m", 0, 16)
ANY = Variable("k", 0, None)


def _with_tiles(tiles: Dim, *names: Variable, **options: Any) -> Sketch:
    """out = x + 1 on 16 elements, by a kernel that claims so many tiles."""
    s = Sketch(16, fixed=False)
    plain = kernel("increment", Variable("size", 0, 16))
    variables = (Variable("size", 0, 16), *names)
    signature = replace(plain.signature, tiles=tiles, variables=variables)
    s.builder.add_kernel(
        PreparedKernel(
            1,
            None,
            CachedKernel(signature, plain.address, "increment"),
            "",
            (s.buffer("x"), s.buffer("out")),
            (1,),
            fixedvars={"size": 16, **options},
            runtime_vars=tuple(RuntimeVar.of(v) for v in variables),
        )
    )
    return s


@pytest.mark.parametrize(
    ("tiles", "bad", "good", "message"),
    [
        (N - 4, {"n": 3}, {"n": 5}, r"tiles = n - 4 must not be negative"),
        (N - M, {"n": 3, "m": 4}, {"n": 4, "m": 3}, r"tiles = -1\*m \+ n must not be negative"),
        (16 // N, {"n": 0}, {"n": 16}, "must divide by at least 1"),
        (16 % N, {"n": 0}, {"n": 5}, "must divide by at least 1"),
        (16 // (N - M), {"n": 3, "m": 4}, {"n": 4, "m": 3}, "must divide by at least 1"),
        (1 + (8 // N) // 9, {"n": 0}, {"n": 1}, "must divide by at least 1"),
    ],
)
def test_tiles_that_depend_on_the_values_are_checked_at_the_bind(
    tiles: Dim, bad: dict[str, int], good: dict[str, int], message: str
) -> None:
    s = _with_tiles(tiles, N, M)
    plan = s.build("out", threads=2)
    plan.execute_with_vars({"m": 0, **good})
    np.testing.assert_array_equal(s.buffers["out"].numpy(), np.ones(16))
    before = plan.variables
    with pytest.raises(VariableError, match=rf"op 1 \(increment\): .*{message}"):
        plan.execute_with_vars(bad)
    assert plan.variables == before
    plan.execute()


@pytest.mark.parametrize(
    ("tiles", "message"),
    [
        (-1, "tiles = -1 is negative at every value"),
        (-1 - N, "is negative at every value"),
        (16 // (-1 - N), "divides by -1.* at every value"),
        (16 // (N - 16), "divides by n - 16 at every value"),
        (4 * ANY, "must stay within .* Give k a smaller maximum"),
        (ANY, "must stay within"),
        (1 << 53, "must stay within"),
        (N * N * N * N * N * N * N * N * N * N * N * N * N * N * N * N, "must stay within"),
        (((1 << 60) * N + 1) % 3, "must stay within"),
    ],
)
def test_tiles_that_never_fit_are_refused_at_build(tiles: Dim, message: str) -> None:
    with pytest.raises(PlanError, match=rf"op 1 \(increment\).*{message}"):
        _with_tiles(tiles, N, ANY).build("out")


def test_fixed_values_that_never_fit_are_refused_at_build() -> None:
    with pytest.raises(PlanError, match="tiles = -1 is negative"):
        _with_tiles(N - 4, N, n=3).build("out")
    with pytest.raises(UserError, match="division of 16 by zero"):
        _with_tiles(16 // N, N, n=0).build("out")
    _with_tiles(N - 4, N, n=4).build("out").execute()


def test_a_loop_must_not_run_a_negative_number_of_times() -> None:
    for trip, message in ((N - 4, "trip = n - 4 must not be"), (8 // N, "at least 1")):
        s = Sketch(16)
        s.begin(trip, "step")
        s.op("increment", "x", "out")
        s.end()
        plan = s.build("out")
        with pytest.raises(VariableError, match=message):
            plan.execute_with_vars(n=0)
        plan.execute_with_vars(n=4)
    s = Sketch(16)
    s.begin(4 * ANY, "step")
    s.end()
    s.buffer("x")
    with pytest.raises(PlanError, match=r"trip .* must stay within"):
        s.build("x")


def test_a_loop_whose_trips_follow_a_counter_may_run_none_at_first() -> None:
    s = Sketch(16)
    s.op("double", "x", "out")
    s.begin(N, "step")
    s.begin(Variable("step", 0, 15) - 2, "inner", id=2)
    s.op("increment", "out", "other")
    s.op("increment", "other", "out")
    s.end()
    s.end()
    plan = s.build("out")
    s.buffers["x"].copyin(np.ones(16, np.float32))
    for n, times in ((0, 0), (1, 0), (3, 0), (4, 1), (6, 1 + 2 + 3)):
        plan.execute_with_vars(n=n)
        assert plan.output_buffer.numpy().tolist() == [2 + 2 * times] * 16


def test_guards_and_shapes_are_settled_too() -> None:
    s = Sketch(16)
    s.op("increment", "x", "out")
    s.builder.add_guard(8 % N, "n must divide 8")
    plan = s.build("out")
    with pytest.raises(VariableError, match="must divide by at least 1"):
        plan.execute_with_vars(n=0)
    with pytest.raises(VariableError, match="n must divide 8"):
        plan.execute_with_vars(n=3)
    plan.execute_with_vars(n=4)

    s = Sketch(16)
    s.op("increment", "x", "out")
    s.builder.add_guard(ANY * ANY - 16, "k must be 4")  # at 2**32 + 4 it wraps to the truth
    with pytest.raises(PlanError, match="Give k a smaller maximum"):
        s.build("out")

    s = Sketch(16)
    s.op("increment", "x", "out")
    s.builder.declare_output("out", s.buffer("out"), typed((N - M,)))
    plan = s.build("out")
    with pytest.raises(VariableError, match=r"output 'out': axis 0 = .* must not be negative"):
        plan.execute_with_vars(n=1, m=2)
    plan.execute_with_vars(n=3, m=2)
    assert plan.output_buffer.shape == (1,)


def test_what_the_bounds_show_costs_no_guard() -> None:
    s = Sketch(4096, fixed=False)
    s.op("increment", "x", "out")
    s.builder.add_op(PreparedCopy(7, (s.buffer("copy"), s.buffer("out"))))
    assert s.build("copy").engine.parts.guards == ()
    n = Variable("n", 1, None)
    x = Tensor.input("x", (n, 24), "float32")
    plan = semel.prepare(((x @ x.T).softmax(-1) @ x).sum(0), threads=1)
    assert plan.engine.parts.guards == ()


def test_a_saved_plan_has_each_guard_once(tmp_path: Any) -> None:
    s = Sketch(16)
    s.begin(N - 4, "step")
    s.builder.add_op(PreparedCopy(3, (s.buffer("out"), s.buffer("x"))))
    s.end()
    plan = s.build("out")
    plan.save(tmp_path / "plan")
    loaded = semel.load_plan(tmp_path / "plan")
    assert loaded.engine.parts.guards == plan.engine.parts.guards
    assert len(plan.engine.parts.guards) == 1
    with pytest.raises(SemelError, match="must not be negative"):
        loaded.execute_with_vars(n=3)
