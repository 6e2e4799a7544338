"""Values that nobody prepared: what makes a program, whose data it sees, how long it is known."""

from __future__ import annotations

import gc
import itertools
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
from semel import GraphError, IndexRangeError, RecompileError, Tensor, config
from semel.compiler import eager, moved, pipeline
from semel.ir.graph import Graph, attr_bodies, make_node
from semel.ir.opdef import OPS
from semel.ir.outline import take_outline
from semel.ir.types import BOOL, TensorType, as_dtype
from semel.ops.bodies import with_data_outside
from semel.ops.elementwise import BINARY, UNARY
from semel.ops.evaluate import evaluate
from semel.ops.filled import filled
from semel.plan.direct import LENT_FROM_BYTES, DirectCall
from semel.tensor.handle import scalar, wrap
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


def _accepts(op: str, arity: int, dtype: str) -> bool:
    try:
        OPS[op].infer(None, *[TensorType((2,), as_dtype(dtype))] * arity)
    except GraphError:
        return False
    return True


_FLOATS = (2.0, -0.0, 0.0, np.inf, np.nan, 0.1, -3.0, 1.0)
_INTEGERS = (3, 1, 0, 2, -1, 7)
_ACCEPTED = [
    (name, dtype)
    for names, dtypes in (
        (UNARY, ("float64",)),
        ((*UNARY, *BINARY), ("float32", "float16", "int32", "bool")),
    )
    for name, dtype in itertools.product(names, dtypes)
    if _accepts(name, 1 if name in UNARY else 2, dtype)
]


