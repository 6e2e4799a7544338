"""Snapshots in files: what comes back, where they fit, and what is refused."""

from __future__ import annotations

import pickle
import struct
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.odd_files import ODD_FILES
from tests.plan.forge import forged

import semel
from semel import Graph, Snapshot, StateFileError
from semel.plan.plan import ExecutionPlan

WIDTH = 3
DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
          "uint16", "uint32", "uint64", "bool"]  # fmt: skip


def cached(room: int = 8, *, name: str = "k", cursor: str = "c", axis: int = 0) -> ExecutionPlan:
    g = Graph("cached")
    shape: list[Any] = [WIDTH, WIDTH]
    shape[axis] = "t"
    x = g.input("x", tuple(shape))
    shape[axis] = room
    k, total = g.state(name, tuple(shape)), g.state("total", (WIDTH,))
    g.output("y", k.append(x, axis, cursor=g.cursor(cursor, room)).sum(axis))
    total.replace(total + x.sum(axis))
    return g.prepare(dims={"t": (1, room)})


def new(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, WIDTH), dtype=np.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    plan = cached()
    plan(x=new(5))
    place = tmp_path_factory.mktemp("state") / "five.state"
    plan.states.snapshot().save(place)
    return place.read_bytes()


def load(data: bytes, folder: Path) -> Snapshot:
    place = folder / "some.state"
    place.write_bytes(data)
    return Snapshot.load(place)


# ---------------------------------------------------------------- what comes back


