"""Plans over several devices, as they are written: the same bits as on one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plan.kernels import kernel

import semel
from semel import Buffer, ExecutionPlan, ExecutionPlanBuilder, Tensor, Variable
from semel.errors import GraphError, OutOfMemoryError, PlanError, UnsupportedError
from semel.plan.rows import PreparedCopy, PreparedKernel
from semel.runtime import device as devices
from semel.runtime.laned import LanedExecutable

RNG = np.random.default_rng(0)
W = [RNG.standard_normal((8, 8), dtype=np.float32) for _ in range(4)]
X = RNG.standard_normal((5, 8), dtype=np.float32)
N = Variable("n", 1, 16)
ANY = Variable("m", 1)

Where = Callable[[Tensor, str], Tensor]


def stay(x: Tensor, device: str) -> Tensor:
    return x.to("cpu")


def move(x: Tensor, device: str) -> Tensor:
    return x.to(device)


def x_input(rows: Any = N) -> Tensor:
    return Tensor.input("x", (rows, 8))


# ---------------------------------------------------------------- graphs


def _chain(to: Where) -> list[Tensor]:
    h = (x_input() @ Tensor(W[0])).relu()
    h = (to(h, "cpu:1") @ Tensor(W[1])).softmax(-1)
    return [to(h, "cpu:0") @ Tensor(W[2])]


def _back(to: Where) -> list[Tensor]:
    """There and back, with what stayed."""
    h = x_input() @ Tensor(W[0])
    return [h + to(to(h, "cpu:1").exp(), "cpu") * 2]


def _branches(to: Where) -> list[Tensor]:
    x = x_input()
    parts = [to((to(x, f"cpu:{k % 2}") @ Tensor(w)).gelu(), "cpu") for k, w in enumerate(W)]
    return [semel.concat(parts, 1), parts[0].sum(), to(parts[1], "cpu:1").sum(0)]


def _shared(to: Where) -> list[Tensor]:
    """Weights, numbers and what is computed of them alone are wanted on two devices."""
    w, ramp = Tensor(W[0]), semel.arange(8).cast("float32").exp()
    mask = semel.arange(8) > semel.arange(8).reshape(8, 1)
    x = x_input()
    y = to(x, "cpu:1")
    one = ((x @ w) * ramp).sum(-1)
    other = ((y @ w) * ramp).sum(-1)
    wide = semel.where(mask, Tensor(W[1]), 0.0)
    return [one, other, x @ wide, (y @ wide).cumsum(1), to(ramp, "cpu:1") + 1]


def _numbers(to: Where) -> list[Tensor]:
    """One number on two devices, and beside it something that is known before a run."""
    x = x_input().relu()
    y = to(to(x, "cpu:1").relu(), "cpu") * semel.arange(8).cast("float32")
    return [x, y]


def _loops(to: Where) -> list[Tensor]:
    x = to(x_input(), "cpu:1")
    start = (x @ Tensor(W[0])).abs() + 1
    y = semel.while_loop(lambda h: h.sum() < 1e4, lambda h: h * 2, start)
    z = semel.cond(y.max() > 9, lambda: y @ Tensor(W[1]), lambda: y)
    table = semel.while_loop(
        lambda h: h.sum() < 50, lambda h: h + 1, Tensor(np.ones(8, np.float32))
    )
    return [to(z, "cpu") + table, x.cumsum(0) + to(table, "cpu:1")]


def _inputs(to: Where) -> list[Tensor]:
    where = {"device": "cpu" if to is stay else "cpu:1"}
    x = Tensor.input("x", (N, 8), **where)
    p = Tensor.param("p", W[3], **where)
    return [(x @ p).relu(), to(x, "cpu") @ Tensor(W[0])]


def _rows(to: Where) -> list[Tensor]:
    """Sizes that grow: what is copied follows."""
    h = x_input(ANY) @ Tensor(W[0])
    return [to(to(h, "cpu:1").softmax(-1), "cpu:0") @ Tensor(W[1]), to(h, "cpu:1").sum(0)]


def _late(to: Where) -> list[Tensor]:
    """What only a run knows the size of stays on the plan's device; the rest need not."""
    y = to(to(x_input(), "cpu:1").softmax(-1), "cpu")
    return [y.masked_select(y > 0.1) * 2, to(y, "cpu:1").sum(0)]


def _idle(to: Where) -> list[Tensor]:
    x = x_input()
    return [to(to(x, "cpu"), "cpu").exp(), to(to(to(x, "cpu:1"), "cpu:1"), "cpu:0"), to(x, "cpu:1")]


GRAPHS = [_chain, _back, _branches, _shared, _numbers, _loops, _inputs, _rows, _late, _idle]


def run(plan: ExecutionPlan, x: Any = X) -> list[Any]:
    found = plan(x=x)
    return list(found) if isinstance(found, tuple) else [found]


