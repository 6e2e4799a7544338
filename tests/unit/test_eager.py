"""Values that nobody prepared: what makes a program, whose data it sees, how long it is known."""

from __future__ import annotations

import gc
import operator
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel
from semel import IndexRangeError, RecompileError, Tensor, config
from semel.compiler import eager, pipeline
from semel.ir.opdef import OPS
from semel.ir.outline import take_outline
from semel.plan.direct import LENT_FROM_BYTES, DirectCall
from semel.tensor.elementwise import binary
from semel.tensor.handle import scalar
from semel.tensor.realize import build_graph

DATA = np.random.default_rng(1).standard_normal((8, 5)).astype(np.float32)
LARGE = np.random.default_rng(2).standard_normal((LENT_FROM_BYTES // 16, 8)).astype(np.float32)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every program that is made, in order."""
    made: list[Any] = []
    compile_graph = pipeline.compile_graph

    def counting(*args: Any, **options: Any) -> Any:
        made.append(compile_graph(*args, **options))
        return made[-1]

    for module in (pipeline, eager):
        monkeypatch.setattr(module, "compile_graph", counting)
    return made


# ---------------------------------------------------------------- what makes no new program


def _elements(i: int) -> tuple[float, float]:
    return float(Tensor(DATA)[i % 8, 4]), float(DATA[i % 8, 4])


def _rows(i: int) -> tuple[Any, Any]:
    return Tensor(DATA)[i % 5 : i % 5 + 3, ::-2].tolist(), DATA[i % 5 : i % 5 + 3, ::-2].tolist()


def _scaled(i: int) -> tuple[Any, Any]:
    return (Tensor(DATA) * i - i / 7).max().item(), float((DATA * np.float32(i) - i / 7).max())


def _whole(i: int) -> tuple[Any, Any]:
    numbers = np.arange(6) + i
    return (Tensor(numbers) % (i + 1) // 2).tolist(), (numbers % (i + 1) // 2).tolist()


def _picked(i: int) -> tuple[Any, Any]:
    rows = np.array([i % 8, (3 * i) % 8])
    return Tensor(DATA)[rows].tolist(), DATA[rows].tolist()


def _given(i: int) -> tuple[Any, Any]:
    array = LARGE * np.float32(i)
    return Tensor(array).sum(0).max().item(), pytest.approx(array.sum(0).max(), rel=1e-4)


def _drawn(i: int) -> tuple[Any, Any]:
    return 0 <= semel.rand(4, key=semel.key(i)).max().item() < 1, True


def _triangle(i: int) -> tuple[Any, Any]:
    return Tensor(DATA).tril(i % 9 - 4).tolist(), np.tril(DATA, i % 9 - 4).tolist()


def _assigned(i: int) -> tuple[Any, Any]:
    tensor, array = Tensor(DATA), DATA.copy()
    tensor[i % 8, i % 5] = array[i % 8, i % 5] = i
    return tensor.tolist(), array.tolist()


CASES = [_elements, _rows, _scaled, _whole, _picked, _given, _drawn, _triangle, _assigned]


@pytest.mark.parametrize("case", CASES)
def test_data_indices_and_scalars_make_no_new_program(
    case: Callable[[int], tuple[Any, Any]], programs: list[Any]
) -> None:
    for i in range(10):
        got, want = case(i)
        assert got == want or got == pytest.approx(want, rel=1e-5)
    known = len(programs)
    with semel.no_recompiles():
        for i in range(10, 110):
            got, want = case(i)
            assert got == want or got == pytest.approx(want, rel=1e-5)
    # One for the first numbers, one more for each number that changed at a time of its own.
    assert known <= 4
    assert len(programs) == known


def test_a_thousand_scalars_are_two_programs(programs: list[Any]) -> None:
    a = Tensor(DATA)
    for i in range(1000):
        assert (a * i)[2, 3].item() == DATA[2, 3] * np.float32(i)
    assert len(programs) == 2


def test_numbers_that_are_equal_by_chance_are_no_other_form(programs: list[Any]) -> None:
    a = Tensor(DATA)
    for i, k in ((2, 3), (4, 5), (6, 6), (1, 1), (1, 0)):
        got = ((a * i + k) * 1).numpy()
        np.testing.assert_array_equal(got, DATA * np.float32(i) + np.float32(k))
    assert len(programs) == 2


def test_a_graph_of_another_form_is_compiled(programs: list[Any]) -> None:
    a = Tensor(DATA)
    shared, apart = a * 2, Tensor(DATA.copy())
    for other in (a + 1, a - 1, a * a, a * apart, shared + shared, a.T + 1, a[1:3] + 1, a[1:4] + 1):
        other.numpy()
    assert len(programs) == 8


def test_a_computed_value_is_new_inside_no_recompiles() -> None:
    with semel.no_recompiles(), pytest.raises(RecompileError, match="would be compiled"):
        (Tensor(DATA) + 1).numpy()


def test_programs_of_prepare_keep_their_constants() -> None:
    a = Tensor(DATA)
    y = a @ Tensor(DATA.T.copy()) * 2
    y.numpy()
    plan = y.prepare()
    assert not plan.inputs
    assert plan.compile_count == 1


# ---------------------------------------------------------------- numbers


_FLOATS = (2.0, -0.0, 0.0, np.inf, np.nan, 0.1, -3.0, 1.0)
_ON_INTEGERS = {"and", "or", "xor", "shl", "shr"}


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(
    "op", sorted(op.name for op in OPS.values() if op.is_exact and op.name not in ("where", "pad"))
)
def test_a_number_that_is_given_acts_like_one_that_is_known(op: str, swap: bool) -> None:
    is_integer = op in _ON_INTEGERS
    array = np.arange(-4, 5) if is_integer else np.array([*_FLOATS, 7.5], np.float32)
    numbers = (3, 1, 0, 2) if is_integer else _FLOATS

    def result(number: float) -> np.ndarray[Any, Any]:
        return binary(Tensor(array), op, number, swap=swap).numpy()

    known = []
    for number in numbers:
        eager.forget_eager()  # compiled for this number
        known.append(result(number))
    for number, want in zip((5, *numbers), (None, *known), strict=True):
        got = result(number)
        if want is not None:
            np.testing.assert_array_equal(got, want)
        if want is not None and op not in ("max", "min"):  # which of two zeros is not said
            real = ~np.isnan(want)
            np.testing.assert_array_equal(np.signbit(got[real]), np.signbit(want[real]))


def test_chosen_numbers_may_be_given() -> None:
    a = Tensor(DATA)
    for i in range(4):
        got = (a > 0).where(a, float(i)).numpy()
        np.testing.assert_array_equal(got, np.where(DATA > 0, DATA, np.float32(i)))


def test_an_exponent_is_part_of_the_code(programs: list[Any]) -> None:
    a = Tensor(DATA)
    for exponent in (2, 3, 2, 3):
        np.testing.assert_allclose((a**exponent).numpy(), DATA**exponent, rtol=1e-5)
    assert len(programs) == 2


def test_few_programs_are_known_for_numbers_in_the_code(
    programs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager, "MAX_VARIANTS", 2)
    for exponent in (2, 3, 4, 4, 2):
        (Tensor(DATA) ** exponent).numpy()
    assert len(programs) == 4


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "bfloat16", "float64"])
def test_scalars_of_every_dtype(dtype: str) -> None:
    high = {"bool": 1, "int8": -128, "uint64": 2**64 - 1}.get(dtype, 0.1)
    x = Tensor(np.zeros(3)).cast(dtype)
    for number in (0, high, 1, high):
        full = scalar(number, x.dtype)
        assert x.maximum(full).tolist() == [max(full.item(), x[0].item())] * 3


# ---------------------------------------------------------------- data


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x + 1,
        lambda x: (x * 2).sum(1),
        lambda x: x.softmax(-1),
        lambda x: x.T @ x,
        lambda x: (x.exp() / 3).mean(0)[2:5],
    ],
)
def test_values_are_those_of_a_plan_with_inputs(function: Callable[[Tensor], Tensor]) -> None:
    plan = function(Tensor.input("x", LARGE.shape)).prepare()
    for x in (Tensor(LARGE), Tensor.param("x", LARGE)):
        np.testing.assert_array_equal(function(x).numpy(), plan(x=LARGE))


