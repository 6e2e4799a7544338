"""Experts in a file: what is resident is in memory, and results never depend on it."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.session.entries import ENTRIES
from tests.session.moves import check_memory, stats

from semel import (
    CompiledGraph,
    DeviceError,
    ExecutableGraph,
    ExpertPool,
    ExpertResidency,
    Graph,
    IndexRangeError,
    InputError,
    PlanError,
    Session,
    TimedOutError,
    UnsupportedError,
    Variable,
    load,
)
from semel.plan.distrust import check_lives
from semel.plan.experts import EXPERTS as EXPERTS_ROW
from semel.plan.program import Program
from semel.plan.spill import Spill, _is_in_memory
from semel.runtime.forked_pages import PAGE_BYTES
from semel.session.experts import layer_masks, merged_mask
from semel.session.residency import Residency, ResidencyStats

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(21)
EXPERTS, WIDE, INNER, K, LAYERS = 8, 48, 80, 2, 2
DIMS = {"tokens": (1, 32)}


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32) / 4


ROUTERS = [normal(WIDE, EXPERTS) for _ in range(LAYERS)]
UPS = [normal(EXPERTS, WIDE, INNER) for _ in range(LAYERS)]
DOWNS = [normal(EXPERTS, INNER, WIDE) for _ in range(LAYERS)]
XS = [normal(tokens, WIDE) for tokens in (1, 5, 32, 1, 2)]


def model(layers: int = LAYERS, tokens: str | Variable = "tokens") -> Graph:
    g = Graph("model")
    x = g.input("x", (tokens, WIDE))
    for n in range(layers):
        up, down = g.param(f"up {n}", UPS[n]), g.param(f"down {n}", DOWNS[n])
        x = x + g.moe(x, up, down, logits=x @ ROUTERS[n], k=K)
    g.output("y", x)
    return g


def resident(**options: Any) -> CompiledGraph:
    return Session().compile(model(), dims=DIMS, experts=ExpertResidency(**options))


@pytest.fixture(scope="module")
def expected() -> list[bytes]:
    plain = Session().compile(model(), dims=DIMS)
    return [plain.run(x)[0].tobytes() for x in XS]


def mask(*experts: int) -> Array:
    return np.isin(np.arange(EXPERTS), experts)


def test_it_is_what_the_protocol_says() -> None:
    assert isinstance(resident(), ExecutableGraph)


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_way_to_run_brings_in_who_is_needed(entry: str, expected: list[bytes]) -> None:
    c = resident(budget=0)
    for x, y in zip(XS, expected, strict=True):
        assert np.asarray(ENTRIES[entry](c, {"x": x})["y"]).tobytes() == y
        assert check_memory(c) == 0


@pytest.mark.parametrize("policy", ["static", "lru", "decayed", None])
@pytest.mark.parametrize("budget", [0, 1, 4, 8])
def test_no_policy_and_no_budget_changes_a_bit(
    policy: Any, budget: int, expected: list[bytes]
) -> None:
    c = resident(policy=policy, budget=budget)
    room = sum(layer.room for layer in c._residency().store.layers.values())
    for x, y in zip(XS * 2, expected * 2, strict=True):
        assert c.run(x)[0].tobytes() == y
        assert check_memory(c) <= budget * room
        assert all(m.sum() <= budget for m in c.moe_resident_experts().values())


def test_bytes_moved_are_misses_times_the_bytes_of_an_expert() -> None:
    c = resident(budget=EXPERTS // 2)
    c.enable_moe_topk_capture()
    size = UPS[0][0].nbytes + DOWNS[0][0].nbytes
    packed = {n: layer.expert_bytes for n, layer in c._residency().store.layers.items()}
    assert all(size <= found < 2 * size for found in packed.values())
    for x in XS:
        c.run(x)
        ids, found = c.take_moe_topk_capture(), stats(c)
        assert ids is not None
        for layer, capture in ids.items():
            routed = set(capture.ids.ravel().tolist())
            here, own = {e for e in routed if e < EXPERTS // 2}, found[layer]
            assert (own.hits, own.misses) == (len(here), len(routed - here))
            assert own.tokens == len(x)
            assert own.bytes_moved == own.misses * packed[layer]
            assert (own.seconds_waited > 0) == (own.misses > 0)


@pytest.mark.parametrize("options", [{}, {"ahead": False}])
def test_layers_that_share_stacks_count_what_is_read(options: dict[str, Any]) -> None:
    """Each asks for its own experts, of whom some are there for the other."""
    g = Graph("shared")
    x, ids = g.input("x", ("tokens", WIDE)), g.input("ids", ("tokens", K), "int64")
    up, down = g.param("up", UPS[0]), g.param("down", DOWNS[0])
    x = x + g.moe(x, up, down, ids=ids)
    g.output("y", x + g.moe(x, up, down, ids=EXPERTS - 1 - ids))
    plain = Session().compile(g)
    c = Session().compile(g, experts=ExpertResidency(budget=2, **options))
    c.set_moe_resident_experts_per_layer([mask(0, 1), mask(6, 7)])
    size = c._residency().store.layers[0].expert_bytes
    assert [s.bytes_placed for s in stats(c).values()] == [0, 2 * size]  # 0 and 1 were there
    given = (XS[0], np.array([[6, 2]]))  # and 1 and 5
    assert c.run(*given)[0].tobytes() == plain.run(*given)[0].tobytes()
    first, second = stats(c).values()
    assert (first.misses, first.bytes_moved) == (2, size)  # 6 is there for the other layer
    assert (second.misses, second.bytes_moved) == (2, size)  # 1 likewise
    check_memory(c)


def test_capabilities_tell_of_layers(tmp_path: Path) -> None:
    plain, moving = Session().compile(model(), dims=DIMS), resident(budget=1)
    for c, has_residency in ((plain, False), (moving, True)):
        can = c.capabilities()
        assert (can.layers, can.residency) == ((0, 1), has_residency)
        c.enable_moe_topk_capture()
        c.run(XS[1])
        assert tuple(c.take_moe_topk_capture() or ()) == can.layers
        c.save(tmp_path / "model.plan")
        assert load(tmp_path / "model.plan").capabilities() == can
    moving.set_moe_resident_experts(mask(3))
    g = Graph("plain")
    g.output("y", g.input("x", (2, 3)) + 1)
    can = Session().compile(g).capabilities()
    assert (can.layers, can.residency) == ((), False)


def test_stats_are_taken_once_and_are_of_one_graph() -> None:
    c = resident()
    other = c.clone()
    c.run(XS[0])
    assert other.take_moe_residency_stats() is None
    assert stats(c)[0].hits == K
    assert c.take_moe_residency_stats() is None


def test_masks_take_the_place_of_each_other() -> None:
    c = resident()
    c.set_moe_resident_experts(mask(0, 1))
    first = check_memory(c)
    c.set_moe_resident_experts_per_layer([mask(2), mask(3, 4, 5)])
    found = c.moe_resident_experts()
    np.testing.assert_array_equal(found[0], mask(2))
    np.testing.assert_array_equal(found[1], mask(3, 4, 5))
    assert 0 < check_memory(c) <= 2 * first
    c.set_moe_resident_experts_per_layer({1: mask(), 0: mask(7)})
    np.testing.assert_array_equal(c.moe_resident_experts()[0], mask(7))
    c.set_moe_resident_experts(mask())
    assert check_memory(c) == 0
    assert not any(m.any() for m in c.moe_resident_experts().values())


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (mask(1)[:-1], r"layer 0 needs 8 bools, got bool\[7\]"),
        ([1] * EXPERTS, r"layer 0 needs 8 bools, got int64\[8\]"),
        (mask(*range(5)), "at most 4 experts of layer 0 may be resident, got 5"),
    ],
)
def test_masks_that_do_not_fit_change_nothing(masks: Any, message: str) -> None:
    c = resident(budget=4)
    before = c.moe_resident_experts()
    with pytest.raises(InputError, match=message):
        c.set_moe_resident_experts(masks)
    with pytest.raises(InputError, match=message.replace("layer 0", "layer 1")):
        c.set_moe_resident_experts_per_layer([mask(7), masks])
    with pytest.raises(InputError, match="a mask for each of 2 layers, got 1"):
        c.set_moe_resident_experts_per_layer([mask(7)])
    with pytest.raises(InputError, match="must be for layers 0, 1, got 5"):
        c.set_moe_resident_experts_per_layer({0: mask(7), 5: mask(7)})
    for layer, found in c.moe_resident_experts().items():
        np.testing.assert_array_equal(found, before[layer])


def test_without_residency_masks_are_refused() -> None:
    c = Session().compile(model(), dims=DIMS)
    with pytest.raises(UnsupportedError, match="experts=ExpertResidency"):
        c.set_moe_resident_experts(mask(1))
    with pytest.raises(UnsupportedError, match="compiled without residency"):
        c.set_moe_resident_experts_per_layer([mask(1)] * LAYERS)
    with pytest.raises(UnsupportedError, match="compiled without residency"):
        c.moe_resident_experts()
    assert c.take_moe_residency_stats() is None


def test_random_masks_between_runs_change_no_bit(expected: list[bytes]) -> None:
    rng = np.random.default_rng(5)
    for threads in (1, 2):
        c = Session().compile(model(), dims=DIMS, experts=ExpertResidency(), threads=threads)
        for _ in range(12):
            which = int(rng.integers(len(XS)))
            c.set_moe_resident_experts_per_layer(rng.random((LAYERS, EXPERTS)) < rng.random())
            assert c.run(XS[which])[0].tobytes() == expected[which]
            check_memory(c)


def test_clones_run_at_the_same_time(expected: list[bytes]) -> None:
    c = resident(budget=3, policy="lru")
    clones, wrong = [c, *(c.clone() for _ in range(7))], []

    def work(own: CompiledGraph, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(10):
            which = int(rng.integers(len(XS)))
            if own.run(XS[which])[0].tobytes() != expected[which]:
                wrong.append(which)
            if seed == 3:
                own.set_moe_resident_experts(rng.permutation(EXPERTS) < 2)

    threads = [threading.Thread(target=work, args=(own, i)) for i, own in enumerate(clones)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    check_memory(c)
    assert all(m.sum() <= 3 for m in c.moe_resident_experts().values())


def test_layers_that_are_full_are_counted_and_ask_nobody(expected: list[bytes]) -> None:
    c = resident()
    for runs, (x, y) in enumerate(zip(XS, expected, strict=True)):
        c.enable_moe_topk_capture()
        assert c.run(x)[0].tobytes() == y
        ids, found = c.take_moe_topk_capture(), stats(c)
        assert ids is not None
        for layer, capture in ids.items():
            assert found[layer].hits == len(np.unique(capture.ids))
            assert (found[layer].misses, found[layer].tokens) == (0, len(x))
        assert c._residency()._full == {0, 1}, runs
    c.clone().set_moe_resident_experts(mask(3))
    assert c._residency()._full == set()
    assert c.run(XS[2])[0].tobytes() == expected[2]
    assert stats(c)[0].misses > 0


def test_a_run_for_some_outputs_counts_what_it_computes() -> None:
    g = model(1)
    (first,) = g.outputs.values()
    g.output("second", first.grouped_matmul(UPS[1], (first @ ROUTERS[1]).topk(1)[1]).sum(-2))
    c = Session().compile(g, dims=DIMS, experts=ExpertResidency())
    for _ in range(3):
        c.run(XS[1], fetch=["y"])
        found = stats(c)
        assert found[0].hits > 0 and found[1] == ResidencyStats()
        c.run(XS[1])
        assert stats(c)[1].tokens == len(XS[1])
        assert c._residency()._full == {0, 1}


def test_layers_that_are_full_ask_nobody_in_runs_for_some_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    g = model()
    (last,) = g.outputs.values()
    g.output("sum", last.sum())
    c = Session().compile(g, dims=DIMS, experts=ExpertResidency())
    asked: list[int] = []
    call = Residency.call

    def note(self: Residency, attrs: Any, *rest: Any) -> None:
        asked.append(attrs["layer"])
        call(self, attrs, *rest)

    monkeypatch.setattr(Residency, "call", note)
    for x in XS:
        c.enable_moe_topk_capture()
        c.run(x, fetch=["y"])
        ids, found = c.take_moe_topk_capture(), stats(c)
        assert ids is not None
        for layer, capture in ids.items():
            assert found[layer].hits == len(np.unique(capture.ids))
            assert (found[layer].misses, found[layer].tokens) == (0, len(x))
    assert asked == [0, 1]


def test_plans_can_be_used_by_themselves(expected: list[bytes]) -> None:
    c = resident(budget=2)
    other = c.plan.clone()
    for x, y in zip(XS, expected, strict=True):
        assert other(x=x).tobytes() == c.plan(x=x).tobytes() == y
        c.set_moe_resident_experts(mask())
    full = resident()
    full.run(XS[2])
    plain = Session().compile(model(), dims=DIMS)
    for each in (full, plain):
        each.plan.set_param("down 1", UPS[0].reshape(DOWNS[1].shape))
    assert full.run(XS[2])[0].tobytes() == plain.run(XS[2])[0].tobytes() != expected[2]
    check_memory(full)


def test_runs_that_fail_leave_the_store_as_it_was(expected: list[bytes]) -> None:
    g = Graph("model")
    x, ids = g.input("x", ("tokens", WIDE)), g.input("ids", ("tokens", K), "int64")
    x = x + g.moe(x, UPS[0], DOWNS[0], ids=ids)
    g.output("y", x + g.moe(x, UPS[1], DOWNS[1], ids=(ids + 1)))
    c = Session().compile(g, dims=DIMS, experts=ExpertResidency(budget=2, ahead=False))
    good, bad = np.array([[0, 6]]), np.array([[5, EXPERTS - 1]])
    before = c.run(XS[0], good)[0]
    rest = check_memory(c)
    c.take_moe_residency_stats()
    with pytest.raises(IndexRangeError, match="8"):
        c.run(XS[0], bad)  # in the second layer: the first one has its guests
    assert check_memory(c) == rest
    assert stats(c)[0].misses == 2
    np.testing.assert_array_equal(c.run(XS[0], good)[0], before)
    with pytest.raises(TimedOutError, match="within"):
        c.run(XS[0], good, timeout=1e-9)
    assert check_memory(c) == rest


@pytest.mark.parametrize("policy", ["static", "lru", "decayed", None])
def test_runs_without_tokens(policy: Any, expected: list[bytes]) -> None:
    asked = ExpertResidency(budget=3, policy=policy)
    c = Session().compile(model(tokens=Variable("tokens", 0, 32)), experts=asked)
    for x, y in zip(XS, expected, strict=True):
        assert c.run(x[:0])[0].shape == (0, WIDE)
        assert c.run(x)[0].tobytes() == y
        check_memory(c)


def test_guests_leave_whatever_becomes_of_the_decision(
    expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    c = resident(budget=2, policy="lru")

    def fails(self: ExpertPool, ids: Any) -> None:
        raise DeviceError("pool", "fails.")

    with monkeypatch.context() as during:
        during.setattr(ExpertPool, "observe", fails)
        for _ in range(2):
            with pytest.raises(DeviceError, match="pool"):
                c.run(XS[2])
    assert c.run(XS[0])[0].tobytes() == expected[0]
    room = sum(layer.room for layer in c._residency().store.layers.values())
    assert check_memory(c) <= 2 * room


@pytest.mark.parametrize("budget", [3, EXPERTS])
def test_experts_of_tokens_that_a_run_finds_out(budget: int) -> None:
    def build() -> Graph:
        g = Graph("model")
        x = g.input("x", (16, WIDE))
        x = x[x.sum(-1) > 0]  # as many as there are
        g.output("y", g.moe(x, UPS[0], DOWNS[0], logits=x @ ROUTERS[0], k=K))
        return g

    c = Session().compile(build(), experts=ExpertResidency(budget=budget, policy="lru"))
    plain, clone = Session().compile(build()), c.plan.clone()
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal((16, WIDE)).astype(np.float32)
        assert c.run(x)[0].tobytes() == plain.run(x)[0].tobytes() == clone(x=x).tobytes()
        assert stats(c)[0].tokens == np.count_nonzero(x.sum(-1) > 0)
        check_memory(c)


def test_asynchronous_runs(expected: list[bytes]) -> None:
    c = resident(budget=2, policy="decayed")
    found = c.run_pipelined([(x,) for x in XS])
    assert [each[0].tobytes() for each in found] == expected
    check_memory(c)


def test_the_policy_decides_layer_by_layer() -> None:
    """Who was routed to last is resident, and was moved only if he was not before."""
    c = resident(budget=3, policy="lru")
    c.enable_moe_topk_capture()
    for x in [XS[0], XS[3], XS[4], XS[0]]:
        there = c.moe_resident_experts()
        c.run(x)
        ids, found = c.take_moe_topk_capture(), stats(c)
        assert ids is not None
        for layer, capture in ids.items():
            routed = set(capture.ids.ravel().tolist())
            assert found[layer].misses == len(routed - set(np.flatnonzero(there[layer])))
            newest = set(capture.ids[-1].tolist())
            assert newest <= set(np.flatnonzero(c.moe_resident_experts()[layer]))


def early(ahead: bool) -> CompiledGraph:
    """A layer whose router decides long before its experts are needed."""
    g = Graph("early")
    x = g.input("x", ("tokens", WIDE))
    _, ids = (x @ ROUTERS[0]).topk(K)
    ids = ids + 0
    g.output("ids", ids)
    wide = x
    for _ in range(3):
        wide = (wide @ UPS[0][0]).tanh() @ DOWNS[0][0]
    g.output("y", g.moe(wide.softmax(-1), UPS[1], DOWNS[1], ids=ids))
    return Session().compile(g, dims=DIMS, experts=ExpertResidency(budget=1, ahead=ahead))


def test_experts_are_brought_in_ahead_of_need() -> None:
    ahead, late = early(True), early(False)
    kinds = [row.kind for row in ahead.plan.prepared_ops]
    assert (
        kinds.count("experts") == 2
        and [r.kind for r in late.plan.prepared_ops].count("experts") == 1
    )
    first = kinds.index("experts")
    assert kinds[first:].count("kernel") > 4  # the products of the layer, and what they wait for
    for x in XS * 2:
        assert ahead.run(x)["y"].tobytes() == late.run(x)["y"].tobytes()
        own, other = stats(ahead)[0], stats(late)[0]
        assert (own.hits, own.misses, own.bytes_moved) == (
            other.hits,
            other.misses,
            other.bytes_moved,
        )
        assert check_memory(ahead) == check_memory(late)
    with pytest.raises(TimedOutError, match="within"):
        ahead.run(XS[2], timeout=1e-9)
    assert check_memory(ahead) == check_memory(late)


# ---------------------------------------------------------------- the cases of the specification


def products(ids: list[int], experts: int, inner: int, columns: int) -> CompiledGraph:
    rng = np.random.default_rng(experts)
    g = Graph("products")
    x, which = g.input("x", (len(ids), inner)), g.input("ids", (len(ids),), "int64")
    w = g.param("w", rng.standard_normal((experts, inner, columns)).astype(np.float32))
    g.output("y", x.grouped_matmul(w, which))
    return Session().compile(g, experts=ExpertResidency())


@pytest.mark.parametrize(
    ("ids", "experts", "columns", "masks"),
    [
        ([0, 1, 1, 2], 3, 2, [[0, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 0]]),
        ([1], 3, 40, [[1, 0, 1], [0, 1, 0]]),
        ([0, 3, 1, 2, 3, 0, 2, 1], 4, 24, [[1, 0, 1, 0], [0, 1, 0, 1]]),
    ],
    ids=["sorted", "one token", "interleaved"],
)
def test_residency_is_lossless(
    ids: list[int], experts: int, columns: int, masks: list[list[int]]
) -> None:
    c, x = products(ids, experts, 3, columns), normal(len(ids), 3)
    expected = c.run(x, ids)[0].tobytes()
    assert stats(c)[0].misses == 0
    for chosen in masks:
        c.set_moe_resident_experts(np.array(chosen, np.bool_))
        assert c.run(x, ids)[0].tobytes() == expected
        cold = {expert for expert in ids if not chosen[expert]}
        assert (stats(c)[0].misses, check_memory(c) > 0) == (len(cold), any(chosen))


def test_masks_of_pools_can_be_set() -> None:
    pools = [ExpertPool(EXPERTS, 2), ExpertPool(EXPERTS, 2)]
    pools[1].place([2, 3])
    c = resident()
    c.set_moe_resident_experts_per_layer(layer_masks(pools))
    np.testing.assert_array_equal(c.moe_resident_experts()[0], mask(0, 1))
    np.testing.assert_array_equal(c.moe_resident_experts()[1], mask(2, 3))
    c.set_moe_resident_experts(merged_mask(pools))
    np.testing.assert_array_equal(c.moe_resident_experts()[1], mask(0, 1, 2, 3))


# ---------------------------------------------------------------- the file


def test_a_file_of_ones_own_is_written_once(tmp_path: Path, expected: list[bytes]) -> None:
    path = tmp_path / "experts"
    first = resident(budget=1, path=path)
    assert first.run(XS[2])[0].tobytes() == expected[2]
    written = path.stat()
    again = resident(budget=1, path=str(path))
    assert again.run(XS[2])[0].tobytes() == expected[2]
    assert path.stat().st_mtime_ns == written.st_mtime_ns
    assert [p.name for p in tmp_path.iterdir()] == ["experts"]


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "experts"
    for contents in (b"", b"something", b"x" * 100_000):
        path.write_bytes(contents)
        with pytest.raises(InputError, match="must hold the experts of this graph"):
            resident(path=path)
        assert path.read_bytes() == contents
    resident_of_others = Session().compile(
        model(1), dims=DIMS, experts=ExpertResidency(path=tmp_path / "other")
    )
    del resident_of_others
    with pytest.raises(InputError, match="must hold the experts of this graph"):
        resident(path=tmp_path / "other")
    with pytest.raises(InputError, match="cannot be written"):
        resident(path=tmp_path / "no such directory" / "experts")


def test_a_file_is_not_believed_by_its_first_page(tmp_path: Path) -> None:
    path = tmp_path / "experts"
    resident(path=path)
    for place in (PAGE_BYTES + 5, path.stat().st_size // 2, UPS[0].nbytes + PAGE_BYTES + 9):
        held = bytearray(path.read_bytes())
        held[place] ^= 1
        other = tmp_path / f"at {place}"
        other.write_bytes(held)
        with pytest.raises(InputError, match="must hold the experts of this graph"):
            resident(path=other)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="cannot be read"):
        resident(path=tmp_path / "pipe")


def test_files_without_a_name_are_on_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_memory = {str(tmp_path)}
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("semel.plan.spill._is_in_memory", in_memory.__contains__)
    found = Spill([UPS[0]])
    assert found.write_to(None).directory == "/var/tmp"
    assert not caplog.records
    in_memory.add("/var/tmp")
    assert found.write_to(None).directory == str(tmp_path)
    assert "those that are not resident are in memory all the same" in caplog.text


def test_the_system_says_which_files_are_in_memory() -> None:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    for _, place, kind, *_ in mounts:
        if kind == "tmpfs" and Path(place).is_dir():
            assert _is_in_memory(place)
    assert not _is_in_memory("/proc")
    assert not _is_in_memory("/no such directory")


def test_no_room_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.plan.spill._free_bytes", lambda _: 1000)
    with pytest.raises(DeviceError, match=r"need [0-9]+ bytes of a disk, there are 1000 in"):
        resident()

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(DeviceError, match=r"must fit into .*No space left"):
        resident(path=tmp_path / "experts")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"budget": 1, "budget_bytes": 1}, "in experts or in bytes, got both"),
        ({"budget": -1}, "budget must be at least 0, got -1"),
        ({"budget_bytes": -1}, "budget_bytes must be at least 0, got -1"),
        ({"policy": "best"}, "policy must be one of static, lru, decayed, got 'best'"),
        ({"profile": "x"}, "profile must be numbers of one shape, got 'x'"),
        ({"profile": {0: [[1], [1, 2]]}}, "profile must be numbers of one shape"),
        ({"profile": {"0": [1.0] * 8}}, "layer must be an int, got '0'"),
        ({"path": 3}, "path must be a str or a path, got 3"),
        ({"path": b"file"}, "path must be a str or a path, got b'file'"),
        ({"path": ""}, "path must name a file, got ''"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, PlanError), match=message):
        ExpertResidency(**wrong)


def test_what_is_not_of_the_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="profile must be for layers 0, 1, got 7"):
        resident(budget=1, profile={0: [1] * EXPERTS, 7: [1] * EXPERTS})
    with pytest.raises(InputError, match=r"cannot be read: .*directory"):
        resident(path=tmp_path)


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (None, "must be one for each layer, in a dict or a list, got None"),
        (3, "in a dict or a list, got 3"),
        ((mask(1) for _ in range(LAYERS)), "in a dict or a list, got <generator"),
        (np.array(True), "in a dict or a list"),
        ([mask(1), [[True], [True, False]]], "must be bools of one shape"),
        ("ab", "layer 0 needs 8 bools"),
    ],
)
def test_what_is_no_mask_for_each_layer_is_refused(masks: Any, message: str) -> None:
    c = resident(budget=1)
    with pytest.raises(InputError, match=message):
        c.set_moe_resident_experts_per_layer(masks)


def test_what_a_graph_must_have() -> None:
    g = Graph("plain")
    g.output("y", g.input("x", (2, 3)) + 1)
    with pytest.raises(UnsupportedError, match="a layer of experts, this one has none"):
        Session().compile(g, experts=ExpertResidency())
    g = Graph("given")
    x, w = g.input("x", (4, WIDE)), g.input("w", (EXPERTS, WIDE, INNER))
    g.output("y", x.grouped_matmul(w, (x @ ROUTERS[0]).topk(1)[1]))
    with pytest.raises(UnsupportedError, match="must have experts in stacks of its own"):
        Session().compile(g, experts=ExpertResidency())


def test_a_budget_in_bytes_is_for_all_layers() -> None:
    room = sum(layer.room for layer in resident(budget=0)._residency().store.layers.values())
    for experts in (0, 1, 3):
        c = resident(budget_bytes=experts * room + room // 2)
        assert [int(m.sum()) for m in c.moe_resident_experts().values()] == [experts] * LAYERS
        assert check_memory(c) <= experts * room


# ---------------------------------------------------------------- files, pickles, params, extents


def test_files_and_pickles_have_the_same_residency(tmp_path: Path, expected: list[bytes]) -> None:
    c = resident(budget=2, policy="lru", profile={0: range(EXPERTS), 1: [1.0] * EXPERTS})
    c.run(XS[2])
    c.save(tmp_path / "model.plan")
    for again in (load(tmp_path / "model.plan"), pickle.loads(pickle.dumps(c))):
        np.testing.assert_array_equal(again.moe_resident_experts()[0], mask(6, 7))
        for x, y in zip(XS, expected, strict=True):
            assert again.run(x)[0].tobytes() == y
            check_memory(again)
        assert stats(again)[0].misses > 0


def test_experts_stay_in_the_plan_file(
    tmp_path: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.plan"
    resident(budget=1, path=tmp_path / "experts").save(path)
    monkeypatch.setattr("semel.plan.spill._free_bytes", lambda _: 0)  # there is no other room
    c = load(path)
    path.unlink()  # the file that is open stays
    for x, y in zip(XS, expected, strict=True):
        assert c.run(x)[0].tobytes() == y
        check_memory(c)
    c.save(tmp_path / "again.plan")
    assert load(tmp_path / "again.plan").run(XS[2])[0].tobytes() == expected[2]


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("layers", [1, LAYERS])
def test_programs_with_rows_of_experts_are_whole(layers: int, ahead: bool) -> None:
    """Lives are those of the rows there are, and each node is told to be in the rows it was in."""
    plain = Session().compile(model(layers), dims=DIMS).plan.program
    program = (
        Session()
        .compile(model(layers), dims=DIMS, experts=ExpertResidency(budget=1, ahead=ahead))
        .plan.program
    )
    check_lives(program)
    assert sum(placed.row.kind == EXPERTS_ROW for placed in program.walk()) >= layers

    def names(of: Program) -> list[tuple[str, list[str]]]:
        rows = [placed.row.name for placed in of.walk()]
        return [(note.node, [rows[op] for op in note.ops]) for note in of.nodes]

    assert names(program) == names(plain)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("layers", [1, LAYERS])
def test_files_with_residency_can_be_loaded_in_every_way(
    layers: int, ahead: bool, tmp_path: Path
) -> None:
    asked = ExpertResidency(budget=2, policy="lru", ahead=ahead)
    c = Session().compile(model(layers), dims=DIMS, experts=asked)
    c.save(tmp_path / "model.plan")
    other = ExpertResidency(budget=1, ahead=not ahead)
    for options in (
        {"trust": False},
        {"trust": False, "experts": other},
        {"recompile": True},
        {"recompile": True, "experts": other},
        {"threads": 2},
        {"verify": False},
    ):
        again = load(tmp_path / "model.plan", **options)
        for x in XS[:3]:
            assert again.run(x)[0].tobytes() == c.run(x)[0].tobytes(), options
        assert stats(again)[0].misses > 0, options
        check_memory(again)


def test_a_file_can_be_loaded_with_another_residency(tmp_path: Path, expected: list[bytes]) -> None:
    Session().compile(model(), dims=DIMS).save(tmp_path / "model.plan")
    assert load(tmp_path / "model.plan").take_moe_residency_stats() is None
    c = load(tmp_path / "model.plan", experts=ExpertResidency(budget=1))
    assert c.run(XS[1])[0].tobytes() == expected[1]
    assert stats(c)[0].misses > 0
    c.save(tmp_path / "again.plan")
    assert load(tmp_path / "again.plan").moe_resident_experts()[1].sum() == 1


def test_params_can_be_replaced(expected: list[bytes]) -> None:
    c = resident(budget=3)
    clone = c.clone()
    c.set_moe_resident_experts(mask(1, 5))
    plain = Session().compile(model(), dims=DIMS)
    ups = normal(*UPS[0].shape)
    for each in (c, plain):
        each.set_param("up 0", ups)
    for x, y in zip(XS, expected, strict=True):
        assert c.run(x)[0].tobytes() == plain.run(x)[0].tobytes() != y
        assert clone.run(x)[0].tobytes() == y
        check_memory(c)
        check_memory(clone)
    np.testing.assert_array_equal(c.moe_resident_experts()[0], mask(1, 5))
    clone.set_moe_resident_experts(mask())
    assert check_memory(clone) == check_memory(c) * 3 // 4  # of four stacks, three are shared


def test_params_may_be_given_later(expected: list[bytes]) -> None:
    g = Graph("model")
    x = g.input("x", ("tokens", WIDE))
    for n in range(LAYERS):
        up = g.param(f"up {n}", shape=UPS[n].shape)
        down = g.param(f"down {n}", shape=DOWNS[n].shape)
        x = x + g.moe(x, up, down, logits=x @ ROUTERS[n], k=K)
    g.output("y", x)
    c = Session().compile(g, dims=DIMS, experts=ExpertResidency(budget=2))
    named = {f"up {n}": UPS[n] for n in range(LAYERS)} | {
        f"down {n}": DOWNS[n] for n in range(LAYERS)
    }
    c.load_params(named)
    assert c.run(XS[2])[0].tobytes() == expected[2]
    assert check_memory(c) > 0


def test_an_extent_that_is_set_later_keeps_residents(expected: list[bytes]) -> None:
    g = model()  # which holds the weights that are laid out once more
    c = Session().compile(g, dims=DIMS, experts=ExpertResidency(budget=3))
    c.set_moe_resident_experts(mask(2, 6))
    c.set_active_extent((5, 32))
    x = np.zeros((32, WIDE), np.float32)
    x[:5] = XS[1]
    assert c.run(x)[0][:5].tobytes() == expected[1]
    np.testing.assert_array_equal(c.moe_resident_experts()[1], mask(2, 6))
    assert stats(c)[0].tokens == 5
    check_memory(c)