def same(one: list[Any], other: list[Any]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.__name__.strip("_"))
@pytest.mark.parametrize("fusion", [True, False], ids=["fused", "unfused"])
def test_the_bits_are_those_of_one_device(graph: Any, fusion: bool, tmp_path: Path) -> None:
    alone = semel.prepare(graph(stay), fusion=fusion)
    spread = semel.prepare(graph(move), fusion=fusion)
    assert isinstance(spread.engine.executable, LanedExecutable)
    for rows in (5, 1, 16, 70 if graph is _rows else 3):
        x = RNG.standard_normal((rows, 8), dtype=np.float32)
        expected = run(alone, x)
        same(run(spread, x), expected)
        same(run(spread.clone(), x), expected)
    spread.save(tmp_path / "spread.plan")
    again = semel.load_plan(tmp_path / "spread.plan")
    same(run(again, x), expected)
    assert again.memory.devices == spread.memory.devices


def test_rows_and_values_are_where_they_were_put() -> None:
    (y,) = _chain(move)
    plan = y.prepare()
    found = [(type(op), op.device, op.lane) for op in plan.prepared_ops]
    assert found == [
        (PreparedKernel, "cpu", "compute"),
        (PreparedCopy, "cpu:1", "copy"),
        (PreparedKernel, "cpu:1", "compute"),
        (PreparedKernel, "cpu:1", "compute"),
        (PreparedCopy, "cpu:0", "copy"),
        (PreparedKernel, "cpu:0", "compute"),
    ]
    for op in plan.prepared_ops:
        if isinstance(op, PreparedKernel):
            assert {plan.buffers[i].device for i in op.buffer_indices} == {op.device}
    assert plan.output_buffer.device == "cpu:0"
    assert plan.buffers[0].device == "cpu"
    copied = [op.size for op in plan.prepared_ops if isinstance(op, PreparedCopy)]
    assert [str(size) for size in copied] == ["32*n", "32*n"]


def test_memory_is_told_by_device() -> None:
    (y,) = _chain(move)
    memory = y.prepare().memory
    assert list(memory.devices) == ["cpu", "cpu:1", "cpu:0"]
    assert sum(block.own_bytes for block in memory.devices.values()) == (
        memory.own_bytes - memory.scratch_bytes
    )
    for name, block in memory.devices.items():
        assert block.weights_bytes == 256, name
        assert block.io_bytes == {"cpu": 576, "cpu:1": 0, "cpu:0": 576}[name]
        assert block.arena_bytes == {"cpu": 512, "cpu:1": 1024, "cpu:0": 512}[name]
        assert block.peak_bytes == block.own_bytes + 256
        assert str(block).startswith(f"{block.peak_bytes:,} bytes (weights 256")


def test_a_plan_on_one_device_has_one_block_and_no_lanes() -> None:
    plan = (x_input() @ Tensor(W[0])).to("cpu").prepare()
    assert not isinstance(plan.engine.executable, LanedExecutable)
    assert list(plan.memory.devices) == ["cpu"]
    there = (Tensor.input("x", (N, 8), device="cpu:1") @ Tensor(W[0])).prepare(device="cpu:1")
    assert not isinstance(there.engine.executable, LanedExecutable)
    assert list(there.memory.devices) == ["cpu:1"]


def test_a_param_is_replaced_on_every_device_that_reads_it() -> None:
    p = Tensor.param("p", W[0])
    y = (x_input().to("cpu:1") @ p).to("cpu") + x_input() @ p
    plan = y.prepare()
    for w in (W[0], W[1]):
        plan.set_param("p", w)
        (once,) = run((x_input() @ Tensor(w)).prepare())
        same(run(plan), [once + once])


@pytest.mark.parametrize(
    ("graph", "devices_named"),
    [
        (lambda x: x.to("cpu:1") @ x.to("cpu:0").T, ("cpu:1", "cpu:0")),
        (lambda x: x + x.to("cpu:1"), ("cpu", "cpu:1")),
        (lambda x: semel.concat([x, Tensor.param("p", W[0], device="cpu:1")], 0), ("cpu", "cpu:1")),
        (lambda x: semel.cond(x.sum() > 0, lambda: x.to("cpu:1"), lambda: x), None),
    ],
    ids=["matmul", "add", "param", "inside"],
)
def test_two_devices_in_one_op_are_an_error(graph: Any, devices_named: Any) -> None:
    y = graph(x_input())
    if devices_named is None:
        with pytest.raises(UnsupportedError, match="got a move inside"):
            y.prepare()
        return
    with pytest.raises(
        GraphError, match=r"must lie on one device.*test_spread.py.*\.to\("
    ) as found:
        y.prepare()
    assert vars(found.value)["devices"] == devices_named


def test_a_late_size_on_another_device_is_refused() -> None:
    y = x_input().to("cpu:1")
    with pytest.raises(UnsupportedError, match="which only the plan's own device knows, cpu"):
        (y.masked_select(y > 0) * 2).prepare()


@pytest.mark.parametrize("wrong", ["float16", np.float32, semel.float32, np.dtype("int8"), float])
def test_a_dtype_is_no_device(wrong: Any) -> None:
    with pytest.raises(GraphError, match="takes a device, got the dtype"):
        x_input().to(wrong)