def test_drawn_numbers_depend_on_the_key_alone() -> None:
    plan = semel.randn(3, 4, key=Tensor.input("key", (2,), "uint32")).prepare()
    for seed in range(5):
        key = semel.key(seed)
        got = semel.randn(3, 4, key=key).numpy()
        np.testing.assert_array_equal(got, plan(key=key.numpy()))


def test_large_data_that_is_the_result_itself() -> None:
    np.testing.assert_array_equal((Tensor(LARGE) * 1).numpy(), LARGE)
    np.testing.assert_array_equal((Tensor(LARGE) * 1).numpy(), LARGE)
    np.testing.assert_array_equal(Tensor(LARGE).T.T.reshape(-1).numpy(), LARGE.reshape(-1))


def test_large_data_is_read_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    a = Tensor(LARGE)
    wanted = (a + 1).numpy()
    seen: list[bool] = []
    call = DirectCall.__call__

    def spy(self: DirectCall, arrays: Any, values: Any) -> Any:
        for view, _ in self._slots:
            view[...] = 0
        seen.append(arrays[0] is a.node.attrs.storage.array)
        return call(self, arrays, values)

    monkeypatch.setattr(DirectCall, "__call__", spy)
    np.testing.assert_array_equal((a + 1).numpy(), wanted)
    assert seen == [True]
    ((known,),) = [k.programs.values() for k in eager._known.values()]
    assert all(not view.any() for view, _ in known.idle[0]._slots)


