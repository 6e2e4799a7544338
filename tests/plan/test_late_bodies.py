"""Plans whose loops and branches find sizes out, and check what they demand, when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import ExecutionPlan, PreparedRebind, Tensor, Variable
from semel.errors import PlanError, VariableError

N = Variable("n", 0, 64)
YES, NO = np.array(True), np.array(False)
DATA = np.array([1, -2, 3, -4, 5], np.float32)


def x() -> Tensor:
    return Tensor.input("x", (N,))


def flag() -> Tensor:
    return Tensor.input("p", (), "bool")


def above(t: Tensor, least: Any = 0) -> Tensor:
    return t[t > least]


def copies(plan: ExecutionPlan, folder: Path) -> list[ExecutionPlan]:
    file = folder / "plan.semel"
    plan.save(file)
    return [plan.clone(), semel.load_plan(file), semel.load_plan(file, trust=True)]


def choosing(**options: Any) -> ExecutionPlan:
    y = semel.cond(flag(), lambda: above(x()).sum(), lambda: x().unique().max() - above(-x()).max())
    return y.prepare(**options)


def check(plan: ExecutionPlan) -> None:
    for data in (DATA, -DATA, DATA[:3]):
        assert plan(x=data, p=YES) == data[data > 0].sum()
        assert plan(x=data, p=NO) == data.max() + data[data < 0].min()


# ---------------------------------------------------------------- late sizes


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fusion", [True, False])
def test_arms_find_sizes_out(threads: int, fusion: bool) -> None:
    check(choosing(threads=threads, fusion=fusion))


def test_files_and_clones_keep_them(tmp_path: Path) -> None:
    plan = choosing(threads=1)
    for each in copies(plan, tmp_path):
        check(each)
        with pytest.raises(VariableError, match="no elements"):
            each(x=np.ones(3, np.float32), p=NO)
        check(each)


def test_what_was_not_found_out_has_no_value() -> None:
    plan = choosing(threads=1)
    assert plan.variables == {"n": None, "late0": None, "late1": None, "late2": None}
    plan(x=DATA, p=YES)
    assert plan.variables == {"n": 5, "late0": 3, "late1": None, "late2": None}
    plan(x=DATA, p=NO)
    assert plan.variables == {"n": 5, "late0": None, "late1": 5, "late2": 2}
    assert "late0 in [0, 64], known after a run" in str(plan.explain())


def test_each_iteration_has_a_size_of_its_own() -> None:
    def body(states: Any) -> Any:
        h, total = states
        return h + 1, total + (x()[x() > h] * 2).sum() + semel.ones(x()[x() < h].shape).sum()

    plan = semel.while_loop(lambda s: s[0] < 4, body, (Tensor(0.0), Tensor(0.0)))[1].prepare()
    want = sum((DATA[k < DATA] * 2).sum() + (k > DATA).sum() for k in range(4))
    assert plan(x=DATA) == want
    assert plan(x=DATA[:0]) == 0
    assert plan(x=DATA) == want


def test_a_size_of_an_outer_iteration_is_one_of_inner_bodies() -> None:
    def outer(s: Any, h: Any) -> Any:
        a = x()[x() > h[0]]  # as large as this iteration says

        def inner(t: Any, g: Any) -> Any:
            return [
                g[0] + semel.cond(a.sum() > t, lambda: above(a * above(a, 2).sum()).sum(), a.sum)
            ], []

        (total,), _ = Tensor.loop(2, [h[1]], inner)
        return [h[0] + 1, total], []

    (_, got), _ = Tensor.loop(3, [Tensor(0.0), Tensor(0.0)], outer)
    want = 0.0
    for s in range(3):
        a = DATA[s < DATA]
        want += sum((a * a[a > 2].sum()).sum() if a.sum() > t else a.sum() for t in range(2))
    assert got.prepare(threads=1)(x=DATA) == want


def test_limits_may_be_sizes_of_what_is_around() -> None:
    a = x()[x() > 0]
    y = semel.cond(flag(), lambda: above(a, 2).sum(), a.sum)
    plan = y.prepare(threads=1)
    assert plan(x=DATA, p=YES) == 8 and plan(x=DATA, p=NO) == 9
    assert [v.name for v in plan.program.rows[-1].bodies[0][-3].variables] == ["late1"]
    assert plan.variables["late1"] is None


def test_values_without_a_plan() -> None:
    for data in (DATA, DATA[:3], -DATA):
        t = Tensor(data)
        got = semel.cond(t.sum() > 0, lambda t: above(t).sum(), lambda t: above(-t).sum(), t)
        assert got.item() == (data[data > 0] if data.sum() > 0 else -data[data < 0]).sum()


@pytest.mark.parametrize("trust", [True, False])
def test_params_alone_may_choose_the_arm(tmp_path: Path, trust: bool) -> None:
    """No kernel reads the condition then: it is a weight that the branch alone looks at."""
    w, p = Tensor.param("w", np.ones(3, np.float32)), -np.ones(3, np.float32)
    plan = semel.cond(w.sum() > 0, lambda: x() * 2, lambda: x() * 3).prepare()
    plan.save(tmp_path / "plan")
    loaded = semel.load_plan(tmp_path / "plan", trust=trust)
    for each in (plan.clone(), loaded, plan):
        assert each(x=DATA).tolist() == (DATA * 2).tolist()
        each.set_param("w", p)
        assert each(x=DATA).tolist() == (DATA * 3).tolist()


def test_a_body_that_is_large_is_shared_by_threads() -> None:
    n = 1 << 18
    z = Tensor.input("z", (n,))
    y = semel.cond(flag(), lambda: z[z > 0].exp().sum(), lambda: z[z < 0].exp().sum())
    data = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    one, two = (y.prepare(threads=t)(z=data, p=YES) for t in (1, 2))
    assert one == two
    np.testing.assert_allclose(one, np.exp(data[data > 0]).sum(), rtol=1e-4)


# ---------------------------------------------------------------- what bodies demand


def test_a_guard_holds_in_the_arm_that_needs_it() -> None:
    y = semel.cond(flag(), lambda: x().reshape(N // 4, 4).sum(), x().sum)
    plan = y.prepare(threads=1)
    assert plan(x=np.ones(8, np.float32), p=YES) == 8
    assert plan(x=np.ones(7, np.float32), p=NO) == 7
    with pytest.raises(VariableError, match=r"the number .*test_late_bodies.*Found n=7"):
        plan(x=np.ones(7, np.float32), p=YES)
    assert plan(x=np.ones(7, np.float32), p=NO) == 7


def test_sizes_of_an_arm_that_does_not_run_may_be_negative() -> None:
    def then() -> Tensor:
        rest = x().narrow(0, 3, N - 3)
        return rest.sort().cumsum(0).sum() + rest[0]

    plan = semel.cond(flag(), then, x().sum).prepare(threads=1)
    assert plan(x=np.ones(5, np.float32), p=YES) == 4
    assert plan(x=np.ones(2, np.float32), p=NO) == 2
    assert plan(x=np.ones(0, np.float32), p=NO) == 0
    for n in (0, 2):
        with pytest.raises(VariableError, match=rf"narrow.*Found n={n}"):
            plan(x=np.ones(n, np.float32), p=YES)


def test_a_loop_of_no_iterations_demands_nothing() -> None:
    t = Variable("t", 0, 8)
    i = Tensor.input("i", (t,))
    (y,), _ = Tensor.loop(
        t, [Tensor(0.0)], lambda s, h: ([h[0] + i[s] + x().reshape(N // 4, 4).sum()], [])
    )
    plan = y.prepare(threads=1)
    assert plan(x=np.ones(7, np.float32), i=np.ones(0, np.float32)) == 0
    assert plan(x=np.ones(4, np.float32), i=np.ones(2, np.float32)) == 10
    with pytest.raises(VariableError, match=r"the number .*Found n=7, t=2"):
        plan(x=np.ones(7, np.float32), i=np.ones(2, np.float32))


def test_a_conditional_loop_demands_when_it_is_entered() -> None:
    start = Tensor.input("start", ())
    y = semel.while_loop(lambda h: h < 9, lambda h: h + x().reshape(N // 4, 4).sum() * h, start)
    plan = y.prepare(threads=1)
    assert plan(x=np.ones(7, np.float32), start=np.float32(10)) == 10
    assert plan(x=np.ones(4, np.float32), start=np.float32(1)) == 25
    with pytest.raises(VariableError, match=r"the number .*Found n=7"):
        plan(x=np.ones(7, np.float32), start=np.float32(1))


def test_a_guard_over_a_size_around_is_checked_in_the_arm() -> None:
    a = x()[x() > 0]
    plan = semel.cond(flag(), a.max, a.sum).prepare(threads=1)
    assert plan(x=np.array([-1, -2], np.float32), p=NO) == 0
    with pytest.raises(VariableError, match=r"cannot reduce no elements.*Found late0=0"):
        plan(x=np.array([-1, -2], np.float32), p=YES)
    assert plan(x=DATA, p=YES) == 5


def test_files_say_what_bodies_demand(tmp_path: Path) -> None:
    plan = semel.cond(flag(), lambda: x().reshape(N // 4, 4).sum(), x().sum).prepare(threads=1)
    for each in copies(plan, tmp_path):
        assert each(x=np.ones(7, np.float32), p=NO) == 7
        with pytest.raises(VariableError, match="the number"):
            each(x=np.ones(7, np.float32), p=YES)


def test_what_a_body_demands_is_known_of_its_rows_in_files(tmp_path: Path) -> None:
    """Sizes without a maximum: that memory suffices must be proven from what was checked."""
    n, m = Variable("n", 1), Variable("m", 1)
    a, b = Tensor.input("a", (n,)), Tensor.input("b", (m,))
    plan = semel.cond(flag(), lambda: (a + b).sort().sum(), b.sum).prepare(threads=1)
    ones, twos = np.ones(3, np.float32), np.full(3, 2, np.float32)
    for each in copies(plan, tmp_path):
        assert each(a=ones, b=twos, p=YES) == 9
        assert each(a=ones[:1], b=twos, p=NO) == 6
        with pytest.raises(VariableError, match="dim 0 must be 1 or"):
            each(a=ones[:2], b=twos, p=YES)


# ---------------------------------------------------------------- by hand


def test_a_row_may_check_and_do_nothing_else() -> None:
    with pytest.raises(PlanError, match="a dim and a sentence, got 3"):
        PreparedRebind(0, (), (), guards=(3,))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="a rebind needs one buffer"):
        PreparedRebind(0, (), ())
    row = PreparedRebind(0, (), (), guards=[(N - 3, "n must be 3.")])  # type: ignore[arg-type]
    assert row.guards == ((N - 3, "n must be 3."),) and row.name == "check n - 3"