@pytest.mark.parametrize("wrong", ["gpu", "cpu:x", "", 5, None])
def test_what_is_no_device_is_refused_where_it_is_written(wrong: Any) -> None:
    with pytest.raises(semel.errors.SemelError, match=r"\[to\].*device"):
        x_input().to(wrong)


def test_values_without_a_plan_move_too() -> None:
    a = Tensor(W[0]).to("cpu:1")
    same([a.numpy()], [W[0]])
    same([(a @ Tensor(W[1])).to("cpu").numpy()], [(Tensor(W[0]) @ Tensor(W[1])).numpy()])


def test_memory_limits_are_by_device() -> None:
    (y,) = _chain(move)
    with pytest.raises(OutOfMemoryError, match=r"\[cpu:1\] needs 1,280 bytes, 1,000 are free"):
        y.prepare(memory_limit={"cpu:1": 1000})
    assert y.prepare(memory_limit={"cpu:1": 1280}).memory.devices["cpu:1"].peak_bytes == 1280


def test_ops_of_a_plan_built_by_hand_on_different_devices() -> None:
    builder = ExecutionPlanBuilder("cpu:0")
    x, y, z = (
        builder.add_buffer(None, Buffer.empty((4,), "float32", device))
        for device in ("cpu:0", "cpu:1", "cpu:1")
    )
    builder.add_op(PreparedCopy(1, (y, x), device="cpu:1", lane="copy"))
    double = kernel("double", Variable("n", 0, 4))
    at: dict[str, Any] = {"output_indices": (1,), "fixedvars": {"n": 4}}
    builder.add_op(PreparedKernel(2, None, double, "cpu:1", (y, z), **at))
    builder.set_output_buffers([z])
    plan = builder.build()
    plan.buffers[x].copyin(np.arange(4, dtype=np.float32))
    plan.execute()
    np.testing.assert_array_equal(plan.output_buffer.numpy(), [0, 2, 4, 6])


def test_clones_run_side_by_side() -> None:
    """As the stages of a pipeline do: each run has buffers and lanes of its own."""
    plan = semel.prepare(_chain(move))
    x = RNG.standard_normal((16, 8), dtype=np.float32)
    (expected,) = run(plan, x)
    clones = [plan.clone() for _ in range(3)]

    def work(clone: ExecutionPlan) -> None:
        for _ in range(20):
            same(run(clone, x), [expected])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, clones))


def test_memory_by_device_is_explained_and_no_device_is_made_up() -> None:
    (y,) = _chain(move)
    assert "  on cpu:1: 1,280 bytes (weights 256, arena 1,024, io 0)" in str(y.prepare().explain())
    assert "on cpu:" not in str((x_input() + 1).prepare().explain())
    with pytest.raises(UnsupportedError, match="device must be one of"):
        y.prepare(memory_limit={"gpu": 1000})
    for named in (None, "auto", ["cpu", "cpu:1"]):
        with pytest.raises(UnsupportedError, match="divided into 2"):
            y.prepare(devices=named, memory_limit={"cpu:5": 1000})
    with pytest.raises(PlanError, match="devices that may be used, cpu, cpu:1, got cpu:0"):
        y.prepare(devices=["cpu", "cpu:1"], memory_limit={"cpu:0": 1 << 20, "cpu:1": 1 << 20})


#: A bound array ends at a page that nobody may touch: a byte too many in a copy is a crash.
_FENCED = """
import ctypes, mmap
import numpy as np
from semel import Tensor, Variable

area = mmap.mmap(-1, 2 * 4096)
base = ctypes.addressof(ctypes.c_char.from_buffer(area))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(base + 4096), 4096, 0) == 0
rows = np.frombuffer(area, np.float32, 5 * 8, 4096 - 5 * 8 * 4).reshape(5, 8)
rows[...] = 2
plan = (Tensor.input("x", (Variable("n", 1, 500_000), 8)).to("cpu:1") * 3).prepare()
plan.bind_input("x", rows)
plan.execute_with_vars(n=5)
assert (plan.output_buffer.numpy() == 6).all()
"""


def test_a_copy_ends_where_a_callers_array_does() -> None:
    subprocess.run([sys.executable, "-c", _FENCED], check=True, timeout=240)


# ---------------------------------------------------------------- memory that only copies reach


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(devices.MODULES, "far", "tests.plan.far")
    yield
    devices._open.pop("far", None)


@pytest.mark.usefixtures("far")
def test_far_memory_is_reached_by_its_own_device() -> None:
    x = x_input()
    h = (x.to("far") @ Tensor(W[0])).to("cpu:1")
    plan = semel.prepare([h.relu().to("far") @ Tensor(W[1]), h])
    same(
        run(plan), run(semel.prepare([(x @ Tensor(W[0])).relu() @ Tensor(W[1]), x @ Tensor(W[0])]))
    )
    assert {op.device for op in plan.prepared_ops if isinstance(op, PreparedCopy)} == {"far"}
