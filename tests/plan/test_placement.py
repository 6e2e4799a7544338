"""Devices that are named, restricted or chosen: what is where, why, and with which memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import DeviceSpec, Tensor, Variable, config
from semel.compiler.placement import Place, choose_places
from semel.devices import choose_target
from semel.errors import GraphError, OutOfMemoryError, PlanError, UnsupportedError
from semel.lower import lower_schedule
from semel.plan.rows import PreparedCopy, PreparedKernel
from semel.schedule.groups import build_schedule
from semel.tensor.realize import build_graph

RNG = np.random.default_rng(0)
ROWS, SIZE = 128, 128
W = [RNG.standard_normal((SIZE, SIZE), dtype=np.float32) / 8 for _ in range(4)]
X = RNG.standard_normal((ROWS, SIZE), dtype=np.float32)


@pytest.fixture(autouse=True)
def _one_core_each() -> Iterator[None]:
    """What a kernel costs beside a copy depends on how many cores a part of the machine has."""
    with config.override(threads=1):
        yield


def chain(rows: int = ROWS) -> Tensor:
    x = Tensor.input("x", (rows, SIZE))
    for w in W:
        x = (x @ Tensor(w)).relu()
    return x


def wide() -> Tensor:
    x = Tensor.input("x", (ROWS, SIZE))
    return semel.concat([((x @ Tensor(w)).relu() @ Tensor(w)).softmax(-1) for w in W], 1)


def small() -> Tensor:
    return (Tensor.input("x", (4, 4)) + 1).softmax(-1)


def _attention() -> Tensor:
    n = Variable("n", 1, 300)
    x = Tensor.input("x", (n, 64))
    heads = []
    for w in W:
        q, k, v = (x @ Tensor(np.ascontiguousarray(w[:64, i : i + 64])) for i in (0, 32, 64))
        heads.append((q @ k.T).softmax(-1) @ v)
    return (semel.concat(heads, 1) ** 2).mean(0)


def _shared_parts() -> list[Tensor]:
    """Sums of products that others read, too, and numbers that several want."""
    x = Tensor.input("x", (ROWS, SIZE))
    ramp = semel.arange(SIZE).cast("float32").exp()
    ys = [(x @ Tensor(w)) * ramp for w in W]
    return [semel.stack([(y * z).sum(-1) for y, z in pairwise(ys)]), *ys]


def _loop() -> Tensor:
    x = Tensor.input("x", (ROWS, SIZE))
    step = lambda h: (h @ Tensor(W[0])).softmax(-1)  # noqa: E731
    a = semel.while_loop(lambda h: h.sum() < 1e9, step, x @ Tensor(W[1]), max_trips=3)
    return a + (x @ Tensor(W[2])).cumsum(1)


def _late() -> Tensor:
    x = Tensor.input("x", (ROWS, SIZE))
    y = x @ Tensor(W[0])
    return y.masked_select(y > 1) * 2


GRAPHS = [chain, wide, small, _attention, _shared_parts, _loop, _late]


def run(plan: Any) -> list[Any]:
    (name,) = plan.inputs
    shape = tuple(d if isinstance(d, int) else 37 for d in plan.inputs[name].type.shape)
    found = plan(**{name: X.reshape(-1)[: shape[0] * shape[1]].reshape(shape)})
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.__name__.strip("_"))
@pytest.mark.parametrize("fusion", [True, False], ids=["fused", "unfused"])
def test_chosen_devices_change_no_bit(graph: Any, fusion: bool, tmp_path: Path) -> None:
    auto = semel.prepare(graph(), devices="auto", fusion=fusion)
    expected = run(semel.prepare(graph(), fusion=fusion))
    auto.save(tmp_path / "auto.plan")
    loaded = semel.load_plan(tmp_path / "auto.plan")
    assert loaded.program.placement == auto.program.placement
    for plan in (auto, auto.clone(), loaded):
        for a, b in zip(run(plan), expected, strict=True):
            np.testing.assert_array_equal(a, b)


def places_of(plan: Any) -> list[str]:
    return [op.device for op in plan.prepared_ops if isinstance(op, PreparedKernel)]


def test_a_chain_becomes_stages() -> None:
    plan = chain().prepare(devices="auto")
    assert places_of(plan) == ["cpu:0", "cpu:0", "cpu:1", "cpu:1"]
    assert sum(isinstance(op, PreparedCopy) for op in plan.prepared_ops) == 1
    text = str(plan.explain())
    assert "there because: stage 1 of 2," in text and "there because: stage 2 of 2," in text
    assert "devices, taken: stages." in text
    assert plan.explain().ops[0].where.startswith("stage 1 of 2")


def test_a_wide_graph_becomes_branches() -> None:
    plan = wide().prepare(devices="auto")
    found = places_of(plan)
    assert found.count("cpu:1") >= 4 and found.count("cpu:0") >= 4
    assert "devices, taken: branches." in str(plan.explain())
    assert "there because: done first there" in str(plan.explain())


def test_what_is_not_worth_a_copy_stays_together() -> None:
    plan = small().prepare(devices="auto")
    assert plan.device == "cpu:0"
    assert set(places_of(plan)) == {"cpu:0"}
    assert plan.program.placement[-1] == "taken: alone."


def test_programs_are_found_again_by_what_was_chosen_from() -> None:
    y = chain()
    first, again = y.prepare(devices="auto"), y.prepare(devices="auto")
    assert (first.compile_count, again.compile_count) == (1, 0)
    assert y.prepare(device="cpu:0").compile_count == 1


def test_what_a_graph_says_comes_first() -> None:
    x = Tensor.input("x", (ROWS, SIZE))
    plan = ((x @ Tensor(W[0])).to("cpu:1") @ Tensor(W[1])).prepare(devices="auto")
    assert places_of(plan)[1] == "cpu:1"
    text = str(plan.explain())
    assert "there because: moved to cpu:1 (" in text and "test_placement.py" in text
    assert "groups that the graph has placed" in plan.program.placement[-1]


def _with_a_move(device: str) -> list[Tensor]:
    """A wide graph, one branch of which says where it is."""
    x, z = Tensor.input("x", (ROWS, SIZE)), Tensor.input("z", (ROWS, SIZE))
    said = (x.to(device) @ Tensor(W[0])).relu() @ Tensor(W[1])
    others = [((x @ Tensor(w)).relu() @ Tensor(w)).softmax(-1) for w in W]
    return [(said + z).softmax(-1), *others]


def _with_a_placed_input(device: str) -> list[Tensor]:
    x, z = Tensor.input("x", (ROWS, SIZE)), Tensor.input("z", (ROWS, SIZE), device=device)
    return [(z @ Tensor(W[0])).softmax(-1), *(((x @ Tensor(w)).relu() @ Tensor(w)) for w in W)]


@pytest.mark.parametrize("graph", [_with_a_move, _with_a_placed_input])
@pytest.mark.parametrize("device", ["cpu:1", "cpu:0", "cpu"])
def test_devices_are_chosen_for_what_says_nothing(graph: Any, device: str, tmp_path: Path) -> None:
    plan = semel.prepare(graph(device), devices="auto")
    arrays = {"x": X, "z": X[::-1].copy()}
    expected = semel.prepare(graph("cpu:0").copy(), device="cpu:0")(**arrays)
    plan.save(tmp_path / "auto.plan")
    for each in (plan, plan.clone(), semel.load_plan(tmp_path / "auto.plan")):
        for a, b in zip(each(**arrays), expected, strict=True):
            np.testing.assert_array_equal(a, b)
    found = [(op.where, op.device) for op in plan.explain().ops if op.where]
    said = {place for where, place in found if "moved to" in where or "is on" in where}
    chosen = {place for where, place in found if where.startswith("done first there")}
    assert said == {device} and chosen
    assert said | chosen >= {"cpu:0", "cpu:1"}, "they are side by side"


def test_what_says_nothing_comes_to_what_does() -> None:
    x, y = Tensor.input("x", (4, 4)), Tensor.input("y", (4, 4))
    sums = (x.to("cpu:1") * 2 + y).softmax(-1)
    with pytest.raises(GraphError, match="operands must lie on one device"):
        sums.prepare(device="cpu:0")
    plan = sums.prepare(devices="auto")
    assert set(places_of(plan)) == {"cpu:1"}
    both = x.to("cpu:1") + y.to("cpu:0")
    with pytest.raises(GraphError, match="operands must lie on one device"):
        both.prepare(devices="auto")


def test_files_are_beside_devices_that_are_chosen(tmp_path: Path) -> None:
    disk = f"disk:{tmp_path / 'w.bin'}"
    x = Tensor.input("x", (ROWS, SIZE))
    w = Tensor.input("w", (SIZE, SIZE), device=disk).to("cpu:1")
    others = [((x @ Tensor(each)).relu() @ Tensor(each)).softmax(-1) for each in W]
    plan = semel.prepare([(x @ w).relu(), *others], devices="auto")
    assert {op.device for op in plan.prepared_ops} >= {"cpu:0", "cpu:1", disk}
    found = plan(x=X, w=W[0])
    np.testing.assert_array_equal(found[0], (Tensor(X) @ Tensor(W[0])).relu().numpy())
    np.testing.assert_array_equal(found[1:], semel.prepare(others)(x=X))


def test_a_state_beside_what_is_placed() -> None:
    """One that takes in what lies elsewhere is on the plan's own device, another anywhere."""
    graph = semel.Graph("sums")
    x, numbers = graph.input("x", (4, 4)), np.arange(16, dtype=np.float32).reshape(4, 4)
    own, other = graph.state("own", (4, 4)), graph.state("other", (4, 4))
    total = own.replace(own + (x * 2).to("cpu:1").to("cpu:0"))
    graph.output("y", (x @ x).to("cpu:1") + other.replace(other + x))
    graph.output("z", total)
    compiled = semel.Session("cpu").compile(graph, devices="auto")
    for k in range(1, 4):
        y, z = compiled.run(x=numbers)
        np.testing.assert_array_equal(y, numbers @ numbers + k * numbers)
        np.testing.assert_array_equal(z, k * 2 * numbers)
    elsewhere = semel.Graph("elsewhere")
    state = elsewhere.state("s", (4,))
    elsewhere.output("y", state.replace(elsewhere.input("x", (4,)).to("cpu:1")))
    with pytest.raises(GraphError, match="must lie on one device"):
        semel.Session("cpu").compile(elsewhere, devices="auto")


