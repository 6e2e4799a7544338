"""A decoder whose experts move: how many are in memory, and who decides which.

Run it: python examples/09_experts.py
"""

import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from semel import CompiledGraph, ExpertResidency, Session
from semel.models.mixture import MIXTURE, MixtureSize, build_mixture, gumbel, mixture_weights

DIMS = {"t": (1, 64)}


class Row(NamedTuple):
    """What came of one configuration: a text, and what was found, missed and moved for it."""

    resident: int
    policy: str
    tokens: list[int]
    seconds: float
    stats: dict[int, Any]


def generate(decoder: CompiledGraph, size: MixtureSize, steps: int, seed: int) -> Iterator[int]:
    """Tokens, one by one; the keys and values of those before are the decoder's state."""
    ids = np.array([0])
    for noise in gumbel(steps, size, seed):
        (token,) = decoder.run(ids=ids, noise=noise, fetch=["next"])
        ids = token.reshape(1)
        yield int(token)


def measure(size: MixtureSize, steps: int) -> Iterator[Row]:
    """All experts in memory, half of them, an eighth, none: with each policy."""
    graph, session = build_mixture(mixture_weights(size), size), Session("cpu")
    decoder = session.compile(graph, dims=DIMS)

    # Another text says who is popular: run, capture, count.
    counts: dict[int, Any] = {router.layer: 0 for router in decoder.routers}
    decoder.enable_moe_topk_capture()
    for _ in generate(decoder, size, steps, seed=1):
        for layer, captured in (decoder.take_moe_topk_capture() or {}).items():
            counts[layer] = counts[layer] + captured.counts

    some = [(size.experts // n, who) for n in (2, 8) for who in ("static", "lru", "decayed")]
    with tempfile.TemporaryDirectory() as folder:  # one file of experts serves them all
        for budget, policy in [(size.experts, "static"), *some, (0, "static")]:
            options = {"budget": budget, "policy": policy, "profile": counts}
            experts = ExpertResidency(**options, path=f"{folder}/experts")
            decoder = session.compile(graph, dims=DIMS, experts=experts)
            start = time.perf_counter()
            tokens = list(generate(decoder, size, steps, seed=2))
            seconds = time.perf_counter() - start
            yield Row(budget, policy, tokens, seconds, decoder.take_moe_residency_stats())


if __name__ == "__main__":
    steps = 96
    print("resident  policy   tokens/s  hits  misses/token  MB/token")
    for resident, policy, _, seconds, stats in measure(MIXTURE, steps):
        each = [(s.hits, s.misses, s.bytes_moved / 1e6) for s in stats.values()]
        hits, misses, moved = np.sum(each, 0) / steps
        share = f"{hits / (hits + misses):4.0%}  {misses:12.2f}  {moved:8.2f}"
        print(f"{resident:8}  {policy:7}  {steps / seconds:8.0f}  {share}")
