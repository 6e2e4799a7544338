"""What a plan costs beside its arithmetic: rows, barriers, siblings, clones, memory.

    measure_plan()  -->  PlanRow...  --plan_lines-->  rows of cells

The kernels are two native functions that do nothing, and nothing for a given time. Times
are the best of several rounds; both sides of a ratio are measured in turn, round by round.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

import semel
from benchmarks.extents import measure_extents
from semel.cli.encoder import EncoderSize, build_encoder
from semel.compiler.pipeline import prepare_graph
from semel.devices.cpu.elf import LoadedCode, load_object
from semel.devices.cpu.toolchain import compile_ir, host_target
from semel.ir.expr import Variable, evaluate
from semel.ir.signature import BufferSpec, KernelSignature
from semel.ir.types import FLOAT32
from semel.models.minilm import build_minilm, minilm_weights
from semel.plan.builder import ExecutionPlanBuilder
from semel.plan.memory import Lifetime, lower_bound_bytes, plan_memory
from semel.plan.plan import ExecutionPlan
from semel.plan.row import RuntimeVar
from semel.plan.rows import PreparedKernel, PreparedLoop, PreparedRebind
from semel.runtime.buffer import Buffer
from semel.runtime.kernel import CachedKernel
from semel.tensor.tensor import Tensor

_SOURCE = """
define void @nothing(ptr %lane, ptr %buffers, ptr %vals, i64 %tb, i64 %te) {
  ret void
}
define void @busy(ptr %lane, ptr %buffers, ptr %vals, i64 %tb, i64 %te) {
entry:
  %turns = load i64, ptr %vals, align 8
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i1, %head ]
  call void asm sideeffect "", ""()
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %turns
  br i1 %more, label %head, label %exit
exit:
  ret void
}
"""
_EXTRA = 1000
_TURNS = 1_000_000


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One measured number, and what it must not exceed (or, `at_least`, must reach)."""

    name: str
    value: float
    unit: str
    bar: float
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar


def rows() -> dict[str, Callable[[], PlanRow]]:
    """Every measurement by name."""
    return {
        "op": _op_overhead,
        "null": _null_device,
        "iteration": _iteration_overhead,
        "while": _while_overhead,
        "late": _late_overhead,
        "bind": _bind_new,
        "bind again": _bind_again,
        "param": _set_params,
        "barrier": _barrier_overhead,
        "siblings": _siblings,
        "clones": _clones,
        "tail": _tail,
        "arena": _arena,
        "planner": _planner,
    }


def measure_plan(names: list[str] | None = None) -> list[PlanRow]:
    """Measure the rows of these names, or all."""
    found = [measure() for name, measure in rows().items() if names is None or name in names]
    return found if names is not None and "extent" not in names else [*found, *_extents()]


def _extents() -> list[PlanRow]:
    """The time of a quarter of the extent over that of all of it."""
    return [
        PlanRow(f"MiniLM b{batch} at {longest // 4} of {longest} rows", ratio, "x", 0.35)
        for batch, longest, ratio in measure_extents()
    ]


def plan_lines(measured: list[PlanRow]) -> list[list[str]]:
    """The numbers beside their bars, as rows of cells."""
    lines = [["plan", "value", "bar", "met"]]
    for row in measured:
        sign = ">=" if row.at_least else "<="
        met = "yes" if row.is_met else "no"
        lines.append([row.name, f"{row.value:.4g} {row.unit}", f"{sign} {row.bar:g}", met])
    return lines


# ---------------------------------------------------------------- plans


@cache
def _code() -> LoadedCode:
    return load_object(compile_ir(_SOURCE, host_target()))


def _kernel(name: str, *, tiles: int = 1, nanoseconds: int = 0) -> CachedKernel:
    """A kernel of one input and one output that claims to take so long."""
    turns = Variable("turns", 0, 1 << 40)
    specs = (BufferSpec("x", FLOAT32, "r", 8), BufferSpec("y", FLOAT32, "w", 8))
    signature = KernelSignature(name, specs, (turns,), tiles, bytes=15 * nanoseconds)
    return CachedKernel(signature, _code().address(name), name, owner=_code())