# ---------------------------------------------------------------- named devices


def test_the_first_of_several_is_the_plans_own() -> None:
    plan = chain().prepare(devices=["cpu:1", DeviceSpec("cpu:0")])
    assert plan.device == "cpu:1" and set(places_of(plan)) == {"cpu:1"}
    plan = chain().prepare(device="cpu:0", devices=("cpu:1", "cpu:0"))
    assert plan.device == "cpu:0"


def test_a_device_that_is_not_among_them_is_refused() -> None:
    y = chain().to("cpu:1") + 1
    assert y.prepare(devices=["cpu", "cpu:1"]).output_buffer.device == "cpu:1"
    with pytest.raises(GraphError, match=r"must have cpu:1, where f32\[128,128\] is .*test_placem"):
        y.prepare(devices=["cpu", "cpu:0"])


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"devices": "cpu:1"}, PlanError, "must be several, or 'auto', got 'cpu:1'"),
        ({"devices": 5}, PlanError, "must be several"),
        ({"devices": []}, PlanError, "must have at least one"),
        ({"devices": ["cpu:0"], "device": "cpu"}, PlanError, "must have cpu among them"),
        ({"devices": ["cpu:0", "gpu"]}, UnsupportedError, "device must be one of"),
        ({"devices": ["cpu:0", "cpu:77"]}, UnsupportedError, "are divided into"),
    ],
)
def test_what_devices_must_be(options: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        chain().prepare(**options)


# ---------------------------------------------------------------- memory


def test_a_model_that_is_too_large_for_one_device_is_split() -> None:
    weights = 4 * W[0].nbytes
    limit = {"cpu:0": weights * 9 // 10, "cpu:1": weights * 9 // 10}
    plan = chain(8).prepare(devices="auto", memory_limit=limit)
    for name, block in plan.memory.devices.items():
        assert block.peak_bytes <= limit[name], name
    with pytest.raises(OutOfMemoryError, match=r"\[cpu:0\] needs .* bytes, 235,929 are free"):
        chain(8).prepare(device="cpu:0", memory_limit=limit)


def test_what_fits_nowhere_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        OutOfMemoryError,
        match=r"no split of [\d,]+ bytes fits, the closest has cpu:0 [\d,]+ of 100,000, cpu:1 "
        r"[\d,]+ of 100,000.*needs [\d,]+ bytes, 100,000 are free",
    ):
        chain().prepare(devices="auto", memory_limit={"cpu:0": 100_000, "cpu:1": 100_000})


def test_a_smaller_device_gets_less() -> None:
    """The split follows the limits, and cores as well."""
    graph, target = build_graph(chain()), choose_target("cpu")
    schedule = build_schedule(graph)
    kernels = lower_schedule(schedule, target)

    def split(*places: Place) -> list[int]:
        found = choose_places(schedule, kernels, places).devices.values()
        return [list(found).count(place.device) for place in places]

    assert split(Place("a"), Place("b")) == [2, 2]
    assert split(Place("a", 2), Place("b", 1)) == [3, 1]
    assert split(Place("a", limit=4 * W[0].nbytes), Place("b")) == [1, 3]
    assert split(Place("a"), Place("b"), Place("c"), Place("d")) == [1, 1, 1, 1]


# ---------------------------------------------------------------- states


def _counter(device: str | None) -> semel.Graph:
    g = semel.Graph("counter")
    delta = g.input("delta", (4,), device=device)
    total = g.state("total", (4,), device=device)
    g.output("sum", total + delta, feeds=total)
    g.output("twice", (total + delta).to("cpu") * 2)
    return g


@pytest.mark.parametrize("device", ["cpu:1", "cpu:0"])
def test_a_state_on_another_device(device: str, tmp_path: Path) -> None:
    compiled = semel.Session("cpu").compile(_counter(device), devices=["cpu", device])
    for turn in range(1, 4):
        found = compiled.run({"delta": np.ones(4, np.float32)})
        np.testing.assert_array_equal(found["sum"], np.full(4, turn, np.float32))
        np.testing.assert_array_equal(found["twice"], np.full(4, 2 * turn, np.float32))
    plan = compiled.plan
    assert plan.memory.devices[device].state_bytes > 0 == plan.memory.devices["cpu"].state_bytes
    fork = compiled.clone()
    compiled.run({"delta": np.ones(4, np.float32)})
    np.testing.assert_array_equal(fork.read_handle("total"), np.full(4, 3, np.float32))
    np.testing.assert_array_equal(compiled.read_handle("total"), np.full(4, 4, np.float32))
    compiled.save(tmp_path / "counter.plan")
    again = semel.load(tmp_path / "counter.plan")
    np.testing.assert_array_equal(again.run({"delta": np.ones(4, np.float32)})["sum"], np.ones(4))


def _decoder(to: Callable[[Any, str], Any] | None) -> semel.Graph:
    """Two layers, each with a cache; the second may be on another device."""
    g = semel.Graph("decoder")
    x = g.input("x", ("t", 16))
    for i, device in enumerate(("cpu:0", "cpu:1")):
        cache = g.state(f"k{i}", (32, 16), device=device if to is there else None)
        x = (x if to is None else to(x, device)) @ g.param(f"w{i}", W[i][:16, :16])
        keys = cache.append(x)
        x = (x @ keys.T).softmax(-1) @ keys
    g.output("y", x)
    return g


def stay(x: Any, device: str) -> Any:
    return x.to("cpu")


def there(x: Any, device: str) -> Any:
    return x.to(device)


def test_caches_on_two_devices_are_those_of_one() -> None:
    one = semel.Session().compile(_decoder(stay), dims={"t": (1, 8)})
    two = semel.Session("cpu:0").compile(
        _decoder(there), dims={"t": (1, 8)}, devices=["cpu:0", "cpu:1"]
    )
    assert list(two.plan.memory.devices) == ["cpu:0", "cpu:1"]
    for rows in (3, 1, 1, 4):
        x = RNG.standard_normal((rows, 16), dtype=np.float32)
        np.testing.assert_array_equal(two.run({"x": x})["y"], one.run({"x": x})["y"])
    one.truncate(4)
    two.truncate(4)
    x = RNG.standard_normal((2, 16), dtype=np.float32)
    np.testing.assert_array_equal(two.run({"x": x})["y"], one.run({"x": x})["y"])


def test_caches_stay_with_their_layers_where_devices_are_chosen() -> None:
    cache = 32 * 16 * 4
    one = semel.Session().compile(_decoder(None), dims={"t": (1, 8)})

    def compile_within(limit: int) -> semel.CompiledGraph:
        return semel.Session().compile(
            _decoder(None),
            dims={"t": (1, 8)},
            devices="auto",
            memory_limit={"cpu:0": limit, "cpu:1": limit},
        )

    with pytest.raises(OutOfMemoryError, match="no split"):
        compile_within(cache)
    two = compile_within(4 * cache)
    devices = two.plan.memory.devices
    assert [devices[name].state_bytes for name in ("cpu:0", "cpu:1")] == [cache + 64] * 2
    for rows in (3, 1, 4):
        x = RNG.standard_normal((rows, 16), dtype=np.float32)
        np.testing.assert_array_equal(two.run({"x": x})["y"], one.run({"x": x})["y"])


def test_a_session_on_a_part_of_the_machine() -> None:
    g = semel.Graph("g")
    g.output("y", g.input("x", (4,)) * 2)
    compiled = semel.Session("cpu:1").compile(g)
    assert compiled.plan.device == "cpu:1"
    np.testing.assert_array_equal(compiled.run({"x": np.ones(4, np.float32)})["y"], np.full(4, 2.0))