@pytest.mark.parametrize("array", [DATA, LARGE])
def test_nobody_keeps_the_data(array: np.ndarray[Any, Any]) -> None:
    a = Tensor(array)
    (a + 1).numpy()
    alive = weakref.ref(a.node.attrs.storage)
    del a
    gc.collect()
    assert alive() is None


def test_empty_data() -> None:
    for shape in ((0,), (0, 3), (3, 0, 2)):
        assert (Tensor(np.ones(shape, np.float32)) + 1).numpy().shape == shape
        assert (Tensor(np.ones(shape, np.float32)) * 2).sum().item() == 0


def test_graphs_without_data() -> None:
    for n in (3, 3):
        assert semel.arange(n).tolist() == [0, 1, 2]
        assert (semel.zeros(2, 2) + 1).tolist() == [[1, 1], [1, 1]]


def test_loops_with_and_without_data_of_their_own(programs: list[Any]) -> None:
    w = Tensor(np.full(3, 2, np.float32))

    def run(x: Tensor, inner: Any) -> list[float]:
        states, _ = Tensor.loop(3, [x], lambda _, s: ([s[0] * inner], []))
        return states[0].tolist()

    for k in (1.0, 2.0, 3.0):
        x = Tensor(np.full(3, k, np.float32))
        assert run(x, 2.0) == [8 * k] * 3
        assert run(x, w) == [8 * k] * 3
    assert len(programs) == 4  # the body of the second one holds `w`: it is prepared as ever


# ---------------------------------------------------------------- errors


def test_a_bad_index_names_the_line_of_its_own_graph() -> None:
    def pick(at: Tensor) -> Tensor:
        return at  # told apart from the lines below

    indices = [Tensor(np.array([i])) for i in (1, 8, 9)]
    table = Tensor(DATA)
    first = pick(table[indices[0] + 0])
    first.numpy()
    second = table[indices[1] + 0]
    third = table[indices[2] + 0]
    here = third.node.origins[0].rsplit(":", 1)
    for tensor, index, line in ((second, 8, int(here[1]) - 1), (third, 9, int(here[1]))):
        with pytest.raises(IndexRangeError, match=rf"{index}") as caught:
            tensor.numpy()
        assert f"{here[0]}:{line})" in str(caught.value)
    np.testing.assert_array_equal(table[indices[0] + 0].numpy(), DATA[[1]])


def test_an_index_that_is_known_is_refused_where_it_is_written() -> None:
    with pytest.raises(semel.GraphError, match=r"index must lie in \[-8, 8\) on axis 0, got 8"):
        Tensor(DATA)[8, 4]


# ---------------------------------------------------------------- threads, runs inside runs, forks