def _plan(
    kernel: CachedKernel, count: int, *, threads: int, turns: int = 0, is_chain: bool = True
) -> ExecutionPlan:
    """`count` calls, each after the other or none after another."""
    builder = ExecutionPlanBuilder()
    num_buffers = 2 if is_chain else count + 1
    for i in range(num_buffers):
        builder.add_buffer(i, Buffer.empty((8,), "float32"))
    for i in range(count):
        pair = (i % 2, (i + 1) % 2) if is_chain else (0, i + 1)
        builder.add_kernel(
            PreparedKernel(i, None, kernel, "cpu", pair, (1,), fixedvars={"turns": turns})
        )
    builder.set_output_buffer(0)
    return builder.build(threads=threads)


def _seconds(plan: ExecutionPlan, calls: int) -> float:
    execute = plan.execute
    start = time.perf_counter()
    for _ in range(calls):
        execute()
    return (time.perf_counter() - start) / calls


def _best(plans: list[ExecutionPlan], *, calls: int, rounds: int = 15) -> list[float]:
    """The best time of each, measured in turn."""
    found = [[_seconds(plan, calls) for plan in plans] for _ in range(rounds + 1)]
    return [min(times) for times in zip(*found[1:], strict=True)]


# ---------------------------------------------------------------- measurements


def _op_overhead() -> PlanRow:
    kernel = _kernel("nothing")
    one, many = (_plan(kernel, n, threads=1) for n in (1, 1 + _EXTRA))
    few_s, many_s = _best([one, many], calls=50)
    return PlanRow("one more op, 1 thread", (many_s - few_s) / _EXTRA * 1e9, "ns", 20)


def _null_device() -> PlanRow:
    """A run of a plan that computes nothing: what Python and the runner cost by themselves."""
    x = Tensor.input("x", (8,), "float32")
    plan = (x + 1).prepare(device="null", threads=1)
    plan(x=np.zeros(8, np.float32))
    (seconds,) = _best([plan], calls=2000)
    return PlanRow("one add on the null device", seconds * 1e9, "ns", 1000)


def _iteration_overhead() -> PlanRow:
    """A loop around one kernel that does nothing: what an iteration costs beside its kernels."""
    kernel, buffers = _kernel("nothing"), [Buffer.empty((8,), "float32") for _ in range(2)]
    plans = []
    for trip in (1, 1 + _EXTRA):
        builder = ExecutionPlanBuilder()
        for i, buffer in enumerate(buffers):
            builder.add_buffer(i, buffer)
        call = PreparedKernel(1, None, kernel, "cpu", (0, 1), (1,), fixedvars={"turns": 0})
        builder.add_op(PreparedLoop(0, "step", trip, (call,)))
        builder.set_output_buffer(1)
        plans.append(builder.build(threads=1))
    few_s, many_s = _best(plans, calls=50)
    return PlanRow("one more iteration, 1 thread", (many_s - few_s) / _EXTRA * 1e9, "ns", 100)


def _while_overhead() -> PlanRow:
    """A count to a number that each run is given: an iteration, with its only kernel."""
    limit = Tensor.input("limit", (), "int64")
    h = Tensor.while_loop(lambda h: h < limit, lambda h: h + 1, Tensor(0))
    plans = []
    for trips in (1, 1 + _EXTRA):
        plan = h.prepare(threads=1)
        plan(limit=np.int64(trips))
        plans.append(plan)
    few_s, many_s = _best(plans, calls=50)
    return PlanRow(
        "one more iteration of while_loop, 1 thread", (many_s - few_s) / _EXTRA * 1e9, "ns", 100
    )