def test_a_session_goes_on_from_a_file(tmp_path: Path) -> None:
    plan = cached()
    plan(x=new(5))
    snapshot = plan.states.snapshot()
    snapshot.save(tmp_path / "a.state")
    loaded = Snapshot.load(tmp_path / "a.state")
    (tmp_path / "a.state").write_bytes(b"")  # what was loaded stays
    assert dict(loaded.cursors) == {"c": 5}
    assert loaded.kinds == snapshot.kinds and loaded.digest == snapshot.digest == plan.states.digest
    for room in (8, 64):  # more room is the same states
        other = cached(room)
        other.states.restore(loaded)
        np.testing.assert_array_equal(other(x=new(2, 1)), plan.clone()(x=new(2, 1)))
    with pytest.raises(ValueError, match="read-only"):
        loaded.arrays["k"][0] = 1
    assert [p.name for p in tmp_path.iterdir()] == ["a.state"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    g = Graph("typed")
    s = g.state("s", (5, 3), dtype)
    g.output("y", s.flip(0))
    plan = g.prepare()
    kind = plan.states["s"].dtype.numpy
    raw = np.random.default_rng(0).integers(0, 256, 15 * kind.itemsize, np.uint8)
    value = (raw > 99 if dtype == "bool" else raw.view(kind)).reshape(5, 3)
    plan.states.write({"s": value})
    plan.states.snapshot().save(tmp_path / "s.state")
    found = Snapshot.load(tmp_path / "s.state").arrays["s"]
    assert found.dtype == kind and found.tobytes() == value.tobytes()


def test_the_same_states_give_the_same_bytes(saved: bytes, tmp_path: Path) -> None:
    load(saved, tmp_path).save(tmp_path / "again.state")
    assert (tmp_path / "again.state").read_bytes() == saved


def test_a_plan_without_states_has_an_empty_snapshot(tmp_path: Path) -> None:
    plan = semel.prepare(semel.Tensor.input("x", (3,)) + 1)
    plan.states.snapshot().save(tmp_path / "no.state")
    plan.states.restore(Snapshot.load(tmp_path / "no.state"))


def test_a_state_without_elements_and_one_number(tmp_path: Path) -> None:
    g = Graph("odd")
    none, one = g.state("none", (0, 3)), g.state("one", ())
    g.output("y", none + one)
    one.replace(one + 1)
    plan = g.prepare()
    plan()
    plan.states.snapshot().save(tmp_path / "odd.state")
    found = Snapshot.load(tmp_path / "odd.state").arrays
    assert found["none"].shape == (0, 3) and found["one"].shape == () and found["one"] == 1


def test_a_pickled_snapshot_knows_its_states() -> None:
    snapshot = cached().states.snapshot()
    assert pickle.loads(pickle.dumps(snapshot)).digest == snapshot.digest


# ---------------------------------------------------------------- where it fits


@pytest.mark.parametrize(
    ("other", "match"),
    [
        ({"name": "z"}, "a snapshot must have the states total, z, got k, total"),
        ({"cursor": "d"}, "a snapshot must have the states"),
        ({"axis": 1}, "state 'k'. must be that of the plan of the snapshot"),
        ({"room": 4}, "must be f32.4,3., or fewer rows of it"),
    ],
)
def test_other_states_are_refused(saved: bytes, tmp_path: Path, other: Any, match: str) -> None:
    plan = cached(**other)
    before = plan.states.snapshot()
    with pytest.raises(semel.StateError, match=match):
        plan.states.restore(load(saved, tmp_path))
    assert plan.states.cursors == dict(before.cursors)
    assert plan.states.digest == before.digest
    if "room" not in other:
        assert plan.states.digest != cached().states.digest


# ---------------------------------------------------------------- files of strangers


@pytest.mark.parametrize("size", [0, 4, 8, 63, 64, 100, 4096, 5000])
def test_a_file_that_is_cut_off(saved: bytes, tmp_path: Path, size: int) -> None:
    with pytest.raises(StateFileError, match=r"cut off|must start with") as caught:
        load(saved[:size], tmp_path)
    assert vars(caught.value)["path"] == str(tmp_path / "some.state")


@pytest.mark.parametrize("at", [0, 9, 30, 61, 70, 200, 4100, -1])
def test_a_damaged_file(saved: bytes, tmp_path: Path, at: int) -> None:
    data = bytearray(saved)
    data[at] ^= 4
    with pytest.raises(StateFileError, match=r"damaged|must start with|format must be 1"):
        load(bytes(data), tmp_path)


def test_another_version(saved: bytes, tmp_path: Path) -> None:
    first = saved[:8] + struct.pack("<I", 2) + saved[12:60]
    data = first + struct.pack("<I", zlib.crc32(first)) + saved[64:]
    with pytest.raises(StateFileError, match=r"format must be 1, got 2.*by another version"):
        load(data, tmp_path)


def test_a_plan_is_no_snapshot_and_a_snapshot_no_plan(saved: bytes, tmp_path: Path) -> None:
    cached().save(tmp_path / "a.plan")
    with pytest.raises(StateFileError, match=r"must start with .* as snapshots do"):
        Snapshot.load(tmp_path / "a.plan")
    (tmp_path / "a.state").write_bytes(saved)
    with pytest.raises(semel.PlanFileError, match=r"must start with .* as plan files do"):
        semel.load_plan(tmp_path / "a.state")


@pytest.mark.parametrize("odd", ODD_FILES)
def test_what_is_no_file(odd: str, tmp_path: Path) -> None:
    ODD_FILES[odd](tmp_path / "odd")
    with pytest.raises(StateFileError, match=r"must be readable|must start with"):
        Snapshot.load(tmp_path / "odd")


def put(*where: Any, to: Any) -> Callable[[Any], None]:
    def change(record: Any) -> None:
        for key in where[:-1]:
            record = record[key]
        record[where[-1]] = to

    return change


NAME, DTYPE, SHAPE, PLACE = range(4)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (put("states", 0, SHAPE, to=[1 << 40, 3]), "must lie beside each other"),
        (put("states", 0, SHAPE, to=[1 << 70, 3]), "must fit 63 bits"),
        (put("states", 0, SHAPE, to=[-1, -3]), "must not be negative"),
        (put("states", 0, SHAPE, to=[1] * 99), "records must be those of a snapshot"),
        (put("states", 0, SHAPE, to=[1 << 61, 1 << 61, 0]), "records must be those of a snapshot"),
        (put("states", 0, SHAPE, to=[5.0, 3]), "must find an int"),
        (put("states", 0, SHAPE, to=[True, 3]), "must find an int"),
        (put("states", 0, SHAPE, to=None), "must find a list"),
        (put("states", 0, PLACE, to=4090), "must end before byte"),
        (put("states", 0, PLACE, to=-64), "must not be negative"),
        (put("states", 0, PLACE, to=None), "must find an int"),
        (put("states", 0, DTYPE, to="object"), "dtype must be one of"),
        (put("states", 0, DTYPE, to="bool"), "a bool must be 0 or 1"),
        (put("states", 0, NAME, to="total"), "a name of its own"),
        (put("states", 0, to=["k"]), "must find a list of 4"),
        (put("states", to={"k": 1}), "must find a list"),
        (put("kinds", 0, 0, to="z"), "the hash of its states must be"),
        (put("kinds", 0, 2, to=[None, 4]), "the hash of its states must be"),
        (put("kinds", 0, 1, to="float31"), "dtype must be one of"),
        (put("kinds", 0, 0, to="total"), "a name of its own"),
        (put("digest", to=0), "the hash of its states must be"),
        (put("cursors", "c", to="5"), "must find an int"),
        (put("cursors", "c", to=1 << 80), "must fit 63 bits"),
        (put("cursors", to=5), "records must be those of a snapshot"),
        (lambda record: record.clear(), "records must be those of a snapshot"),
    ],
)
def test_records_that_say_odd_things(
    saved: bytes, tmp_path: Path, change: Callable[[Any], None], match: str
) -> None:
    with pytest.raises(StateFileError, match=match):
        load(forged(saved, change), tmp_path)


