"""What graphs declare, in sessions: every entry point is the plan's."""

from __future__ import annotations

import numpy as np
import pytest

import semel
from semel import Graph, Session

COUNT, DEPTH = 3, 4


def kept(*, is_paged: bool) -> Graph:
    """The sums of the rows of each sequence, with noise, by a factor that has a default."""
    g = Graph("kept")
    x, counts = g.input("x", (COUNT, "t", DEPTH)), g.input("counts", (COUNT,), "int64")
    factor, bias = g.input("factor", (), default=2), g.param("bias", shape=(DEPTH,))
    if is_paged:
        pages = g.paged("rows", 12, 2, sequences=COUNT, max_blocks=6, counts=counts)
        rows, mask = pages.gather(pages.pool("k", (DEPTH,)).append(x)), pages.mask()
    else:
        sequences = g.sequences("rows", COUNT, 12, counts=counts)
        rows = g.state("k", (COUNT, 12, DEPTH)).append(x, sequences=sequences)
        mask = sequences.mask()
    g.output("sum", semel.where(mask.unsqueeze(-1), rows, 0).sum(1) * factor + bias)
    g.output("noise", semel.rand(2, key=g.random_key("key", 1)))
    return g


def given(step: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(step).standard_normal((COUNT, 2, DEPTH), dtype=np.float32)
    return {"x": x, "counts": np.array([2, step % 2, 1])}


def expected(steps: int) -> list[np.ndarray]:
    total, found = np.zeros((COUNT, DEPTH), np.float32), []
    for step in range(steps):
        now = given(step)
        for s, count in enumerate(now["counts"]):
            total[s] += now["x"][s, 2 - count :].sum(0)
        found.append(2 * total + 1)
    return found


@pytest.mark.parametrize("is_paged", [False, True])
def test_all_ways_to_a_run_keep_the_same(is_paged: bool) -> None:
    c = Session("cpu").compile(kept(is_paged=is_paged), dims={"t": (1, 4)})
    assert list(c.missing_params()) == ["bias"]
    with pytest.raises(semel.ParamError, match="missing: bias"):
        c.run(given(0))
    c.set_param("bias", np.ones(DEPTH, np.float32))
    wanted = expected(6)
    found = [c.run(given(0))["sum"], c(given(1))["sum"], c.run(given(2), fetch=["sum"])["sum"]]
    tickets = [c.commit_no_wait(given(step)) for step in (3, 4)]
    found += [ticket.result()["sum"] for ticket in tickets]
    fork = c.clone()
    found.append(c.run(given(5), factor=np.float32(2))["sum"])
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    again = fork.run(given(5))
    np.testing.assert_array_equal(again["sum"], found[-1])
    assert fork.plan.states.read("key").tolist() == c.plan.states.read("key").tolist()
    lengths = [c.plan.states.sequences("rows").lengths.tolist() for c in (c, fork)]
    assert lengths == [[12, 3, 6]] * 2
    with pytest.raises(semel.StateError, match="must fit into 12 of a sequence"):
        c.run(given(6))
    assert c.plan.states.sequences("rows").lengths.tolist() == [12, 3, 6]