def _late_overhead() -> PlanRow:
    """Late variables that change nothing: what a rebind costs beside the kernel that counts."""
    buffers = [Buffer.empty((8,), "float32"), Buffer.empty((8,), "float32")]
    buffers.append(Buffer.empty((), "int64"))
    kernel, many = _kernel("nothing"), 100
    plans = []
    for count in (0, many):
        builder = ExecutionPlanBuilder()
        for i, buffer in enumerate(buffers):
            builder.add_buffer(i, buffer)
        for i in range(many):
            if i < count:
                builder.add_op(PreparedRebind(1 + 2 * i, (RuntimeVar(f"late{i}", 0, 8),), (2,)))
            turns = (RuntimeVar(f"late{i}" if i < count else "turns", 0, 8),)
            builder.add_kernel(
                PreparedKernel(
                    2 + 2 * i, None, kernel, "cpu", (0, 1), (1,), runtime_vars=turns,
                    vals=() if i < count else (0,),
                )
            )  # fmt: skip
        builder.set_output_buffer(1)
        plans.append(builder.build(threads=1))
    without_s, with_s = _best(plans, calls=50)
    return PlanRow("a late size, 1 thread", (with_s - without_s) / many * 1e9, "ns", 1000)


def _bind_new() -> PlanRow:
    """Another array in the place of a bound one, over a run with the arrays that are there."""
    return PlanRow("binding a new array, over an execute", _bind_us(64), "us", 3)


def _bind_again() -> PlanRow:
    """Two arrays that take turns."""
    return PlanRow("binding the array before again, over an execute", _bind_us(2), "us", 1)


def _bind_us(count: int) -> float:
    x, y = (semel.Tensor.input(name, (64,)) for name in "xy")
    plan = semel.prepare({"out": x + y}, threads=1)
    arrays = [np.ones(64, np.float32) for _ in range(count)]
    for name in "xy":
        plan.bind_input(name, arrays[0])
    best = {True: float("inf"), False: float("inf")}
    for _ in range(200):
        for is_bound in best:
            start = time.perf_counter_ns()
            for array in arrays:
                if is_bound:
                    plan.bind_input("x", array)
                plan.execute()
            best[is_bound] = min(best[is_bound], (time.perf_counter_ns() - start) / count)
    return (best[True] - best[False]) / 1e3


def _set_params() -> PlanRow:
    """One layer of MiniLM replaced, and a run: over the run, a copy and a packing of as much."""
    length, layer = 16, "encoder.layer.0."
    weights = {name: Tensor.param(name, array) for name, array in minilm_weights().items()}
    ids, mask = (Tensor.input(name, (1, length), "int64") for name in ("ids", "mask"))
    plan = build_minilm(ids, mask, weights).prepare(threads=1, keep_params=True)
    for name in ("ids", "mask"):
        plan.bind_input(name, np.ones((1, length), np.int64))
    arrays = {name: weights[name].numpy() for name in weights if name.startswith(layer)}
    best = dict.fromkeys(("set", "run", "pack"), float("inf"))
    for _ in range(30):
        for what, work in (
            ("run", plan.execute),
            ("pack", partial(_copy_and_pack, arrays)),
            ("set", partial(_set_and_run, plan, arrays)),
        ):
            start = time.perf_counter_ns()
            work()
            best[what] = min(best[what], time.perf_counter_ns() - start)
    over = (best["set"] - best["run"] - best["pack"]) / 1e6
    return PlanRow("one layer of MiniLM set, over a run, a copy and packing", over, "ms", 1)


