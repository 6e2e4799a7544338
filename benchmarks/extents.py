"""What a run of the first quarter of the rows costs, of a full one: MiniLM with an extent.

    measure_extents()  -->  (batch, longest sentence) and seconds at a quarter over seconds at all

Both are the same compiled graph on the same arrays, run in turn; what is compared are the best
times of many rounds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from benchmarks.checkpoints import bench_minilm_weights
from semel.graph.builder import Graph
from semel.models.minilm import MINILM, build_minilm
from semel.plan.plan import ExecutionPlan

#: Sentences, and the longest of them.
SIZES = ((1, 128), (1, 512), (8, 128))
_SHARE, _ROUNDS = 4, 25


def measure_extents() -> Iterator[tuple[int, int, float]]:
    """For each size the time at a quarter of the extent over that at all of it."""
    for batch, longest in SIZES:
        plan = _encoder(batch, longest)
        part, whole = [], []
        for _ in range(_ROUNDS):
            whole.append(_seconds(plan, longest))
            part.append(_seconds(plan, longest // _SHARE))
        yield batch, longest, min(part) / min(whole)


def _encoder(batch: int, longest: int) -> ExecutionPlan:
    g = Graph("encoder")
    ids, mask = (g.input(name, (batch, "seq"), "int64") for name in ("ids", "mask"))
    g.output("hidden", build_minilm(ids, mask, bench_minilm_weights(), MINILM))
    plan = g.prepare(dims={"seq": (1, longest)}, extent="seq")
    words = np.random.default_rng(7).integers(0, MINILM.vocabulary, (batch, longest))
    plan(ids=words, mask=np.ones_like(words))
    return plan


def _seconds(plan: ExecutionPlan, extent: int) -> float:
    """One run, after the extent has been taken over; the inputs lie there whole."""
    plan.execute_with_vars(seq=extent)
    start = time.perf_counter()
    plan.execute()
    return time.perf_counter() - start
