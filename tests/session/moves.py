"""What every graph whose experts move must do: the same bits, and memory as it is counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from semel import CompiledGraph, ExpertResidency
from semel.session.residency import ResidencyStats


def stats(c: CompiledGraph) -> dict[int, ResidencyStats]:
    """What was found since this was last asked, which is something."""
    found = c.take_moe_residency_stats()
    assert found is not None
    return found


def check_memory(c: CompiledGraph) -> int:
    """What the store says is in memory is what the system says."""
    store = c._residency().store
    assert store.mapped_bytes() == store.resident_bytes
    return store.resident_bytes


def check_moves(
    compiled: Callable[[ExpertResidency | None], CompiledGraph],
    feeds: Sequence[Mapping[str, Any]],
    stacks: int,
) -> None:
    """With each budget and some policies; every layer has so many stacks."""

    def bits(c: CompiledGraph, feed: Mapping[str, Any]) -> list[bytes]:
        return [np.asarray(y).tobytes() for y in c.run(dict(feed)).values()]

    plain = compiled(None)
    want = [bits(plain, feed) for feed in feeds]
    for asked in (
        ExpertResidency(budget=0),
        ExpertResidency(budget=2, policy="lru"),
        ExpertResidency(budget=3, policy="decayed", ahead=False),
        ExpertResidency(),
    ):
        c = compiled(asked)
        layers = c._residency().store.layers
        assert [len(layer.stacks) for layer in layers.values()] == [stacks] * len(layers)
        for feed, y in zip(feeds, want, strict=True):
            assert bits(c, feed) == y
            room = sum(layer.budget * layer.room for layer in layers.values())
            assert check_memory(c) <= room
            for number, found in stats(c).items():
                assert found.bytes_moved == found.misses * layers[number].expert_bytes
                assert found.misses or layers[number].budget