def _same_bits(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> None:
    """Equal to the sign of a zero; which NaN it is the processor says."""
    np.testing.assert_array_equal(got, want)
    real = got == got
    np.testing.assert_array_equal(np.signbit(got[real]), np.signbit(want[real]))


def _known_and_given(
    function: Callable[[Any], Tensor], numbers: Any, others: Any, programs: list[Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The value by a program that was made for the numbers, and by one that is given others too."""
    eager.forget_eager()
    known = function(numbers).numpy()
    eager.forget_eager()
    function(others).numpy()
    given = function(numbers).numpy()
    ((known_of,),) = [list(eager._known.values())]
    assert all(p.lifted == known_of.scalars for p in known_of.programs.values() if p.lifted)
    made = len(programs)
    with semel.no_recompiles():
        function(others).numpy()
    assert len(programs) == made
    return known, given


@pytest.mark.parametrize(("op", "dtype"), _ACCEPTED)
def test_a_number_that_is_given_acts_like_one_that_is_known(
    op: str, dtype: str, programs: list[Any]
) -> None:
    kind = as_dtype(dtype)
    numbers: tuple[Any, ...] = _FLOATS if kind.is_float else _INTEGERS
    data = np.array([*numbers, *numbers[::-1]]).astype(kind.numpy)
    arity = 1 if op in UNARY else 2

    def each(numbers: tuple[Any, ...]) -> Iterator[Tensor]:
        for number in numbers:
            one = filled(number, kind, data.shape)
            others = (Tensor(data).node,) * (arity - 1)
            for operands in dict.fromkeys([(one, *others), (*others, one)]):
                yield wrap(make_node(op, operands))

    # An exponent that is another op is code, and is its own program.
    specials = OPS[op].specials
    mixed = tuple(n for n in numbers if n not in specials)
    others = tuple(not n for n in mixed) if kind == BOOL else (9, *mixed[:-1])
    for taken, changed in [(mixed, others), *(((n,), (n,)) for n in specials)]:

        def function(numbers: Any) -> Tensor:
            return Tensor.stack(list(each(numbers)))

        known, given = _known_and_given(function, taken, changed, programs)
        _same_bits(given, known)


_LEFT, _RIGHT = np.random.default_rng(3).random((2, 200, 30), np.float32)

#: A function of two arrays and a number, and numbers: what a sum sees may hang on them.
_FUNCTIONS: dict[str, tuple[Callable[[Any, Any, Any], Any], tuple[Any, ...]]] = {
    "a product times one": (lambda x, y, n: (x * y * n).sum(1), (1.0, 2.0, 3.0)),
    "a product over one": (lambda x, y, n: (x * y / n).sum(1), (1.0, 4.0, 3.0)),
    "a product without zero": (lambda x, y, n: (x * y - n).sum(1), (0.0, 2.0)),
    "a product and no sum": (lambda x, y, n: (x * y + n).sum(1), (-0.0, 2.0)),
    "a product moved": (lambda x, y, n: ((x * y).T * n).sum(0), (1.0, 2.0)),
    "powers": (lambda x, y, n: (x**n).sum(1), (2.0, 5.0, 3.0, 2.0, 1.0)),
    "a power of a product": (lambda x, y, n: ((x * y) ** n).sum(1), (1.0, 5.0, 0.0)),
    "a power that is one": (lambda x, y, n: (x * y * x**n).sum(1), (0.0, 5.0)),
    "an exponent that was cast": (
        lambda x, y, n: (x ** Tensor(np.int32(n)).cast("float32")).sum(1),
        (2, 5, 3),
    ),
    "a base": (lambda x, y, n: (n**x).sum(1), (2.5, 3.0, 1.0)),
    "a chosen product": (
        lambda x, y, n: (Tensor(n) > 2).where(x * y, x).sum(1),
        (3.0, 1.0, 5.0),
    ),
    "a branch": (
        lambda x, y, n: semel.cond(Tensor(n) > 2, lambda: x * y, lambda: x + y).sum(1),
        (3.0, 1.0, 0.0),
    ),
    "a branch in a branch": (
        lambda x, y, n: semel.cond(
            x.sum() > 0,
            lambda: semel.cond(Tensor(n) > 2, lambda: x * y, lambda: x).sum(1),
            lambda: x[:, 0],
        ),
        (3.0, 1.0, 0.0),
    ),
    "no iteration": (
        lambda x, y, n: semel.while_loop(
            lambda s: s[1] > 2, lambda s: (s[0] * 2, s[1] - 1), (x * y, Tensor(n))
        )[0].sum(1),
        (0.0, 1.0, 5.0),
    ),
    "iterations that add nothing": (
        lambda x, y, n: Tensor.loop(3, [x * y], lambda _, h: ([h[0] + n], []))[0][0].sum(1),
        (-0.0, 1.0, 5.0),
    ),
    "a sum in a body": (
        lambda x, y, n: Tensor.loop(
            3, [x], lambda _, h: ([h[0] + (h[0] * y * n).sum(1, keepdims=True) / 9], [])
        )[0][0],
        (1.0, 2.0, 3.0),
    ),
    "a power in a body": (
        lambda x, y, n: Tensor.loop(
            3, [x], lambda _, h: ([h[0] + (h[0] ** n).sum(1, keepdims=True) / 900], [])
        )[0][0],
        (2.0, 3.0, 1.0),
    ),
    "a scale of scores": (
        lambda x, y, n: (x @ y.T * n).softmax(-1) @ y,
        (1.0, 3.0, 0.5),
    ),
    "a number alone": (lambda x, y, n: x @ y.T * Tensor(n).exp(), (1.0, 0.5, 3.0)),
    "an added number": (lambda x, y, n: (x * 0 + 1 + n).sum(1), (0.1, 0.2)),
    "stacked numbers": (lambda x, y, n: Tensor.stack([Tensor(n), Tensor(n + 1)]).exp(), (0.1, 2.0)),
    "a cast": (
        lambda x, y, n: (x * 9).cast("int32") + Tensor(n).cast("int32"),
        (2.5, -7.5, np.inf),
    ),
    "a pattern of bits": (lambda x, y, n: Tensor(np.float32(n)).bitcast("int32"), (2.5, -0.0)),
    "an index": (lambda x, y, n: x[Tensor(np.int64(n))], (3, -1, 0)),
    "a taken row": (lambda x, y, n: semel.take(x, Tensor(n), axis=0), (3, -1, 0)),
    "a place of a pad": (lambda x, y, n: x.pad(((1, 1), (0, 0)), n), (3.0, -0.0)),
}


@pytest.mark.parametrize("case", _FUNCTIONS)
def test_what_is_known_does_not_change_a_bit(case: str, programs: list[Any]) -> None:
    function, numbers = _FUNCTIONS[case]
    x, y = Tensor(_LEFT), Tensor(_RIGHT)
    known = []
    for number in numbers:
        eager.forget_eager()
        known.append(function(x, y, number).numpy())
    eager.forget_eager()
    for number in reversed(numbers):
        function(x, y, number).numpy()
    made = len(programs)
    with semel.no_recompiles():
        for number, want in zip(numbers, known, strict=True):
            _same_bits(function(x, y, number).numpy(), want)
    assert len(programs) == made


def test_chosen_numbers_may_be_given() -> None:
    a = Tensor(DATA)
    for i in range(4):
        got = (a > 0).where(a, float(i)).numpy()
        np.testing.assert_array_equal(got, np.where(DATA > 0, DATA, np.float32(i)))


def test_an_exponent_that_is_another_op_is_part_of_the_code(programs: list[Any]) -> None:
    a = Tensor(DATA)
    for exponent in (2, 3, 2, 4, 5, 2, 6):
        np.testing.assert_allclose((a**exponent).numpy(), DATA**exponent, rtol=1e-5)
    assert len(programs) == 3  # of 2, of 3, and of all others


def test_few_programs_are_known_for_numbers_in_the_code(
    programs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager, "MAX_VARIANTS", 2)
    for exponent in (0, 1, 2, 2, 0):
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


def test_what_bodies_hold_makes_no_new_program(programs: list[Any]) -> None:
    def run(x: Tensor, inner: Any) -> list[float]:
        states, _ = Tensor.loop(3, [x], lambda _, s: ([s[0] * inner], []))
        return states[0].tolist()

    for k in (1.0, 2.0, 3.0, 4.0):
        x = Tensor(np.full(3, k, np.float32))
        assert run(x, k) == [k**4] * 3
        assert run(x, Tensor(np.full(3, k, np.float32))) == [k**4] * 3
    assert len(programs) == 3  # one of a number that is known, of one that is given, of an array


def _captured(i: int) -> tuple[Any, Any]:
    d = np.array([i, 1, 2], np.float32)
    start = Tensor(np.ones(3, np.float32))
    got = semel.while_loop(lambda s: s.sum() < 100, lambda s: s * 2 + Tensor(d), start)
    want = np.ones(3, np.float32)
    while want.sum() < 100:
        want = want * 2 + d
    return got.tolist(), want.tolist()


def _branched(i: int) -> tuple[Any, Any]:
    d = np.array([i, 1, 2], np.float32)
    held = Tensor(d)
    got = semel.cond(held.sum() > 5 + i % 7, lambda: held + i, lambda: held * 2)
    return got.tolist(), (d + i if d.sum() > 5 + i % 7 else d * 2).tolist()


def _nested(i: int) -> tuple[Any, Any]:
    a, d = DATA[:4, :3], np.full(3, i + 0.5, np.float32)
    table, held = Tensor(a), Tensor(d)

    def inner(h: Tensor, k: Any) -> Tensor:
        chosen = semel.cond(h.sum() > 3 + i, lambda: held, lambda: table[0])
        return h + table[k] * held + chosen.sum()

    def outer(k: Any, h: Any) -> Any:
        states, _ = Tensor.loop(2, h, lambda _, g: ([inner(g[0], k)], []))
        return states, [states[0] * held]

    states, stacked = Tensor.loop(4, [held], outer)
    want, rows = d.copy(), []
    for k in range(4):
        for _ in range(2):
            want = want + a[k] * d + (d if want.sum() > 3 + i else a[0]).sum()
        rows.append(want * d)
    return [*states[0].tolist(), *stacked[0].reshape(-1).tolist()], [*want, *np.ravel(rows)]


def _started(i: int) -> tuple[Any, Any]:
    got = semel.while_loop(lambda s: s < 100.0 + i, lambda s: s * 2 + i, Tensor(1.0 + i))
    want = np.float32(1 + i)
    while want < 100 + i:
        want = want * np.float32(2) + np.float32(i)
    return got.item(), want


def _held_twice(i: int) -> tuple[Any, Any]:
    d = Tensor(np.full(3, i, np.float32))
    got = semel.while_loop(lambda s: s[0].sum() < 9, lambda s: (s[0] + d + 1, s[1] * d), (d, d))
    want = [np.full(3, i, np.float32)] * 2
    while want[0].sum() < 9:
        want = [want[0] + i + 1, want[1] * i]
    return [g.tolist() for g in got], [w.tolist() for w in want]


@pytest.mark.parametrize("case", [_captured, _branched, _nested, _started, _held_twice])
def test_loops_and_branches_over_new_data_make_no_new_program(
    case: Callable[[int], tuple[Any, Any]], programs: list[Any]
) -> None:
    def check(i: int) -> None:
        got, want = case(i)
        np.testing.assert_allclose(got, want, rtol=1e-5)

    for i in range(4):
        check(i)
    known = len(programs)
    with semel.no_recompiles():
        for i in range(4, 40):
            check(i)
    assert len(programs) == known <= 6


def test_data_outside_of_bodies_is_the_same_loop() -> None:
    d = Tensor(DATA)

    def body(k: Any, h: Any) -> Any:
        chosen = semel.cond(h[0].sum() > 3, lambda: d[k] * 2, lambda: d[0])
        return [h[0] + chosen], [h[0] * d[k]]

    states, stacked = Tensor.loop(6, [d[1]], body)
    for result in (states[0], stacked[0]):
        opened = with_data_outside(result.node)
        assert all(not list(_data_inside(body)) for body in attr_bodies(opened.attrs))
        assert len(opened.inputs) > len(result.node.inputs)
        assert with_data_outside(opened) is opened
        want, got = (evaluate(Graph((node,)), {}) for node in (result.node, opened))
        np.testing.assert_array_equal(got, want)
        np.testing.assert_allclose(result.numpy(), want[0], rtol=1e-6)


def _data_inside(body: Graph) -> Iterator[Any]:
    for node in body.nodes:
        if node.op.kind == "leaf" and node.op.name != "input":
            yield node
        for inner in attr_bodies(node.attrs):
            yield from _data_inside(inner)


# ---------------------------------------------------------------- what is only moved

_HALVES = np.arange(40, dtype=np.uint16).reshape(8, 5).view(np.float16)
_ODD = np.array([0x7F800001, 0xFFC12345, 0x80000000, 1, 0x3F800000], np.uint32).view(np.float32)

#: A form for each number, and NumPy's answer.
_MOVES: dict[str, Callable[[int], tuple[Tensor, Any]]] = {
    "a mask that is an array": lambda i: (Tensor(DATA)[np.arange(8) < i], DATA[:i]),
    "a mask that is a tensor": lambda i: (Tensor(DATA)[Tensor(np.arange(8) < i)], DATA[:i]),
    "a mask of elements": lambda i: (Tensor(DATA)[i > DATA * 4], DATA[i > DATA * 4]),
    "two indices": lambda i: (Tensor(DATA)[[1] * i, [-1] * i], DATA[[1] * i, [-1] * i]),
    "an index and a slice": lambda i: (Tensor(DATA)[:, [2] * i, None], DATA[:, [2] * i, None]),
    "a start": lambda i: (Tensor(DATA)[i:], DATA[i:]),
    "a stop": lambda i: (Tensor(DATA)[:i], DATA[:i]),
    "a step": lambda i: (Tensor(DATA)[::-i], DATA[::-i]),
    "a roll": lambda i: (semel.roll(Tensor(DATA), i, 0), np.roll(DATA, i, 0)),
    "a pad": lambda i: (
        semel.pad(Tensor(DATA), ((i, 0), (0, i))),
        np.pad(DATA, ((i, 0), (0, i))),
    ),
    "numbers": lambda i: (semel.arange(i), np.arange(i)),
    "zeros": lambda i: (semel.zeros((i, 2)), np.zeros((i, 2), np.float32)),
    "half": lambda i: (Tensor(_HALVES).T[1:, i:], _HALVES.T[1:, i:]),
    "parts": lambda i: (semel.concat([Tensor(DATA)[:i], Tensor(DATA)]), np.r_[DATA[:i], DATA]),
    "copies": lambda i: (semel.tile(Tensor(DATA), (i, 2)), np.tile(DATA, (i, 2))),
    "along": lambda i: (
        semel.take_along_axis(Tensor(DATA), Tensor(np.full((8, i), i % 5)), 1),
        np.take_along_axis(DATA, np.full((8, i), i % 5), 1),
    ),
    "chosen": lambda i: (
        semel.where(Tensor(DATA[:i] > 0), Tensor(DATA[:i]), 0.0),
        np.where(DATA[:i] > 0, DATA[:i], np.float32(0)),
    ),
    "not a number": lambda i: (Tensor(_ODD)[[0, 1, 2, 3, 4] * i], np.tile(_ODD, i)),
}


@pytest.mark.parametrize("case", _MOVES)
def test_new_sizes_of_what_is_only_moved_are_no_compile(
    case: str, programs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(1, 8):
        with semel.no_recompiles():
            tensor, want = _MOVES[case](i)
            got = tensor.numpy()
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert got.tobytes() == want.tobytes()
    assert not programs
    monkeypatch.setattr(moved, "MAX_MOVED_BYTES", -1)
    compiled = _MOVES[case](3)[0].numpy()
    assert compiled.tobytes() == _MOVES[case](3)[1].tobytes()
    assert len(programs) == 1


def test_what_was_moved_is_nobodys_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    array = DATA.copy()
    with semel.no_recompiles():
        for x in (Tensor(array).reshape(5, 8), Tensor(array)[:], Tensor.param("p", array)[0]):
            assert not np.shares_memory(x.numpy(), x.numpy())
            value = np.asarray(x, copy=False)
            assert not np.shares_memory(value, array)
            assert value.flags.c_contiguous


def test_what_is_computed_is_compiled(programs: list[Any]) -> None:
    a = Tensor(DATA)
    places = Tensor(np.array([0.5, 1.5], np.float32))
    forms: list[Callable[[], Tensor]] = [
        lambda: a + 1,
        lambda: a[:, 0] * 2,
        lambda: a.sum(0),
        lambda: Tensor(np.arange(3)) + 1,
        lambda: a[(places * 2).cast("int64")],
        lambda: a[Tensor(np.array([1, 2]))] + Tensor(np.array([1, 2]))[:, None],
        lambda: a[a > 0],
        lambda: Tensor(np.zeros(moved.MAX_MOVED_BYTES, np.int8))[1:].tile(2),
    ]
    for k, form in enumerate(forms):
        with semel.no_recompiles(), pytest.raises(RecompileError, match="would be compiled"):
            form().numpy()
        form().numpy()
        assert len(programs) == k + 1


def test_a_bad_place_of_what_is_moved_names_its_line() -> None:
    table, index = Tensor(DATA), Tensor.param("index", np.array([3, 8]))
    picked = table[index]
    with pytest.raises(IndexRangeError, match=r"8") as caught:
        picked.numpy()
    assert picked.node.origins[0] in str(caught.value)


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
