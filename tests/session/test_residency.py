"""Experts in a file: what is resident is in memory, and results never depend on it."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.session.entries import ENTRIES

from semel import (
    CompiledGraph,
    ExecutableGraph,
    ExpertResidency,
    Graph,
    InputError,
    Session,
    UnsupportedError,
    load,
)
from semel.session.residency import ResidencyStats

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


def model(layers: int = LAYERS) -> Graph:
    g = Graph("model")
    x = g.input("x", ("tokens", WIDE))
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


def stats(c: CompiledGraph) -> dict[int, ResidencyStats]:
    found = c.take_moe_residency_stats()
    assert found is not None
    return found


def check_memory(c: CompiledGraph) -> int:
    """What the store says is in memory is what the system says."""
    store = c._residency().store
    assert store.mapped_bytes() == store.resident_bytes
    return store.resident_bytes


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
