"""Order: hazards by bytes, legal and illegal orders, levels, barriers, parallel siblings."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.plan.build import Sketch
from tests.plan.kernels import TILE

import semel
from semel import Tensor, config
from semel.errors import OrderError, PlanError
from semel.plan.rows import PreparedBufferView, PreparedCopy, PreparedCustomFunction
from semel.runtime.buffer import Buffer
from semel.runtime.custom import custom_function

SIZE = 2 * TILE  #: elements of each operand below
UNIT = TILE // 2  #: views start at multiples of this
STARTS = 9  #: so that views of one storage overlap in all ways

ORACLE: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "double": lambda a: a * np.float32(2),
    "increment": lambda a: a + np.float32(1),
    "reverse": lambda a: a[::-1].copy(),
    "copy": lambda a: a.copy(),
    "halve": lambda a: a * np.float32(0.5),
}


def _halve(attrs: Any, buffers: Any, variables: Any) -> None:
    buffers[1].copyin(buffers[0].numpy() * np.float32(0.5))


custom_function("order_halve", reads=(0,), writes=(1,))(_halve)


@dataclass(frozen=True)
class Call:
    """A kernel on views that start at these units; the last one is written."""

    name: str
    starts: tuple[int, ...]


def _span(start: int) -> tuple[int, int]:
    return start * UNIT, start * UNIT + SIZE


def _share(a: int, b: int) -> bool:
    (a0, a1), (b0, b1) = _span(a), _span(b)
    return a0 < b1 and b0 < a1


@st.composite
def calls(draw: st.DrawFn) -> Call:
    name = draw(st.sampled_from(sorted(ORACLE)))
    arity = 3 if name in ("add", "mul") else 2
    out = draw(st.integers(0, STARTS - 1))
    free = [s for s in range(STARTS) if not _share(s, out)]
    inputs = [draw(st.sampled_from(free)) for _ in range(arity - 1)]
    return Call(name, (*inputs, out))


programs = st.lists(calls(), min_size=2, max_size=12)


def _edges(program: list[Call]) -> list[set[int]]:
    """All pairs that share a byte which one of them writes: the definition, with no cleverness."""
    before: list[set[int]] = [set() for _ in program]
    for i, later in enumerate(program):
        for j, earlier in enumerate(program[:i]):
            raw = any(_share(earlier.starts[-1], s) for s in later.starts)
            war = any(_share(later.starts[-1], s) for s in earlier.starts)
            if raw or war:
                before[i].add(j)
    return before


def _random_order(before: list[set[int]], seed: int) -> list[int]:
    rng, done, order = random.Random(seed), set(), []  # type: ignore[var-annotated]
    while len(order) < len(before):
        ready = [i for i in range(len(before)) if i not in done and before[i] <= done]
        order.append(rng.choice(ready))
        done.add(order[-1])
    return order


def _initial() -> np.ndarray:
    rng = np.random.default_rng(7)
    return rng.uniform(-1, 1, STARTS * UNIT + SIZE).astype(np.float32)


def _expected(program: list[Call]) -> np.ndarray:
    memory = _initial()
    for call in program:
        views = [memory[slice(*_span(s))] for s in call.starts]
        views[-1][...] = ORACLE[call.name](*views[:-1])
    return memory


def _sketch(program: list[Call], work: int) -> tuple[Sketch, Buffer]:
    whole = Buffer(_initial())
    s = Sketch(SIZE, bytes_per_element=work)
    for start in range(STARTS):
        s.buffer(f"v{start}", whole.view(start * UNIT * 4, SIZE * 4))
    for id_, call in enumerate(program):
        indices = tuple(s.buffer(f"v{x}") for x in call.starts)
        if call.name == "copy":
            s.builder.add_op(PreparedCopy(id_, indices[::-1]))
        elif call.name == "halve":
            s.builder.add_op(PreparedCustomFunction(id_, "order_halve", None, indices))
        else:
            s.op(call.name, *(f"v{x}" for x in call.starts), id=id_)
    return s, whole


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs, st.integers(0, 1 << 30), st.sampled_from([1, 2, 3]), st.booleans())
def test_any_legal_order_gives_the_bits_of_the_schedule_order(
    program: list[Call], seed: int, threads: int, jitter: bool
) -> None:
    # The estimate makes every step worth sharing, and every tile a chunk.
    s, whole = _sketch(program, work=1_000_000)
    s.builder.set_output_buffer(0)
    order = _random_order(_edges(program), seed)
    with config.override(debug=frozenset({"jitter"} if jitter else ())):
        plan = s.builder.build(threads=threads, order=order)
    assert plan.op_order == tuple(order)
    with np.errstate(all="ignore"):
        plan.execute()
        np.testing.assert_array_equal(whole.numpy(), _expected(program))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs, st.integers(0, 1 << 30))
def test_an_order_is_refused_exactly_if_it_swaps_a_conflict(program: list[Call], seed: int) -> None:
    s, _ = _sketch(program, work=12)
    s.builder.set_output_buffer(0)
    order = list(range(len(program)))
    random.Random(seed).shuffle(order)
    place = {op: i for i, op in enumerate(order)}
    broken = {(j, i) for i, js in enumerate(_edges(program)) for j in js if place[j] > place[i]}
    if not broken:
        assert s.builder.build(threads=1, order=order).op_order == tuple(order)
        return
    with pytest.raises(OrderError, match=r"must come before \d+ \(") as caught:
        s.builder.build(threads=1, order=order)
    error = caught.value
    assert (error.before, error.after) in broken  # type: ignore[attr-defined]
    taken = s.builder.build(threads=1).op_order
    place = {op: i for i, op in enumerate(taken)}
    assert sorted(taken) == list(range(len(program)))
    assert all(place[j] < place[i] for i, js in enumerate(_edges(program)) for j in js)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs)
def test_found_dependencies_imply_every_conflict_and_nothing_else(program: list[Call]) -> None:
    s, _ = _sketch(program, work=12)
    s.builder.set_output_buffer(0)
    plan = s.builder.build(threads=2)
    wanted, reach = _edges(program), []  # type: ignore[var-annotated]
    for i, direct in enumerate(plan.op_dependencies):
        assert set(direct) <= wanted[i]
        reach.append(set(direct).union(*(reach[j] for j in direct)))
        assert wanted[i] <= reach[i]
    step_of = {op: k for k, step in enumerate(plan.steps) for seg in step for op in seg}
    assert all(step_of[j] <= step_of[i] for i, js in enumerate(wanted) for j in js)


def test_an_illegal_order_names_the_edge_and_its_reason() -> None:
    def sketch() -> Sketch:
        s = Sketch(16)
        s.op("double", "x", "a", id=1)
        s.op("increment", "a", "b", id=2)
        s.op("increment", "y", "a", id=3)
        s.op("double", "p", "q", id=4, dependencies=(3,))
        return s

    for order, edge in (
        ([1, 0, 2, 3], (0, 1, "RAW hazard")),
        ([0, 2, 1, 3], (1, 2, "WAR hazard")),
        ([0, 1, 3, 2], (2, 3, "dependency")),
    ):
        s = sketch()
        s.builder.set_output_buffer(0)
        with pytest.raises(OrderError, match=r"must come before \d+ \(") as caught:
            s.builder.build(threads=1, order=order)
        error = caught.value
        assert (error.before, error.after, error.reason) == edge  # type: ignore[attr-defined]
    s = Sketch(16)
    s.op("double", "x", "a")
    s.op("double", "y", "a")
    s.builder.set_output_buffer(0)
    with pytest.raises(OrderError, match="WAW"):
        s.builder.build(threads=1, order=[1, 0])


@pytest.mark.parametrize("order", [[0], [0, 0], [0, 2], [0, 1, 1]])
def test_an_order_must_be_a_permutation(order: list[int]) -> None:
    s = Sketch(16)
    s.op("double", "x", "a")
    s.op("double", "y", "b")
    s.builder.set_output_buffer(0)
    with pytest.raises(PlanError, match="each of the 2 operations once"):
        s.builder.build(threads=1, order=order)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_reader_is_not_pulled_before_its_writer_by_a_third_op(threads: int) -> None:
    """0 writes A; 1 writes A and B; 2 reads B. First-fit groups would run 2 beside 0."""
    a, b = Buffer.empty((SIZE,), "float32"), Buffer.empty((2 * SIZE,), "float32")
    s = Sketch(SIZE, bytes_per_element=1_000_000)
    s.buffer("A", a)
    s.buffer("B", b.view(0, SIZE * 4))
    s.op("increment", "x", "A")
    s.op("double", "A", "B")  # stands for "writes A and B": it is ordered after 0, before 2
    s.op("increment", "B", "out")
    plan = s.build("out", threads=threads)
    assert plan.op_levels == [[0], [1], [2]]
    plan.execute()
    np.testing.assert_array_equal(s.buffers["out"].numpy(), np.full(SIZE, 3, np.float32))


def test_two_writers_of_one_range_and_a_reader_between_groups() -> None:
    """The inversion itself: a copy writes A, another A and B at once, a kernel reads B."""
    whole = Buffer.empty((2 * SIZE,), "float32")
    source = Buffer(np.arange(2 * SIZE, dtype=np.float32))
    s = Sketch(SIZE, bytes_per_element=1_000_000)
    s.buffer("A", whole.view(0, SIZE * 4))
    s.buffer("B", whole.view(SIZE * 4, SIZE * 4))
    s.buffer("AB", whole)
    s.buffer("source", source)
    s.op("increment", "x", "A")
    s.builder.add_op(PreparedCopy(2, (s.buffer("AB"), s.buffer("source"))))
    s.op("increment", "B", "out")
    plan = s.build("out", threads=2)
    assert plan.op_levels == [[0], [1], [2]]
    assert plan.steps == [[[0]], [[1]], [[2]]]
    for _ in range(20):
        plan.execute()
        np.testing.assert_array_equal(
            s.buffers["out"].numpy(), np.arange(SIZE, 2 * SIZE, dtype=np.float32) + 1
        )


def test_levels_are_longest_paths_and_deterministic() -> None:
    def plan() -> list[list[int]]:
        s = Sketch(16)
        s.op("double", "x", "a")
        s.op("double", "y", "b")
        s.op("add", "a", "b", "c")
        s.op("double", "y", "d")
        s.op("add", "c", "d", "e")
        return s.build("e").op_levels

    assert plan() == [[0, 1, 3], [2], [4]]
    assert plan() == plan()


def test_a_view_stands_between_its_predecessors_and_its_users() -> None:
    s = Sketch(16)
    s.op("double", "x", "a", id=1)
    part = s.builder.add_buffer(77, s.buffers["a"].view(0, 32))
    s.builder.add_op(PreparedBufferView(2, (part, s.buffer("a")), 0, 32, dependencies=(1,)))
    s.op("double", "p", "q", id=3, dependencies=(2,))
    plan = s.build("q")
    assert plan.op_order == (0, 1, 2)
    assert plan.op_levels == [[0], [1], [2]]


def test_instance_levels_follow_the_named_instances() -> None:
    s = Sketch(16)
    s.op("double", "x", "a", id=5)
    s.op("double", "y", "b", id=5)
    s.op("double", "p", "c", id=5, dependencies=())
    s.op("double", "q", "d", id=5)
    s.builder._after[2] = (0,)
    s.builder._after[3] = (1,)
    assert s.build("d").op_levels == [[0, 1], [2, 3]]


def test_independent_kernels_run_at_the_same_time() -> None:
    """Two single-tile kernels in one step are computed by two participants."""
    s = Sketch(TILE)
    s.op("who", "x", "a")
    s.op("who", "y", "b")
    plan = s.build("a", "b", threads=2)
    assert plan.steps == [[[0], [1]]]
    until = time.monotonic() + 100
    seen: set[tuple[float, float]] = set()
    while time.monotonic() < until:
        plan.execute()
        a, b = (set(buffer.numpy().tolist()) for buffer in plan.output_buffers)
        assert len(a) == len(b) == 1
        seen.add((a.pop(), b.pop()))
        if any(first != second for first, second in seen):
            return
    raise AssertionError(f"one participant did everything: {seen}")


def test_siblings_overlap_by_their_timestamps() -> None:
    s = Sketch(TILE)
    s.op("slow", "x", "a")
    s.op("slow", "y", "b")
    plan = s.build("a", "b", threads=2)
    until = time.monotonic() + 100
    while time.monotonic() < until:
        first, second = plan.execute_profiled(limits=False)
        if first.start_ns < second.end_ns and second.start_ns < first.end_ns:
            assert {span.lane for p in (first, second) for span in p.spans} == {0, 1}
            return
    raise AssertionError("the two never overlapped")


def test_no_lane_does_two_things_at_once() -> None:
    s = Sketch(16 * TILE, bytes_per_element=100_000)
    for i in range(6):
        s.op("increment", f"x{i}", f"y{i}")
    plan = s.build("y0", threads=2)
    report = plan.execute_profiled(limits=False)
    spans = sorted((s.lane, s.start_ns, s.end_ns) for p in report for s in p.spans)
    assert {lane for lane, _, _ in spans} <= {0, 1}
    for (lane, _, end), (other, start, _) in itertools.pairwise(spans):
        assert lane != other or start >= end


def test_barriers_are_counted_at_the_current_variables() -> None:
    s = Sketch(64 * TILE, fixed=False, bytes_per_element=1000)
    s.op("double", "x", "a")
    s.op("reverse", "a", "b")
    s.op("reverse", "b", "out")
    plan = s.build("out", threads=2)
    plan.execute_with_vars(n=64 * TILE)
    assert plan.num_barriers == 2
    plan.execute_with_vars(n=8)  # everything fits one participant
    assert plan.num_barriers == 0


def test_a_row_wise_chain_has_no_barrier_through_tensors() -> None:
    """softmax, layer norm and softmax over the same rows: several kernels, no barrier."""
    rows = 4096
    x = Tensor.input("x", (rows, 256), "float32")
    y = x.softmax(-1).layer_norm(-1).softmax(-1)
    plan, alone = semel.prepare([y], threads=2), semel.prepare([y], threads=1)
    data = np.random.default_rng(0).standard_normal((rows, 256)).astype(np.float32)
    np.testing.assert_array_equal(plan(x=data), alone(x=data))
    assert len(plan.prepared_kernels) >= 2
    assert plan.num_barriers == 0, plan.steps


# ---------------------------------------------------------------- empty and touching ranges


def _join(attrs: Any, buffers: Any, variables: Any) -> None:
    *parts, out = (b.numpy() for b in buffers)
    buffers[-1].copyin(np.concatenate(parts)[: out.size])


custom_function("order_join", reads=(0, 1, 2), writes=(3,))(_join)


@pytest.mark.parametrize("empty", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_an_empty_operand_hides_no_conflict_of_the_others(empty: tuple[int, ...]) -> None:
    """Wherever the operand of no bytes stands, the operands around it have their order."""
    full = next(k for k in range(3) if k not in empty)
    s = Sketch(SIZE)
    s.op("increment", "x", "made", id=1)
    names = [f"none{k}" if k in empty else "made" if k == full else "x" for k in range(3)]
    for name in names:
        if name.startswith("none"):
            s.buffer(name, Buffer.empty((0,), "float32"))
    indices = tuple(s.buffer(name) for name in (*names, "out"))
    s.builder.add_op(PreparedCustomFunction(2, "order_join", None, indices))
    s.builder.set_output_buffer(s.buffer("out"))
    with pytest.raises(OrderError, match=r"0 must come before 1 \(RAW hazard"):
        s.builder.build(threads=1, order=[1, 0])
    plan = s.builder.build(threads=1)
    assert plan.op_dependencies[1] == (0,)


#: (start of the target, start of the source) in tiles of a copy, and whether bytes are shared.
COPIES = [(0, 2, False), (2, 0, False), (0, 3, False), (0, 1, True), (1, 0, True), (0, 0, True)]


@pytest.mark.parametrize(("target", "source", "overlaps"), COPIES)
def test_a_copy_is_cut_unless_its_ranges_share_bytes(
    target: int, source: int, overlaps: bool
) -> None:
    """Ranges that only touch are cut as others; shared bytes are moved in one piece."""
    quarter, size = (256 << 10) // 4, 512 << 10
    first = np.arange(6 * quarter, dtype=np.float32)
    whole = Buffer(first)
    plan_of = {}
    for name, at in (("target", target), ("source", source)):
        plan_of[name] = whole.view(at * quarter * 4, size)
    s = Sketch(size // 4, bytes_per_element=1_000_000)
    for name, view in plan_of.items():
        s.buffer(name, view)
    s.builder.add_op(PreparedCopy(1, (s.buffer("target"), s.buffer("source"))))
    plan = s.build("target", threads=2)
    (profile,) = plan.execute_profiled(limits=False)
    assert profile.tiles == (1 if overlaps else 2)
    want = first.copy()
    want[target * quarter :][: size // 4] = first[source * quarter :][: size // 4]
    np.testing.assert_array_equal(whole.numpy(), want)


@pytest.mark.parametrize("extra", [-4, 0, 4])
def test_a_copy_between_storages_is_cut_by_its_size(extra: int) -> None:
    size = (512 << 10) + extra
    s = Sketch(size // 4, bytes_per_element=1_000_000)
    data = np.arange(size // 4, dtype=np.float32)
    s.buffer("source", Buffer(data))
    s.builder.add_op(PreparedCopy(1, (s.buffer("target"), s.buffer("source"))))
    plan = s.build("target", threads=2)
    (profile,) = plan.execute_profiled(limits=False)
    assert profile.tiles == (3 if extra > 0 else 2)
    np.testing.assert_array_equal(s.buffers["target"].numpy(), data)
