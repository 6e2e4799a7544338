"""Files of strangers that say odd things about states: refused, or run without harm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plan.forge import forged

import semel
from semel import Graph
from semel.plan.plan import ExecutionPlan

# Places in the record of a state.
NAME, INDEX, OTHER, AXIS, CURSOR, IS_APPEND, WHY, ROWS = range(8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    g = Graph("two")
    x, k, s = g.input("x", ("t", 4)), g.state("k", (8, 4)), g.state("s", (4,))
    g.output("y", k.append(x).sum(0) + s)
    s.replace(s.flip(0) + 1)
    place = tmp_path_factory.mktemp("state") / "two.plan"
    g.prepare(dims={"t": (1, 4)}).save(place)
    return place.read_bytes()


def load(data: bytes, folder: Path) -> ExecutionPlan:
    place = folder / "forged.plan"
    place.write_bytes(data)
    return semel.load_plan(place, trust=False)


def states(change: Callable[[list[Any]], object]) -> Callable[[Any], None]:
    return lambda record: void(change(record["program"]["states"]))


def variables(change: Callable[[list[Any], Any], object]) -> Callable[[Any], None]:
    def forge(record: Any) -> None:
        held = next(v for v in record["program"]["variables"] if v[3] is not None)
        change(held, record)

    return forge


def void(_: object) -> None:
    """What assignments return."""


def put(record: list[Any], number: int, place: int, value: Any) -> None:
    record[number][place] = value


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (states(lambda s: put(s, 0, INDEX, 99)), "must lie in values that are states"),
        (states(lambda s: put(s, 0, INDEX, -1)), "must lie in values that are states"),
        (states(lambda s: put(s, 0, INDEX, 0)), "must lie in values that are states"),
        (states(lambda s: put(s, 0, INDEX, s[1][INDEX])), "must stay inside axis 0 of"),
        (states(lambda s: put(s, 1, OTHER, s[1][INDEX])), "must have values of its own"),
        (states(lambda s: put(s, 1, OTHER, s[0][INDEX])), "must have values of its own"),
        (states(lambda s: put(s, 1, OTHER, None)), "must be that of a state"),
        (states(lambda s: put(s, 0, NAME, "s")), "a name of its own"),
        (states(lambda s: put(s, 0, CURSOR, "t")), "must be a held variable, got 't'"),
        (states(lambda s: put(s, 0, CURSOR, None)), "an axis a cursor"),
        (states(lambda s: put(s, 0, AXIS, 1)), "must stay inside axis 1"),
        (states(lambda s: put(s, 0, AXIS, 7)), "must stay inside axis 7"),
        (states(lambda s: put(s, 1, IS_APPEND, True)), "appended behind a cursor, it has none"),
        (states(lambda s: s.pop()), "must be that of a state"),
        (states(lambda s: s[0].pop()), "must find a list of 8"),
        (
            states(lambda s: put(s, 0, ROWS, [0, "s", 1, "", "", 0])),
            "must be those of sequences that are",
        ),
        (
            states(lambda s: put(s, 0, ROWS, [1, "none", 1, "", "", 0])),
            "must be those of sequences that",
        ),
        (states(lambda s: put(s, 0, ROWS, [1, "s"])), "must find a list of 6"),
        (variables(lambda v, r: put([v], 0, 1, None)), "must have a first value"),
        (variables(lambda v, r: put([v], 0, 1, 99)), "must be within bounds, got 99"),
        (variables(lambda v, r: put([v], 0, 3, [9999])), "dim must lie in"),
    ],
)
def test_what_does_not_fit_is_refused(
    saved: bytes, tmp_path: Path, change: Callable[[Any], None], match: str
) -> None:
    with pytest.raises(semel.PlanError, match=match):
        load(forged(saved, change), tmp_path)


def test_a_cursor_that_leaps_is_stopped_at_the_next_run(saved: bytes, tmp_path: Path) -> None:
    plan = load(forged(saved, variables(lambda v, r: put([v], 0, 3, 1000))), tmp_path)
    x = np.ones((2, 4), np.float32)
    plan(x=x)
    with pytest.raises(semel.VariableError, match="'cursor' must lie in"):
        plan(x=x)


def test_rows_without_the_guard_stay_inside(saved: bytes, tmp_path: Path) -> None:
    """A kernel checks for itself what nobody has promised."""

    def forge(record: Any) -> None:
        record["program"]["guards"] = []

    plan = load(forged(saved, forge), tmp_path)
    x = np.ones((4, 4), np.float32)
    plan(x=x)
    plan(x=x)
    with pytest.raises(semel.IndexRangeError, match="index into 'b0' must lie in"):
        plan(x=x)
