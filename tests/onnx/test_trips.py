"""Loops that count for themselves: how often they run is known before they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import semel

onnx = pytest.importorskip("onnx")
ReferenceEvaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator

Array = np.ndarray[Any, Any]

#: (how the body says that it goes on, the same in Python, what is added to the counter, its start)
COUNTING: list[tuple[str, Callable[..., bool], int, int]] = [
    ("go = Less (next, to)", lambda next, to, **_: next < to, 1, 0),
    ("go = Less (at, to)", lambda at, to, **_: at < to, 1, 0),
    ("go = LessOrEqual (next, to)", lambda next, to, **_: next <= to, 2, 1),
    ("go = Greater (to, next)", lambda next, to, **_: to > next, 3, -2),
    (
        "a = Cast <to: int = 1> (next) \n b = Cast <to: int = 1> (to) \n go = Less (a, b)",
        lambda next, to, **_: next < to,
        1,
        0,
    ),
    ("n = Add (number, one) \n go = Less (n, to)", lambda number, to, **_: number + 1 < to, 5, 0),
    (
        "l = Less (next, to) \n m = And (l, c) \n go = Identity (m)",
        lambda next, to, **_: next < to,
        2,
        0,
    ),
    ("go = Greater (next, one)", lambda next, **_: next > 1, -1, 7),
    ("go = GreaterOrEqual (next, one)", lambda next, **_: next >= 1, -2, 6),
    ("p = Sub (to, one) \n go = Less (next, p)", lambda next, to, **_: next < to - 1, 1, 0),
    ("go = Less (next, width)", lambda next, to, **_: next < max(to, 3), 1, 0),
]
#: (what is before the first iteration, the same in Python)
BEGINS: list[tuple[str, Callable[[int, int], bool]]] = [
    ("first = Less (start, to)", lambda start, to: start < to),
    ("first = Identity (yes)", lambda start, to: True),
    ("first = Identity (no)", lambda start, to: False),
]


def wanted(
    x: Array,
    goes_on: Callable[..., bool],
    step: int,
    at: int,
    begins: Callable[[int, int], bool],
    most: int | None,
) -> dict[str, Array]:
    """What the loop below leaves, said in Python."""
    to, number, state = len(x), 0, x.sum(0)
    rows, ats = [], []
    goes = begins(at, to)
    while goes and (most is None or number < most):
        half = state * np.float32(0.5)
        picked = x[at % to]
        state = half + picked
        rows.append(state - picked)
        ats.append(at)
        goes = goes_on(at=at, next=at + step, to=to, number=number)
        at, number = at + step, number + 1
    return {
        "y": state,
        "i": np.asarray(at),
        "rows": np.array(rows, np.float32).reshape(-1, x.shape[1]),
        "ats": np.array(ats, np.int64),
    }


def counting(goes_on: str, step: int, start: int, begins: str, most: str) -> Any:
    """A loop over the first axis of x, whose size is what it counts to."""
    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 3] x) => (float[3] y, int64 i, float[k, 3] rows, int64[k] ats) {{
            one = Constant <value = int64 {{1}}> ()
            by = Constant <value = int64 {{{step}}}> ()
            start = Constant <value = int64 {{{start}}}> ()
            yes = Constant <value = bool {{1}}> ()
            no = Constant <value = bool {{0}}> ()
            zero = Constant <value = int64[1] {{0}}> ()
            shape = Shape (x)
            to = Gather (shape, zero0)
            width = ReduceMax <keepdims: int = 0> (shape)
            {begins}
            begun = ReduceSum <keepdims: int = 0> (x, zero)
            i, same, y, rows, ats = Loop ({most}, first, start, to, begun)
            <body = each (number, c, at, limit, state) => (go, next, again, after, row, seen) {{
                next = Add (by, at)
                again = Identity (limit)
                half = Mul (state, scale)
                wrapped = Mod (at, limit)
                picked = Gather (x, wrapped)
                after = Add (half, picked)
                row = Sub (after, picked)
                seen = Identity (at)
                {goes_on}
            }}>
        }}
    """
    model = onnx.parser.parse_model(text)
    numbers = {"scale": np.float32(0.5), "zero0": np.int64(0), "seven": np.int64(7)}
    for name, number in numbers.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(number), name))
    return model


def check(compiled: Any, sizes: Sequence[int], **loop: Any) -> None:
    for n in sizes:
        x = np.random.default_rng(n).standard_normal((n, 3), dtype=np.float32)
        limit = {"": None, "seven": 7, "to": n}[loop["most"]]
        found = compiled.run(x)
        for name, want in wanted(x, **{**loop, "most": limit}).items():
            assert found[name].shape == want.shape, name
            np.testing.assert_allclose(found[name], want, rtol=1e-6, atol=1e-6, err_msg=name)
    assert compiled.plan.compile_count == 1


@pytest.mark.parametrize("most", ["", "seven", "to"])
@pytest.mark.parametrize("before, begins", BEGINS)
@pytest.mark.parametrize("text, goes_on, step, start", COUNTING)
def test_a_loop_that_counts(
    text: str, goes_on: Any, step: int, start: int, before: str, begins: Any, most: str
) -> None:
    compiled = semel.load(counting(text, step, start, before, most), threads=1)
    assert not compiled.plan.program.late, "how often it runs is no news of the run"
    check(compiled, (5, 1, 3, 9), goes_on=goes_on, step=step, at=start, begins=begins, most=most)


@pytest.mark.parametrize(
    "text, goes_on, step",
    [
        ("go = Less (to, next)", lambda next, to, **_: to < next, 1),
        ("go = Less (next, to)", lambda next, to, **_: next < to, -1),
        ("m = Mul (next, next) \n go = Less (m, to)", lambda next, to, **_: next**2 < to, 1),
    ],
)
def test_what_does_not_count_to_its_end_is_asked(text: str, goes_on: Any, step: int) -> None:
    """A counter that goes away from its bound, or that is not what is compared."""
    before, begins = BEGINS[1]
    compiled = semel.load(counting(text, step, 0, before, "seven"), threads=1)
    always = step < 0  # and so it counts to `most`
    assert always != bool(compiled.plan.program.late)
    check(compiled, (5, 2, 9), goes_on=goes_on, step=step, at=0, begins=begins, most="seven")


def test_rows_of_a_loop_that_data_ends() -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n] x, float limit) => (float[n] y, float[k, n] rows)
        <bool yes = {1}, float two = {2}>
        {
            y, rows = Loop (, yes, x) <body = each (i, c, s) => (go, next, row) {
                next = Mul (s, two)
                row = Identity (s)
                sum = ReduceSum <keepdims: int = 0> (next)
                go = Less (sum, limit)
            }>
        }
        """
    )
    compiled = semel.load(model, threads=1)
    for n, limit in [(2, 100.0), (3, 1.0), (2, 5.0)]:
        feed = {"x": np.ones(n, np.float32), "limit": np.float32(limit)}
        for want, name in zip(
            ReferenceEvaluator(model).run(None, feed), ("y", "rows"), strict=True
        ):
            np.testing.assert_array_equal(compiled.run(feed)[name], want)
    feed = {"x": np.full(2, 1e-30, np.float32), "limit": np.float32(1e30)}
    assert compiled.run(feed)["rows"].shape == (199, 2), "more rows than there was room for"
    assert compiled.plan.growths > 1 and compiled.plan.compile_count == 1
