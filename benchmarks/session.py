"""What a compiled graph costs beside its plan: runs by name, by slots, and over later.

    measure_session()  -->  PlanRow...

The graph adds one to eight numbers: nearly all of a run is what is measured here. Times that are
compared are taken in turn, round by round, and the best ones count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.plan import PlanRow
from semel import CompiledGraph, Graph, Session

_ROUNDS = 25


def measure_session() -> list[PlanRow]:
    """Every measurement."""
    x = np.ones(8, np.float32)
    one, two = _tiny(1), _tiny(2)
    by_name = {"x0": x}
    one.run(by_name)
    two.run(x, x)
    execute, slots, slots2, run = _best(
        [
            one.plan.execute,
            partial(one.run_slots, [x]),
            partial(two.run_slots, [x, x]),
            partial(one.run, by_name),
        ],
        1000,
    )
    return [
        PlanRow("run_slots over execute, 1 input", 1e6 * (slots - execute), "us", 2),
        PlanRow("run_slots over execute, 2 inputs", 1e6 * (slots2 - execute), "us", 3),
        PlanRow("run with a dict", 1e6 * run, "us", 5),
        *_tickets(by_name),
    ]


def _tickets(inputs: dict[str, np.ndarray]) -> list[PlanRow]:
    """A run that is asked for at once, and one of many that are under way."""
    compiled, many = _tiny(1), 64

    def stream() -> None:
        for _ in compiled.stream([inputs] * many):
            pass

    alone, asked = _best(
        [lambda: compiled.run(inputs), lambda: compiled.commit_no_wait(inputs).result()], 200
    )
    alone_again, streamed = _best([lambda: compiled.run(inputs), stream], 10)
    return [
        PlanRow("commit and result over run, lane asleep", 1e6 * (asked - alone), "us", 100),
        PlanRow(
            "commit and result over run, lane awake",
            1e6 * (streamed / many - alone_again),
            "us",
            10,
        ),
    ]


def _tiny(inputs: int) -> CompiledGraph:
    g = Graph("tiny")
    given = [g.input(f"x{i}", (8,)) for i in range(inputs)]
    g.output("y", sum(given[1:], given[0]) + 1)
    return Session().compile(g, threads=1)


def _best(actions: list[Callable[[], object]], calls: int) -> list[float]:
    """The best time of each, measured in turn."""
    found = []
    for _ in range(_ROUNDS):
        times = []
        for action in actions:
            start = time.perf_counter()
            for _ in range(calls):
                action()
            times.append((time.perf_counter() - start) / calls)
        found.append(times)
    return [min(times) for times in zip(*found[1:], strict=True)]
