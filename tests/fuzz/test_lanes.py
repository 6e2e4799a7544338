"""Random rows over several lanes and devices: the bits of one lane, and no wait too many."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.plan.kernels import kernel

import semel
from semel import Buffer, ExecutionPlan, ExecutionPlanBuilder, Variable, config
from semel.plan.rows import PreparedCopy, PreparedCustomFunction, PreparedKernel, PreparedOp
from semel.runtime import device as table
from semel.runtime.custom import custom_function, unregister_custom_function

WINDOW = 8  # elements
DEVICES = ("cpu", "cpu", "far")  #: of the storages
WINDOWS = [(s, at) for s in range(len(DEVICES)) for at in (0, 4, 8, 16)]
KERNELS = {"increment": 1, "double": 1, "add": 2}
N = Variable("n", 0, WINDOW)


@pytest.fixture(autouse=True, scope="module")
def world() -> Iterator[None]:
    """A second device, and a function of the host that takes a while."""

    @custom_function("lanes_fuzz", reads=(0,), writes=(1,))
    def call(attrs: Any, buffers: Sequence[Buffer], variables: Mapping[str, int]) -> None:
        time.sleep(attrs["us"] / 1e6)
        buffers[1].copyin(buffers[0].numpy() + 3)

    table.MODULES["far"] = "tests.plan.far"
    yield
    del table.MODULES["far"]
    table._open.pop("far", None)
    unregister_custom_function("lanes_fuzz")


@dataclass(frozen=True)
class Drawn:
    """A row before it is one: windows by number, the last one is written."""

    what: str
    windows: tuple[int, ...]
    lane: str
    after: tuple[int, ...]
    us: int


def _overlap(a: int, b: int) -> bool:
    (s, x), (t, y) = WINDOWS[a], WINDOWS[b]
    return s == t and abs(x - y) < WINDOW


@st.composite
def rows(draw: st.DrawFn) -> list[Drawn]:
    found: list[Drawn] = []
    for i in range(draw(st.integers(2, 14))):
        what = draw(st.sampled_from([*KERNELS, "copy", "copy", "host"]))
        device = draw(st.sampled_from(["cpu", "cpu", "far"]))
        own = [w for w, (s, _) in enumerate(WINDOWS) if DEVICES[s] == device]
        anywhere = range(len(WINDOWS))
        out = draw(st.sampled_from(own if what in KERNELS else anywhere))
        pool = [w for w in (own if what in KERNELS else anywhere) if not _overlap(w, out)]
        ins = [draw(st.sampled_from(pool)) for _ in range(KERNELS.get(what, 1))]
        lane = draw(st.sampled_from(["compute", "copy"]))
        after = draw(st.sets(st.integers(0, i - 1), max_size=1)) if i else set()
        us = draw(st.sampled_from([0, 50, 300]))
        found.append(Drawn(what, (*ins, out), lane, tuple(after), us))
    return found


def build(drawn: Sequence[Drawn], threads: int) -> tuple[ExecutionPlan, list[Buffer]]:
    builder = ExecutionPlanBuilder()
    wholes = [Buffer.empty((24,), "float32", device) for device in DEVICES]
    indices = [builder.add_buffer(None, wholes[s].view(4 * at, 4 * WINDOW)) for s, at in WINDOWS]
    for i, row in enumerate(drawn):
        builder.add_op_with_instance_dependencies(_row(i, row, indices), row.after)
    builder.set_output_buffers(indices)
    return builder.build(threads=threads), wholes


def _row(i: int, row: Drawn, indices: Sequence[int]) -> PreparedOp:
    *ins, out = (indices[w] for w in row.windows)
    devices = [DEVICES[WINDOWS[w][0]] for w in row.windows]
    device = "far" if "far" in devices else "cpu"
    if row.what == "copy":
        return PreparedCopy(i, (out, *ins), device=device, lane=row.lane)
    if row.what == "host":
        return PreparedCustomFunction(i, "lanes_fuzz", {"us": row.us}, (*ins, out), lane=row.lane)
    return PreparedKernel(
        i,
        None,
        kernel(row.what, N),
        device,
        (*ins, out),
        (len(ins),),
        fixedvars={"n": WINDOW},
        lane=row.lane,
    )


def expected(drawn: Sequence[Drawn], start: Sequence[Any]) -> list[Any]:
    """What rows leave behind, one after the other."""
    arrays = [a.copy() for a in start]
    for row in drawn:
        *ins, out = (arrays[s][at : at + WINDOW] for s, at in (WINDOWS[w] for w in row.windows))
        match row.what:
            case "copy":
                out[:] = ins[0].copy()
            case "host":
                out[:] = ins[0] + 3
            case "increment":
                out[:] = ins[0] + 1
            case "double":
                out[:] = ins[0] * 2
            case _:
                out[:] = ins[0] + ins[1]
    return arrays


def known_before(plan: ExecutionPlan, waits: Mapping[int, Sequence[int]]) -> dict[int, set[int]]:
    """For each row those that are over when it begins: on its lane, and by these waits."""
    found: dict[int, set[int]] = {}
    last: dict[Any, int] = {}
    for i, op in enumerate(plan.prepared_ops):
        lane = op.lane_on("cpu")
        before = [*waits.get(i, ()), *([last[lane]] if lane in last else [])]
        found[i] = {k for j in before for k in (j, *found[j])}
        last[lane] = i
    return found


def unordered(plan: ExecutionPlan, waits: Mapping[int, Sequence[int]]) -> list[tuple[int, int]]:
    """Pairs of rows that must follow each other and, with these waits, need not."""
    parts, known = plan.engine.parts, known_before(plan, waits)
    touched = [
        [(plan.buffers[u.index].byte_range, "w" in u.access) for u in op.uses(parts.scope)]
        for op in parts.ops
    ]

    def conflict(j: int, i: int) -> bool:
        return j in parts.after[i] or any(
            a[0] == b[0] and a[1] < b[2] and b[1] < a[2] and (write or also)
            for a, write in touched[j]
            for b, also in touched[i]
        )

    count = range(len(parts.ops))
    return [(j, i) for i in count for j in range(i) if conflict(j, i) and j not in known[i]]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows(), st.integers(0, 1 << 16), st.sampled_from([1, 2]))
def test_lanes_give_the_bits_of_one(drawn: list[Drawn], seed: int, threads: int) -> None:
    rng = np.random.default_rng(seed)
    with config.override(debug=frozenset({"jitter"} if seed % 2 else ())):
        plan, wholes = build(drawn, threads)
        for _ in range(3):
            start = [rng.integers(-9, 9, 24).astype(np.float32) for _ in DEVICES]
            for whole, array in zip(wholes, start, strict=True):
                whole.copyin(array)
            plan.execute()
            for whole, want in zip(wholes, expected(drawn, start), strict=True):
                np.testing.assert_array_equal(whole.numpy(), want)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows())
def test_waits_are_enough_and_none_too_many(drawn: list[Drawn]) -> None:
    plan, _ = build(drawn, 1)
    waits = plan.engine.linked.waits
    assert not unordered(plan, waits)
    for i, found in waits.items():
        for j in found:
            fewer = {**waits, i: tuple(k for k in found if k != j)}
            assert unordered(plan, fewer), f"op {i} need not wait for op {j}"


def test_a_thousand_runs_of_random_rows_with_failures_between() -> None:
    """Random plans, of which a host row fails now and then: nobody waits for ever."""
    rng = random.Random(1)
    fails = False

    @custom_function("lanes_fails", reads=(0,), writes=(1,))
    def call(attrs: Any, buffers: Sequence[Buffer], variables: Mapping[str, int]) -> None:
        if fails:
            raise ValueError("as asked")

    try:
        for _ in range(20):
            builder = ExecutionPlanBuilder()
            indices = [builder.add_buffer(None, Buffer.empty((4,), "float32")) for _ in range(5)]
            for i in range(12):
                pair = tuple(rng.sample(indices, 2))
                lane = rng.choice(["compute", "copy"])
                if i == 6:
                    row: PreparedOp = PreparedCustomFunction(
                        i, "lanes_fails", None, pair, lane=lane
                    )
                else:
                    row = PreparedCopy(i, pair, lane=lane)
                builder.add_op(row)
            builder.set_output_buffers(indices)
            plan = builder.build(threads=1)
            for _ in range(50):
                fails = rng.random() < 0.2
                if fails:
                    with pytest.raises(semel.CustomFunctionError, match="as asked"):
                        plan.execute()
                else:
                    plan.execute()
    finally:
        unregister_custom_function("lanes_fails")