def test_a_small_file_stands_for_no_more_than_it_holds(saved: bytes, tmp_path: Path) -> None:
    def change(record: Any) -> None:
        record["states"] = [[f"s{i}", "uint8", [4096], 0] for i in range(1000)]

    with pytest.raises(StateFileError, match="must lie beside each other"):
        load(forged(saved, change), tmp_path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (put("cursors", "c", to=4), "'k' must have the cursor's rows, got 5 and 4"),
        (put("cursors", "c", to=-1), "'k' must have the cursor's rows, got 5 and -1"),
        (put("states", 0, SHAPE, to=[3, 5]), "or fewer rows of it"),
        (put("states", 0, DTYPE, to="int32"), "dtype must be float32, got int32"),
        (put("cursors", to={}), "a snapshot must have the states"),
    ],
)
def test_numbers_that_no_plan_takes(
    saved: bytes, tmp_path: Path, change: Callable[[Any], None], match: str
) -> None:
    plan = cached()
    plan(x=new(2))
    before = plan.states.snapshot()
    with pytest.raises((semel.StateError, semel.InputError), match=match):
        plan.states.restore(load(forged(saved, change), tmp_path))
    assert plan.states["k"].is_valid and plan.states.cursors == {"c": 2}
    np.testing.assert_array_equal(plan.states.read("k"), before.arrays["k"])


cached_once = cache(cached)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_header(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever stands where a record is expected: an error of ours, or a snapshot."""
    plan, folder = cached_once(), tmp_path_factory.mktemp("any")
    plan.states.reset()
    plan(x=new(5))
    plan.states.snapshot().save(folder / "a")
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
    values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=5), max_leaves=8)

    def change(record: Any) -> None:
        key = data.draw(st.sampled_from(sorted(record)))
        at = data.draw(st.integers(0, 3))
        if isinstance(record[key], list) and at < 2:
            record[key][at] = data.draw(values)
        else:
            record[key] = data.draw(values)

    try:
        snapshot = load(forged((folder / "a").read_bytes(), change), folder)
        plan.states.restore(snapshot)
    except semel.SemelError:
        assert plan.states.cursors == {"c": 5}


# ---------------------------------------------------------------- writing


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    snapshot = cached().states.snapshot()
    with pytest.raises(StateFileError, match="must be writable") as caught:
        snapshot.save(tmp_path / "nowhere" / "a.state")
    assert vars(caught.value)["path"].endswith("a.state")
    with pytest.raises(semel.PlanError, match="path must be a str or a path, got 3"):
        snapshot.save(3)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_snapshot_made_by_hand_has_arrays_and_whole_numbers() -> None:
    """What is wrong is said before it gets near a plan."""
    rows = np.ones((2, 2), np.float32)
    with pytest.raises(semel.PlanError, match=r"cursor must be an int, got 2\.0"):
        Snapshot({"k": rows}, {"cursor": 2.0})  # type: ignore[dict-item]
    with pytest.raises(semel.StateError, match="'k' must be an array, got list"):
        Snapshot({"k": rows.tolist()}, {"cursor": 2})  # type: ignore[dict-item]
