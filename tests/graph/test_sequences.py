"""Several sequences in one state, each with a length of its own, against a model of lists."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import semel
from semel import Graph
from semel.ir.text import format_graph, parse_graph
from semel.ops.stateful import StateReference
from semel.plan.plan import ExecutionPlan

COUNT, ROOM, HEADS, DEPTH = 3, 9, 2, 4


def chats(*, with_counts: bool = True, axis: int = 1) -> Graph:
    """Attention of new rows over all of their sequence; rows lie along axis 1 or 2 of the state."""
    g = Graph("chats")
    x = g.input("x", (COUNT, "t", HEADS, DEPTH))
    counts = g.input("counts", (COUNT,), "int64") if with_counts else None
    s = g.sequences("chats", COUNT, ROOM, counts=counts)
    if axis == 1:
        k, v = (g.state(n, (COUNT, ROOM, HEADS, DEPTH)) for n in "kv")
        keys, values = k.append(x, sequences=s), v.append(x * 2, sequences=s)
        keys, values = keys.permute(0, 2, 1, 3), values.permute(0, 2, 1, 3)
    else:
        k, v = (g.state(n, (COUNT, HEADS, ROOM, DEPTH)) for n in "kv")
        turned = x.permute(0, 2, 1, 3)
        keys = k.append(turned, axis=2, sequences=s)
        values = v.append(turned * 2, axis=2, sequences=s)
    y = semel.scaled_dot_product_attention(
        x.permute(0, 2, 1, 3), keys, values, key_lengths=s.lengths, is_causal=True
    )
    g.output("y", y.permute(0, 2, 1, 3))
    return g


class Model:
    """The same by NumPy: a list of rows for each sequence."""

    def __init__(self) -> None:
        self.rows = [np.zeros((0, HEADS, DEPTH), np.float32) for _ in range(COUNT)]

    def run(self, x: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
        """What the last `counts` rows of each sequence see."""
        found = []
        for b, count in enumerate(counts):
            new = x[b, x.shape[1] - count :]
            self.rows[b] = np.concatenate([self.rows[b], new])
            found.append(attended(new, self.rows[b]))
        return found

    @property
    def lengths(self) -> list[int]:
        return [len(rows) for rows in self.rows]


def attended(new: np.ndarray, rows: np.ndarray) -> np.ndarray:
    scores = np.einsum("shd,thd->hst", new, rows).astype(np.float64) / np.sqrt(DEPTH)
    first = len(rows) - len(new)
    hidden = np.arange(len(rows)) > first + np.arange(len(new))[:, None]
    weights = np.exp(np.where(hidden, -np.inf, scores))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hst,thd->shd", weights, 2 * rows.astype(np.float64))


def drawn(rng: np.random.Generator, lengths: list[int], most: int = 4) -> dict[str, np.ndarray]:
    t = int(rng.integers(1, most + 1))
    counts = np.array([rng.integers(0, min(t, ROOM - n) + 1) for n in lengths])
    return {"x": rng.standard_normal((COUNT, t, HEADS, DEPTH), dtype=np.float32), "counts": counts}


def prepared(**options: int) -> ExecutionPlan:
    return chats(**options).prepare(dims={"t": (1, 4)})  # type: ignore[arg-type]


def check(plan: ExecutionPlan, model: Model) -> None:
    found = plan.states.sequences("chats")
    assert found.lengths.tolist() == model.lengths
    for b, rows in enumerate(model.rows):
        np.testing.assert_array_equal(found.read("k", b), rows)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("axis", [1, 2])
def test_each_sequence_sees_its_own_rows(threads: int, axis: int) -> None:
    plan = chats(axis=axis).prepare(dims={"t": (1, 4)}, threads=threads)
    reference = StateReference(chats(axis=axis).build({"t": (1, 4)}))
    rng = np.random.default_rng(0)
    for _ in range(3):
        model = Model()
        plan.states.reset()
        reference.reset()
        for _ in range(6):
            given = drawn(rng, model.lengths)
            wanted = model.run(**given)
            found = plan(**given)
            np.testing.assert_allclose(found, reference.run(given)[0], rtol=1e-4, atol=1e-5)
            for b, each in enumerate(wanted):
                kept = found[b, found.shape[1] - len(each) :]
                np.testing.assert_allclose(kept, each, rtol=1e-4, atol=1e-5)
            assert plan.states.read("chats").tolist() == model.lengths
            assert reference.states["chats"].tolist() == model.lengths


def test_a_sequence_among_others_has_the_bits_that_it_has_alone() -> None:
    plan, rng = prepared(), np.random.default_rng(1)
    steps = [rng.standard_normal((COUNT, 1, HEADS, DEPTH), dtype=np.float32) for _ in range(6)]
    together = [plan(x=x, counts=np.ones(COUNT, np.int64)) for x in steps]
    for b in range(COUNT):
        alone = prepared()
        counts = np.zeros(COUNT, np.int64)
        counts[b] = 1
        for x, all_of_them in zip(steps, together, strict=True):
            np.testing.assert_array_equal(alone(x=x, counts=counts)[b], all_of_them[b])


def test_nothing_is_as_large_as_a_state() -> None:
    plan = prepared()
    assert [op.name for op in plan.prepared_kernels].count("update_rows") == 2
    assert plan.states["k"].how == "in place" and plan.states["chats"].how == "double-buffered"
    g, room = Graph("large"), 1 << 16
    x, k = g.input("x", (2, 1, 1, 64)), g.state("k", (2, room, 1, 64))
    s = g.sequences("s", 2, room)
    keys = k.append(x, sequences=s).permute(0, 2, 1, 3)
    g.output("y", semel.scaled_dot_product_attention(x, keys, keys, key_lengths=s.lengths))
    assert g.prepare().memory.arena_bytes < 1 << 16


def test_a_sequence_without_room_is_refused_and_all_are_as_they_were() -> None:
    plan, model, rng = prepared(), Model(), np.random.default_rng(2)
    for _ in range(2):
        given = {"x": rng.standard_normal((COUNT, 4, HEADS, DEPTH), dtype=np.float32)}
        given["counts"] = np.array([4, 1, 2])
        model.run(**given)
        plan(**given)
    assert model.lengths == [8, 2, 4]
    before = plan.states.snapshot()
    with pytest.raises(semel.StateError, match=r"sequences 'chats'\] rows must fit into 9") as e:
        plan(**(given | {"counts": np.array([2, 4, 4])}))
    assert (e.value.__dict__["rows"], e.value.__dict__["capacity"]) == (10, 9)
    for counts in ([5, 0, 0], [0, -1, 0]):
        with pytest.raises(semel.IndexRangeError, match="number of new rows must lie in"):
            plan(**(given | {"counts": np.array(counts)}))
    check(plan, model)
    assert all(info.is_valid for info in plan.states.values())
    assert plan.states.snapshot().arrays["chats"].tolist() == before.arrays["chats"].tolist()
    given["counts"] = np.array([1, 4, 4])
    found = plan(**given)
    for b, each in enumerate(model.run(**given)):
        np.testing.assert_allclose(found[b, 4 - len(each) :], each, rtol=1e-4, atol=1e-5)
    check(plan, model)


def test_sequences_are_cut_and_begun_anew_from_outside() -> None:
    plan, model, rng = prepared(), Model(), np.random.default_rng(3)
    for round_ in range(12):
        given = drawn(rng, model.lengths)
        model.run(**given)
        plan(**given)
        b = int(rng.integers(COUNT))
        sequences = plan.states.sequences("chats")
        if round_ % 3 == 2:
            model.rows[b] = model.rows[b][:0]
            sequences.reset(b)
        else:
            kept = int(rng.integers(model.lengths[b] + 1))
            model.rows[b] = model.rows[b][:kept]
            sequences.truncate(b, kept)
        check(plan, model)
    with pytest.raises(semel.StateError, match=r"rows of sequence 1 must lie in \[0,"):
        sequences.truncate(1, ROOM + 1)
    with pytest.raises(semel.StateError, match=r"sequence must lie in \[0, 3\), got 3"):
        sequences.read("k", 3)
    with pytest.raises(semel.StateError, match="have no state 'x'; known: k, v"):
        sequences.read("x", 0)
    with pytest.raises(semel.StateError, match="no sequences 'x'; known: chats"):
        plan.states.sequences("x")
    with pytest.raises(semel.StateError, match="do not lie in blocks"):
        plan.states.pages("chats")
    assert len(sequences) == COUNT and sequences.capacity == ROOM
    assert sequences.states == ("k", "v")
    sequences.reset()
    assert sequences.lengths.tolist() == [0, 0, 0]


def test_states_of_sequences_are_reset_together_and_lengths_fit() -> None:
    plan = prepared(with_counts=False)
    x = np.ones((COUNT, 3, HEADS, DEPTH), np.float32)
    plan(x=x)
    for lengths in ([0, -1, 0], [0, ROOM + 1, 0]):
        with pytest.raises(semel.StateError, match=r"lengths must lie in \[0, 9\]"):
            plan.states.write({"chats": np.array(lengths)})
    assert plan.states.read("chats").tolist() == [3, 3, 3]
    plan.states.reset("k")
    assert plan.states.read("chats").tolist() == [0, 0, 0]
    assert not plan.states.read("v").any()


def test_clones_snapshots_and_files(tmp_path: Path) -> None:
    plan, model, rng = prepared(), Model(), np.random.default_rng(4)
    given = drawn(rng, model.lengths)
    first = plan(**given)
    moment, clone = plan.states.snapshot(), plan.clone()
    more = drawn(rng, [4] * COUNT)
    second = plan(**more)
    np.testing.assert_array_equal(clone(**more), second)
    plan.states.restore(moment)
    np.testing.assert_array_equal(plan(**more), second)
    plan.save(tmp_path / "x.plan")
    for again in (semel.load_plan(tmp_path / "x.plan"), pickle.loads(pickle.dumps(plan))):
        np.testing.assert_array_equal(again(**given), first)
        assert again.states.sequences("chats").lengths.tolist() == given["counts"].tolist()


def test_lengths_and_masks_are_tensors_like_others() -> None:
    g = Graph("g")
    x, k = g.input("x", (2, "t")), g.state("k", (2, 5))
    s = g.sequences("s", 2, 5)
    g.output("before", s.before * 1)
    with pytest.raises(semel.GraphError, match="have these lengths when rows are appended"):
        s.mask()
    rows = k.append(x, sequences=s)
    g.output("total", semel.where(s.mask(), rows, 0).sum(1))
    plan = g.prepare(dims={"t": (1, 5)})
    plan.states.write({"k": np.full((2, 5), 100, np.float32)})
    for count in (2, 3):
        before, total = plan(x=np.ones((2, count), np.float32))
    assert before.tolist() == [2, 2] and total.tolist() == [5, 5]


def test_rows_of_a_state_are_appended_to_itself() -> None:
    first = np.arange(12, dtype=np.float32).reshape(2, 6)
    g = Graph("itself")
    s, k = g.sequences("s", 2, 6), g.state("k", (2, 6), init=first)
    g.output("y", k.append(k.flip(1)[:, :2], sequences=s) * 1)
    plan = g.prepare()
    for _ in range(2):
        wanted = first.copy()
        length = int(plan.states.read("s")[0])
        wanted[:, length : length + 2] = first[:, ::-1][:, :2]
        assert plan().tolist() == wanted.tolist()
        first = wanted
    g = Graph("all of itself")
    s, k = g.sequences("s", 2, 6), g.state("k", (2, 6), init=first)
    g.output("y", k.append(k, sequences=s) * 1)
    assert g.prepare()().tolist() == first.tolist()


def test_the_text_of_a_graph_has_sequences() -> None:
    built = chats().build({"t": (1, 4)})
    text = format_graph(built)
    assert 'state "chats" {is_exchanged=True} : i64[3]' in text
    assert "update_rows %" in text and 'lengths="chats"' in text
    assert format_graph(parse_graph(text)) == text


def refused(g: Graph) -> dict[str, object]:
    x, k = g.input("x", (2, "t")), g.state("k", (2, 5))
    s = g.sequences("s", 2, 5)
    other = Graph("other").sequences("s", 2, 5)

    def twice() -> None:
        k.append(x, sequences=s)
        k.append(x, sequences=s)

    def unlike() -> None:
        k.append(x, sequences=s)
        g.state("v", (2, 5)).append(x[:, :1], sequences=s)

    def updated() -> None:
        k.append(x, sequences=s)
        k.update(x[:, :1], (0, 0))

    return {
        "must be made by graph.sequences": lambda: k.append(x, sequences="s"),  # type: ignore[arg-type]
        "sequences must be made in it": lambda: k.append(x, sequences=other),
        "appended once in a run": twice,
        "must grow by as many rows in all states": unlike,
        "has rows of sequences, appended once": updated,
        "without a cursor": lambda: k.append(x, sequences=s, cursor=g.cursor("c", 5)),
        "must have the 2 sequences": lambda: g.state("w", (2, 6)).append(x, sequences=s),
        "counts must be an integer for each": lambda: g.sequences("z", 2, 5, counts=x),
        "is a state of graph": lambda: g.sequences("s", 2, 5),
        "capacity of 'z' must be at least 1, got -5": lambda: g.sequences("z", 2, -5),
        "count of 'z' must be at least 1, got 0": lambda: g.sequences("z", 0, 5),
    }


@pytest.mark.parametrize("match", list(refused(Graph("g"))))
def test_what_cannot_be_said_is_refused(match: str) -> None:
    with pytest.raises(semel.GraphError, match=match):
        refused(Graph("g"))[match]()  # type: ignore[operator]