def test_threads_have_plans_of_their_own() -> None:
    failures: list[Any] = []
    start = threading.Barrier(4)

    def work(me: int) -> None:
        start.wait()
        for i in range(40):
            array = LARGE[: 64 * (1 + i % 2)] + np.float32(me)
            got = (Tensor(array) * i + me).numpy()
            if not np.array_equal(got, array * np.float32(i) + np.float32(me)):
                failures.append((me, i))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_value_inside_the_run_of_an_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    a = Tensor(DATA)
    (a + 1).numpy()
    inner: list[Any] = []
    call = DirectCall.__call__

    def nested(self: DirectCall, arrays: Any, values: Any) -> Any:
        monkeypatch.undo()
        inner.append((Tensor(DATA * 2) + 1).numpy())
        return call(self, arrays, values)

    monkeypatch.setattr(DirectCall, "__call__", nested)
    np.testing.assert_array_equal((a + 1).numpy(), DATA + 1)
    np.testing.assert_array_equal(inner[0], DATA * 2 + 1)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes() -> None:
    a = Tensor(LARGE)
    wanted = (a + 1).numpy()
    child = os.fork()
    if child == 0:
        same = False
        try:
            same = bool(np.array_equal((a + 1).numpy(), wanted))
        finally:
            os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


# ---------------------------------------------------------------- settings and bounds


def test_settings_are_part_of_what_is_known(programs: list[Any], tmp_path: Path) -> None:
    def value() -> Any:
        return (Tensor(DATA) * 2 + 1).sum(0).tolist()

    wanted = value()
    for changes in (
        {"fusion": False},
        {"verify": True},
        {"arena": False},
        {"threads": 1},
        {"debug": frozenset({"poison"})},
    ):
        with config.override(**changes):
            assert value() == value() == wanted
    assert len(programs) == 6
    assert value() == wanted
    assert len(programs) == 6
    with config.override(dump=tmp_path):
        assert value() == pytest.approx(wanted)
    assert any(tmp_path.iterdir())


def _idle() -> Iterator[DirectCall]:
    for known in eager._known.values():
        for program in known.programs.values():
            yield from program.idle


def test_few_outlines_are_known(monkeypatch: pytest.MonkeyPatch, programs: list[Any]) -> None:
    monkeypatch.setattr(eager, "MAX_OUTLINES", 3)
    for n in (1, 2, 3, 4, 4, 3, 2, 1):
        (Tensor(np.ones(n)) + 1).numpy()
    assert len(eager._known) == 3
    assert len(programs) == 5
    assert eager._idle_bytes == sum(call.size_bytes for call in _idle())


def test_plans_at_rest_hold_few_bytes(monkeypatch: pytest.MonkeyPatch, programs: list[Any]) -> None:
    (Tensor(np.ones(1)) + 1).numpy()
    monkeypatch.setattr(eager, "MAX_IDLE_BYTES", 3 * next(_idle()).size_bytes)
    for n in (2, 3, 4, 1):
        (Tensor(np.ones(n)) + 1).numpy()
    assert len(list(_idle())) == 3
    (Tensor(LARGE) + 1).numpy()
    assert eager._idle_bytes <= eager.MAX_IDLE_BYTES
    assert len(programs) == 5
    eager.forget_eager()
    assert eager._idle_bytes == 0


def test_a_value_of_an_input_is_refused() -> None:
    n = semel.Variable("n", 1, 4)
    for tensor in (Tensor.input("x", (2,)) + 1, Tensor.full((n,), 2.0) * 3, Tensor.arange(n) + 1):
        with pytest.raises(semel.GraphError, match="must not depend on inputs or variables"):
            tensor.numpy()


def test_keys_of_outlines_hold_no_nodes() -> None:
    y = (Tensor(DATA) * 2)[1:3]
    outline = take_outline(y.node)
    assert outline is not None
    assert not any(hasattr(part, "inputs") for part in outline.key)
    assert outline.nodes == list(build_graph(y).nodes)
    assert (outline.numbers[1:], outline.values) == ([1, 0], [2.0, 1, 0])


def test_deep_graphs_have_outlines() -> None:
    y = Tensor(np.zeros(2))
    for _ in range(3000):
        y = operator.neg(y)
    outline = take_outline(y.node)
    assert outline is not None
    assert len(outline.nodes) == 3001
