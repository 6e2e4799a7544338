"""Sequences in blocks of a pool, against a model of lists."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import Graph
from semel.ir.text import format_graph, parse_graph
from semel.plan.pages import PlanPages
from semel.plan.plan import ExecutionPlan

COUNT, BLOCKS, ROWS, MOST, DEPTH = 4, 9, 3, 5, 4
CAPACITY = MOST * ROWS


def paged(*, with_counts: bool = True, blocks: int = BLOCKS) -> Graph:
    """Attention of new rows over all of their sequence, and the sum of its rows."""
    g = Graph("paged")
    x = g.input("x", (COUNT, "t", 1, DEPTH))
    counts = g.input("counts", (COUNT,), "int64") if with_counts else None
    pages = g.paged("kv", blocks, ROWS, sequences=COUNT, max_blocks=MOST, counts=counts)
    keys, values = pages.pool("k", (1, DEPTH)).append(x), pages.pool("v", (1, DEPTH)).append(x * 2)
    y = semel.scaled_dot_product_attention(
        x.permute(0, 2, 1, 3),
        keys,
        values,
        block_table=pages.table,
        key_lengths=pages.lengths,
        is_causal=True,
    )
    g.output("y", y[:, 0])
    rows = pages.gather(keys)[:, :, 0]
    g.output("sum", semel.where(pages.mask().unsqueeze(-1), rows, 0).sum(1))
    return g


def prepared(**options: Any) -> ExecutionPlan:
    return paged(**options).prepare(dims={"t": (1, 4)})


class Model:
    """The same by NumPy: a list of rows for each sequence."""

    def __init__(self) -> None:
        self.rows = [np.zeros((0, DEPTH), np.float32) for _ in range(COUNT)]

    def run(self, x: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
        found = []
        for s, count in enumerate(counts):
            new = x[s, x.shape[1] - count :, 0]
            self.rows[s] = np.concatenate([self.rows[s], new])
            found.append(_attended(new, self.rows[s]))
        return found

    @property
    def lengths(self) -> list[int]:
        return [len(rows) for rows in self.rows]


def _attended(new: np.ndarray, rows: np.ndarray) -> np.ndarray:
    scores = (new @ rows.T).astype(np.float64) / np.sqrt(DEPTH)
    hidden = np.arange(len(rows)) > len(rows) - len(new) + np.arange(len(new))[:, None]
    weights = np.exp(np.where(hidden, -np.inf, scores))
    return (weights / weights.sum(-1, keepdims=True)) @ (2 * rows.astype(np.float64))


def given_rows(rng: np.random.Generator, t: int, counts: list[int]) -> dict[str, np.ndarray]:
    x = rng.standard_normal((COUNT, t, 1, DEPTH), dtype=np.float32)
    return {"x": x, "counts": np.array(counts)}


def check(plan: ExecutionPlan, model: Model) -> PlanPages:
    """The rows of all sequences, and that blocks are where their lengths want them."""
    held: PlanPages = plan.states.pages("kv")
    assert held.lengths.tolist() == model.lengths
    table, references = held.table, held.references
    for s, rows in enumerate(model.rows):
        np.testing.assert_array_equal(held.read("k", s)[:, 0], rows)
        np.testing.assert_array_equal(held.read("v", s)[:, 0], 2 * rows)
        assert (table[s, : -(-len(rows) // ROWS)] >= 0).all()
    counted = np.bincount(table[table >= 0], minlength=held.num_blocks)
    assert references.tolist() == counted.tolist()
    assert held.num_free == int((counted == 0).sum())
    return held


def run_and_check(plan: ExecutionPlan, model: Model, given: dict[str, np.ndarray]) -> None:
    found, total = plan(**given)
    for s, each in enumerate(model.run(**given)):
        kept = found[s, found.shape[1] - len(each) :]
        np.testing.assert_allclose(kept, each, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(total[s], model.rows[s].sum(0), rtol=1e-4, atol=1e-5)
    check(plan, model)


@pytest.mark.parametrize("seed", range(4))
def test_sequences_grow_fork_are_cut_and_released(seed: int) -> None:
    rng, plan, model = np.random.default_rng(seed), prepared(), Model()
    forks = refused = 0
    for _ in range(60):
        held = check(plan, model)
        s = int(rng.integers(COUNT))
        match int(rng.integers(6)):
            case 0:
                kept = int(rng.integers(model.lengths[s] + 1))
                held.truncate(s, kept)
                model.rows[s] = model.rows[s][:kept]
            case 1 if rng.integers(2):
                held.release(s)
                model.rows[s] = model.rows[s][:0]
            case 2 if any(not n for k, n in enumerate(model.lengths) if k != s):
                free = held.num_free
                to = held.fork(s)
                model.rows[to] = model.rows[s]
                forks += 1
                assert held.num_free >= free
            case _:
                t = int(rng.integers(1, 5))
                counts = [int(rng.integers(t + 1)) for _ in range(COUNT)]
                given = given_rows(rng, t, counts)
                lengths, table = held.lengths, held.table
                try:
                    run_and_check(plan, model, given)
                except semel.StateError:
                    refused += 1
                    assert held.lengths.tolist() == lengths.tolist()
                    assert held.table.tolist() == table.tolist()
    assert forks and refused


def test_a_fork_shares_all_blocks_and_copies_the_last_one_when_one_of_them_grows() -> None:
    rng, plan, model = np.random.default_rng(0), prepared(), Model()
    run_and_check(plan, model, given_rows(rng, 4, [4, 0, 0, 0]))
    run_and_check(plan, model, given_rows(rng, 4, [4, 0, 0, 0]))  # 3 blocks, two rows in the last
    held = check(plan, model)
    free, first = held.num_free, held.table[0]
    assert free == BLOCKS - 3
    for to in (1, 2):
        assert held.fork(0) == to
        model.rows[to] = model.rows[0]
    assert held.num_free == free and held.references[first[:3]].tolist() == [3, 3, 3]
    check(plan, model)
    run_and_check(plan, model, given_rows(rng, 1, [1, 1, 0, 0]))
    table = held.table
    assert len({int(table[s, 2]) for s in range(3)}) == 3  # of two the rows were copied
    assert (table[:3, :2] == first[:2]).all() and held.num_free == free - 2
    run_and_check(plan, model, given_rows(rng, 1, [0, 0, 1, 0]))
    assert held.num_free == free - 2 and held.table[2, 2] == table[2, 2]  # it was the last one
    held.release(0)
    held.release(1)
    assert held.references.sum() == 3


def test_a_full_block_is_shared_for_ever() -> None:
    rng, plan, model = np.random.default_rng(1), prepared(), Model()
    run_and_check(plan, model, given_rows(rng, 3, [3, 0, 0, 0]))
    held = check(plan, model)
    model.rows[2] = model.rows[0]
    assert held.fork(0, 2) == 2
    run_and_check(plan, model, given_rows(rng, 2, [2, 0, 2, 0]))
    assert held.table[0, 0] == held.table[2, 0] and held.table[0, 1] != held.table[2, 1]
    held.truncate(0, 2)  # the shared block is its last one now, and not full
    model.rows[0] = model.rows[0][:2]
    run_and_check(plan, model, given_rows(rng, 1, [1, 0, 0, 0]))
    assert held.table[0, 0] != held.table[2, 0]


@pytest.mark.parametrize("way", ["copied", "written"])
def test_who_is_cut_from_outside_to_full_blocks_grows_into_blocks_of_its_own(way: str) -> None:
    """The table may still say that a block behind the length is shared: nobody may write there."""
    plan, model, rng = prepared(), Model(), np.random.default_rng(0)
    first = given_rows(rng, 4, [4, 0, 0, 0])
    plan(**first), model.run(**first)
    plan.states.pages("kv").fork(0)
    model.rows[:2] = [model.rows[0][:ROWS]] * 2
    if way == "copied":
        source, plan = plan, prepared()
        plan.states.copy_rows_from(source.states, rows=ROWS)
        assert plan.states.pages("kv").num_free == BLOCKS - 1
    else:
        plan.states.write({"kv": [ROWS, ROWS, 0, 0]})
    for counts in ([1, 0, 0, 0], [0, 1, 0, 0]):
        more = given_rows(rng, 1, counts)
        plan(**more), model.run(**more)
    check(plan, model)


def test_without_blocks_a_run_is_refused_before_it_begins() -> None:
    rng, plan, model = np.random.default_rng(2), prepared(blocks=4), Model()
    run_and_check(plan, model, given_rows(rng, 4, [4, 2, 0, 0]))
    run_and_check(plan, model, given_rows(rng, 1, [0, 0, 1, 0]))
    held, attempts = check(plan, model), plan.engine.state.run.attempts
    match = "sequence 3 must have a block for its next row, all 4 are taken"
    with pytest.raises(semel.StateError, match=match) as error:
        plan(**given_rows(rng, 2, [2, 1, 1, 1]))
    assert error.value.__dict__["sequence"] == 3
    assert plan.engine.state.run.attempts == attempts
    check(plan, model)
    run_and_check(plan, model, given_rows(rng, 2, [2, 1, 1, 0]))
    held.release(2)
    model.rows[2] = model.rows[2][:0]
    run_and_check(plan, model, given_rows(rng, 2, [0, 0, 0, 2]))


def test_a_sequence_has_so_many_blocks_at_most() -> None:
    rng, plan, model = np.random.default_rng(3), prepared(blocks=20), Model()
    for _ in range(CAPACITY // 3):
        run_and_check(plan, model, given_rows(rng, 3, [3, 0, 1, 0]))
    with pytest.raises(semel.StateError, match=r"must fit into 15 .* would have 16"):
        plan(**given_rows(rng, 1, [1, 0, 0, 0]))
    check(plan, model)
    with pytest.raises(semel.IndexRangeError, match="number of new rows"):
        plan(**given_rows(rng, 1, [0, 2, 0, 0]))
    check(plan, model)


def test_blocks_are_there_on_every_way_to_a_run() -> None:
    plan, other = prepared(with_counts=False, blocks=20), prepared(with_counts=False, blocks=20)
    x = np.random.default_rng(4).standard_normal((COUNT, 2, 1, DEPTH), dtype=np.float32)
    for _ in range(2):
        plan(x=x)
    plan.execute()
    plan.execute_profiled(limits=False)
    plan.execute_with_vars(t=2)
    bound = x.copy()
    plan.bind_input("x", bound)
    plan.execute()
    for _ in range(6):
        other(x=x)
    assert plan.states.pages("kv").lengths.tolist() == [12] * COUNT
    for s in range(COUNT):
        found, wanted = (p.states.pages("kv").read("k", s) for p in (plan, other))
        np.testing.assert_array_equal(found, wanted)


def test_counts_are_read_where_the_run_reads_them() -> None:
    plan, rng = prepared(), np.random.default_rng(5)
    counts = np.zeros(COUNT, np.int64)
    plan.bind_input("counts", counts)
    held = plan.states.pages("kv")
    for s in range(COUNT):
        counts[:] = np.arange(COUNT) == s
        plan(x=rng.standard_normal((COUNT, 1, 1, DEPTH), dtype=np.float32))
    assert held.lengths.tolist() == [1] * COUNT and held.num_free == BLOCKS - COUNT


def test_blocks_may_be_reserved() -> None:
    plan = prepared()
    held = plan.states.pages("kv")
    held.reserve([4, 0, 1, 0])
    assert (held.table >= 0).sum(1).tolist() == [2, 0, 1, 0]
    held.reserve(1)
    assert (held.table >= 0).sum(1).tolist() == [2, 1, 1, 1]
    table = held.table.tolist()
    with pytest.raises(semel.StateError, match="all 9 are taken"):
        held.reserve([15, 15, 0, 0])
    assert held.table.tolist() == table
    for rows in ([1], [1, 1, 1, -1], -1):
        with pytest.raises(semel.StateError, match="needs rows >= 0 of 4 sequences"):
            held.reserve(rows)
    for rows in (16, (1 << 63) - 1, [0, 0, 0, 1 << 70]):
        with pytest.raises(semel.StateError, match="must fit into 15 of a sequence"):
            held.reserve(rows)
    with pytest.raises(semel.PlanError, match="rows must be an int, got None"):
        held.reserve(None)  # type: ignore[arg-type]
    assert held.table.tolist() == table
    held.reset()
    assert held.num_free == BLOCKS


def test_clones_snapshots_and_files(tmp_path: Path) -> None:
    rng, plan, model = np.random.default_rng(6), prepared(), Model()
    first = given_rows(rng, 3, [3, 1, 2, 0])
    run_and_check(plan, model, first)
    plan.states.pages("kv").fork(1)
    model.rows[3] = model.rows[1]
    moment, clone, beside = plan.states.snapshot(), plan.clone(), pickle.loads(pickle.dumps(model))
    more = given_rows(rng, 2, [0, 2, 1, 2])
    run_and_check(plan, model, more)
    clone.states.pages("kv").release(0)
    beside.rows[0] = beside.rows[0][:0]
    run_and_check(clone, beside, more)
    check(plan, model)
    plan.states.restore(moment)
    model.rows = [
        *model.rows[:1],
        *(rows[: len(rows) - c] for rows, c in zip(model.rows[1:], (2, 1, 2), strict=True)),
    ]
    run_and_check(plan, model, more)
    plan.save(tmp_path / "x.plan")
    for again in (semel.load_plan(tmp_path / "x.plan"), pickle.loads(pickle.dumps(plan))):
        run_and_check(again, Model(), first)
    plan.states.reset("k")
    check(plan, Model())


def test_what_is_no_fork_and_no_table_is_refused() -> None:
    rng, plan, model = np.random.default_rng(7), prepared(), Model()
    run_and_check(plan, model, given_rows(rng, 1, [1, 1, 0, 0]))
    held = check(plan, model)
    for to, match in ((0, "0 is not"), (1, "1 is not"), (9, r"sequence must lie in \[0, 4\)")):
        with pytest.raises(semel.StateError, match=match):
            held.fork(0, to)
    assert {held.fork(0), held.fork(0)} == {2, 3}
    with pytest.raises(semel.StateError, match="an empty sequence to go on in, there is none"):
        held.fork(0)
    for block in (-2, BLOCKS):
        table = held.table
        table[0, 0] = block
        with pytest.raises(semel.StateError, match=r"blocks must lie in \[-1, 8\]"):
            plan.states.write({"kv table": table})
    with pytest.raises(semel.StateError, match=r"lengths must lie in \[0, 15\]"):
        plan.states.write({"kv": np.full(COUNT, 16)})


def test_the_text_of_a_graph_has_pages() -> None:
    text = format_graph(paged().build({"t": (1, 4)}))
    assert 'table="kv table", block_rows=3' in text and 'counts="counts"' in text
    assert format_graph(parse_graph(text)) == text


def refused(g: Graph) -> dict[str, Any]:
    x = g.input("x", (2, "t", 4))
    pages = g.paged("kv", 4, 2, sequences=2)
    pool = pages.pool("k", (4,))

    def twice() -> None:
        pool.append(x)
        pool.append(x)

    return {
        r"rows must be of shape \(2, t, 4\)": lambda: pool.append(x[0]),
        "rows must be float32": lambda: pool.append(x.astype("float64")),
        "appended once in a run": twice,
        "is not one of the pools": lambda: g.state("s", (2, 8, 4)).append(x, sequences=pages),
        "block_rows of 'p' must be at least 1": lambda: g.paged("p", 4, 0, sequences=2),
        "counts must be an input": lambda: g.paged(
            "p", 4, 2, sequences=2, counts=g.input("c", (2,), "int64") * 1
        ),
        "is a state of graph": lambda: g.paged("kv", 4, 2, sequences=2),
    }


@pytest.mark.parametrize("match", list(refused(Graph("g"))))
def test_what_cannot_be_said_is_refused(match: str) -> None:
    g = Graph("g")
    given = refused(g)
    names = set(g.states)
    with pytest.raises(semel.GraphError, match=match):
        given[match]()
    assert "p" not in g.states and "p table" not in g.states and names <= set(g.states)
