"""The decoder of the examples: what NumPy says, token by token or all at once, on any threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from examples.decoder import SMALL, drawn, gpt2
from tests.models import reference

from semel.plan.plan import ExecutionPlan

DIMS = {"t": (1, 64)}
IDS = np.random.default_rng(5).integers(0, SMALL["vocabulary"], 30)


def weights_by_name(seed: int = 0) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    draw = drawn(seed)

    def weight(name: str, shape: Any) -> np.ndarray:
        found[name] = draw(name, shape)
        return found[name]

    gpt2(weight, **SMALL)
    return found


@pytest.fixture(scope="module")
def prepared() -> ExecutionPlan:
    return gpt2(drawn(), **SMALL).prepare(dims=DIMS, threads=2)


@pytest.fixture
def plan(prepared: ExecutionPlan) -> ExecutionPlan:
    """A decoder that has seen nothing yet."""
    prepared.states.reset()
    return prepared


def by_hand(count: int, w: dict[str, np.ndarray]) -> np.ndarray:
    """The logits behind the last of so many tokens, computed one by one."""
    shape = (SMALL["layers"], SMALL["heads"], 0, SMALL["wide"] // SMALL["heads"])
    keys, values = np.zeros(shape), np.zeros(shape)
    logits = np.zeros(0)
    for token in IDS[:count]:
        logits, new_keys, new_values = reference.gpt2_step_with_caches(
            int(token), keys, values, w, SMALL["heads"]
        )
        keys, values = (
            np.concatenate([old, new[:, :, None]], 2)
            for old, new in ((keys, new_keys), (values, new_values))
        )
    return logits


@pytest.mark.parametrize("cuts", [(30,), (12, 1, 1, 1, 15), (1,) * 30], ids=len)
def test_prompts_and_steps_give_what_numpy_says(plan: ExecutionPlan, cuts: tuple[int, ...]) -> None:
    w = {name: array.astype(np.float64) for name, array in weights_by_name().items()}
    done = 0
    for count in cuts:
        chosen, logits = plan(ids=IDS[done : done + count])
        done += count
    np.testing.assert_allclose(logits, by_hand(done, w), rtol=1e-4, atol=1e-5)
    assert chosen == logits.argmax()
    assert plan.states.cursors == {"cursor": 30}


def test_a_step_has_the_same_bits_on_any_threads_and_without_fusion(plan: ExecutionPlan) -> None:
    graph = gpt2(drawn(), **SMALL)
    alone = graph.prepare(dims=DIMS, threads=1)
    apart = graph.prepare(dims=DIMS, threads=2, fusion=False)
    assert len(apart.prepared_ops) > 2 * len(plan.prepared_ops)
    for part in (IDS[:9], IDS[9:10], IDS[10:11]):
        logits, others, unfused = (each(ids=part)[1] for each in (plan, alone, apart))
        assert np.array_equal(logits, others)
        np.testing.assert_allclose(logits, unfused, rtol=1e-5, atol=1e-5)


def test_a_layer_is_nine_kernels(plan: ExecutionPlan) -> None:
    """Biases, residuals, activations and all views are in the contractions."""
    layer = ["layer_norm", "matmul_add", "update", "update", "attention", "matmul_add"]
    layer += ["layer_norm", "matmul_add_gelu", "matmul_add"]
    names = [op.name for op in plan.prepared_kernels]
    assert names == ["embedding_add", *layer * 2, "layer_norm", "matmul", "argmax"]


def test_weights_are_held_once_and_no_cache_is_copied(plan: ExecutionPlan) -> None:
    """The table of tokens is looked up and multiplied by, and there is one of it."""
    arrays = weights_by_name()
    padding = 12 * SMALL["wide"] * 4  # the last panel of the table's columns
    assert plan.memory.weights_bytes == sum(a.nbytes for a in arrays.values()) + padding
    caches = 2 * SMALL["layers"] * SMALL["room"] * SMALL["wide"] * 4
    assert caches <= plan.memory.state_bytes <= caches + 64 * 4
    kinds = [str(v.type) for v in plan.program.values if v.place == "arena"]
    assert not [kind for kind in kinds if "cursor" in kind]
    assert {info.how for info in plan.states.values()} == {"in place"}


def test_weights_can_be_replaced() -> None:
    plan, other = (gpt2(drawn(seed), **SMALL).prepare(dims=DIMS) for seed in (0, 1))
    plan.set_params(weights_by_name(seed=1))
    for part in (IDS[:9], IDS[9:10]):
        assert np.array_equal(plan(ids=part)[1], other(ids=part)[1])