def _set_and_run(plan: ExecutionPlan, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    plan.set_params(arrays)
    plan.execute()


def _copy_and_pack(arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """What nobody can do without: each array copied, and each matrix in panels of 16 columns."""
    for array in arrays.values():
        copy = array.copy()
        if copy.ndim == 2:
            columns, depth = copy.shape
            np.ascontiguousarray(copy.reshape(columns // 16, 16, depth).transpose(0, 2, 1))


def _barrier_overhead() -> PlanRow:
    """Two tiles each that no one may start before all of the last are done."""
    kernel = _kernel("nothing", tiles=2, nanoseconds=40_000)
    few, many = (_plan(kernel, n, threads=2) for n in (100, 100 + _EXTRA))
    few_s, many_s = _best([few, many], calls=20)
    return PlanRow("one more barrier, 2 threads", (many_s - few_s) / _EXTRA * 1e9, "ns", 200)


def _siblings() -> PlanRow:
    kernel = _kernel("busy", nanoseconds=300_000)
    plans = [_plan(kernel, n, threads=2, turns=_TURNS, is_chain=False) for n in (1, 2)]
    one, two = _best(plans, calls=1, rounds=300)
    return PlanRow("two single-tile ops over one, 2 threads", two / one, "x", 1.3)


def _clones() -> PlanRow:
    """Runs per second of two clones on two Python threads, over those of one."""
    kernel = _kernel("busy", nanoseconds=300_000)
    plan = _plan(kernel, 1, threads=1, turns=_TURNS // 4)
    pair = [plan, plan.clone()]
    ratios = []
    for _ in range(9):
        alone = _runs_within(0.2, [plan])
        ratios.append(_runs_within(0.2, pair) / alone)
    return PlanRow("two clones on two threads over one", sorted(ratios)[4], "x", 1.7, at_least=True)


def _runs_within(seconds: float, plans: list[ExecutionPlan]) -> int:
    """How many executes the plans do in that time, each on a thread of its own."""
    counts: list[int] = []

    def run(plan: ExecutionPlan) -> None:
        end, count = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            plan.execute()
            count += 1
        counts.append(count)

    _together([partial(run, plan) for plan in plans])
    return sum(counts)


def _together(work: list[Callable[[], object]]) -> float:
    """Seconds until all are done, each on a thread of its own."""
    threads = [threading.Thread(target=w) for w in work]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def _tail() -> PlanRow:
    """The slowest of a hundred over the median, with another process busy beside."""
    kernel = _kernel("busy", tiles=8, nanoseconds=300_000)
    plan = _plan(kernel, 4, threads=2, turns=_TURNS // 8)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        times = sorted(_seconds(plan, 1) for _ in range(1000))
    finally:
        busy.kill()
        busy.wait()
    return PlanRow("p99 over median, a busy process beside", times[989] / times[499], "x", 5)


def _lifetimes(plan: ExecutionPlan) -> list[Lifetime]:
    program = plan.program
    tops = {v.variable.name: v.variable.max or 1 for v in program.variables}
    return [
        Lifetime(evaluate(value.type.num_bytes, tops), value.first, value.last)
        for value in program.values
        if value.place == "arena"
    ]


@cache
def _graphs() -> list[tuple[ExecutionPlan, float]]:
    """The benchmark graphs as plans, each with the seconds that its prepare took."""
    found = []
    for layers, fusion in ((2, True), (4, True), (4, False), (12, True)):
        graph = build_encoder(EncoderSize(layers=layers))
        start = time.perf_counter()
        plan = prepare_graph(graph, threads=1, fusion=fusion)
        found.append((plan, time.perf_counter() - start))
    return found


def _arena() -> PlanRow:
    worst = 0.0
    for plan, _ in _graphs():
        lives = _lifetimes(plan)
        worst = max(worst, plan_memory(lives).arena_bytes / max(lower_bound_bytes(lives), 1))
    return PlanRow("arena over its lower bound", worst, "x", 1.05)


def _planner() -> PlanRow:
    """Share of a prepare, with all its kernels cached, that goes to placing intermediates."""
    worst = 0.0
    for plan, seconds in _graphs():
        lives = _lifetimes(plan)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            plan_memory(lives)
            times.append(time.perf_counter() - start)
        worst = max(worst, min(times) / seconds)
    return PlanRow("planner's share of a warm prepare", 100 * worst, "%", 1)


if __name__ == "__main__":
    for line in plan_lines(measure_plan(sys.argv[1:] or None)):
        print("  ".join(f"{cell:42}" for cell in line).rstrip())
