"""Masks become bands along the diagonal only where they are bands, whatever dtype they count in."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.fuzz.masks import INTEGERS, random_mask

import semel
from semel import Tensor, Variable
from semel.errors import GraphError
from semel.ir.expr import Dim
from semel.ir.graph import Graph
from semel.ops.evaluate import evaluate
from semel.passes import run_passes
from semel.tensor.handle import lift

Array = np.ndarray[Any, np.dtype[Any]]
Mask = Callable[[Any, Any], Any]

DEPTH = 4
LENGTHS = (Variable("s", 1, 12), Variable("t", 1, 12))


def attention(mask: Tensor, rows: Dim, columns: Dim, *, added: bool) -> Tensor:
    """Attention with a mask, as people write it."""
    q = Tensor.input("q", (rows, DEPTH))
    k, v = (Tensor.input(name, (columns, DEPTH)) for name in "kv")
    scores = q @ k.T
    if added:
        hidden = scores + Tensor.where(mask, 0.0, -np.inf)
    else:
        hidden = Tensor.where(mask, scores, -np.inf)
    return hidden.softmax(-1) @ v


def data(rows: int, columns: int) -> dict[str, Array]:
    rng = np.random.default_rng(rows * 100 + columns)
    sizes = {"q": rows, "k": columns, "v": columns}
    return {n: rng.standard_normal((d, DEPTH), dtype=np.float32) for n, d in sizes.items()}


def random_attention(rng: Random) -> tuple[str, Tensor, tuple[int, int], bool]:
    """A label, the tensor, the lengths to run at, whether they are symbolic."""
    while True:
        label, build = random_mask(rng)
        lengths = rng.randint(1, 12), rng.randint(1, 12)
        symbolic = rng.random() < 0.5
        rows, columns = LENGTHS if symbolic else lengths
        try:
            mask = build(rows, columns)
        except GraphError:
            continue  # a number that the dtype does not hold, negative bools
        made = attention(mask, rows, columns, added=rng.random() < 0.5)
        return label, made, lengths, symbolic


def by_reference(graph: Graph, lengths: tuple[int, int]) -> Array:
    """What NumPy gives; a graph without scores (a mask that hides all) does without q and k."""
    names = {node.attrs.name for node in graph.inputs}
    used = {name: array for name, array in data(*lengths).items() if name in names}
    sizes = dict(zip("st", lengths, strict=True))
    return evaluate(graph, used, {v.name: sizes[v.name] for v in graph.variables})[0]


def reference(tensor: Tensor, lengths: tuple[int, int]) -> Array:
    return by_reference(Graph((tensor.node,)), lengths)


@pytest.mark.parametrize("part", range(4))
def test_the_passes_keep_what_random_masks_hide(part: int) -> None:
    for seed in range(40 * part, 40 * part + 40):
        label, tensor, lengths, _ = random_attention(Random(seed))
        want = reference(tensor, lengths)
        got = by_reference(run_passes(Graph((tensor.node,)), verify=True), lengths)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{seed}: {label}")


@pytest.mark.parametrize("seed", range(1000, 1016))
def test_random_masks_run(seed: int) -> None:
    label, tensor, lengths, _ = random_attention(Random(seed))
    want = reference(tensor, lengths)
    for fusion in (True, False):
        got = semel.prepare(tensor, threads=1, fusion=fusion)(**data(*lengths))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=label)


# ---------------------------------------------------------------- particular masks


def positions(rows: Dim, columns: Dim) -> tuple[Tensor, Tensor]:
    return Tensor.arange(rows).reshape(rows, 1), Tensor.arange(columns).reshape(1, columns)


def ends(mask: Mask, rows: Dim = 10, columns: Dim = 12) -> tuple[Dim | None, Dim | None] | None:
    """The band that the passes find in `mask(row, column)`, or None."""
    shown = lift(mask(*positions(rows, columns))).cast("bool").expand(rows, columns)
    nodes = run_passes(Graph((attention(shown, rows, columns, added=False).node,))).nodes
    (node,) = [n for n in nodes if n.op.name == "softmax_matmul"]
    found = node.attrs.left, node.attrs.right
    return None if found == (None, None) else found


NOT_BANDS: dict[str, Mask] = {
    "unsigned distance": lambda r, c: (r - c).cast("uint32") < 4,
    "unsigned positions": lambda r, c: r.cast("uint32") - c.cast("uint32") < 4,
    "unsigned negation": lambda r, c: -r.cast("uint8") + c.cast("uint8") < 4,
    "narrow sum": lambda r, c: r.cast("int8") + 120 >= c.cast("int8"),
    "narrow cast": lambda r, c: (r + 120).cast("int8") >= c.cast("int8"),
    "wide again": lambda r, c: (r + 250).cast("uint8").cast("int64") >= c,
    "not of an integer": lambda r, c: ~(c > r).cast("int32"),
    "flags": lambda r, c: (c <= r).cast("int32") & Tensor.where(c - r >= -3, 2, 0).cast("int32"),
    "fraction": lambda r, c: Tensor.where(c <= r, 0.5, 0.0).cast("int32"),
    "cut flag": lambda r, c: Tensor.where(c <= r, 256, 0).cast("uint8"),
    "float positions": lambda r, c: (r.cast("float16") * 0.5).cast("int64") >= c,
}


@pytest.mark.parametrize("name", NOT_BANDS)
def test_what_wraps_or_is_no_truth_value_is_no_band(name: str) -> None:
    mask = NOT_BANDS[name]
    assert ends(mask) is None
    shown = lift(mask(*positions(10, 12))).cast("bool").expand(10, 12)
    for added in (True, False):
        tensor = attention(shown, 10, 12, added=added)
        want = reference(tensor, (10, 12))
        for fusion in (True, False):
            got = semel.prepare(tensor, threads=1, fusion=fusion)(**data(10, 12))
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_positions_that_fit_their_dtype_are_a_band(dtype: str) -> None:
    assert ends(lambda r, c: c.cast(dtype) <= r.cast(dtype)) == (None, 0)
    assert ends(lambda r, c: c.cast(dtype) < r.cast(dtype)) == (None, -1)
    assert ends(lambda r, c: c.cast(dtype) >= r.cast(dtype)) == (0, None)
    assert ends(lambda r, c: c.cast(dtype) > r.cast(dtype)) == (1, None)
    assert ends(lambda r, c: r.cast(dtype) + 3 > c.cast(dtype)) == (None, 2)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_differences_of_signed_positions_are_a_band(dtype: str) -> None:
    assert ends(lambda r, c: r.cast(dtype) - c.cast(dtype) >= -2) == (None, 2)
    assert ends(lambda r, c: -r.cast(dtype) + c.cast(dtype) >= -2) == (-2, None)


def test_a_position_fits_up_to_the_last_row() -> None:
    """int8 holds 127 and not 128."""
    assert ends(_causal_in("int8"), 128, 5) == (None, 0)
    assert ends(_causal_in("int8"), 129, 5) is None
    assert ends(_causal_in("uint8"), 256, 5) == (None, 0)
    assert ends(_causal_in("uint8"), 257, 5) is None
    assert ends(lambda r, c: -c.cast("int8") >= -r.cast("int8") - 1, 128, 5) == (None, 1)
    assert ends(lambda r, c: -c.cast("int8") >= -r.cast("int8") - 2, 128, 5) is None


def _causal_in(dtype: str) -> Mask:
    return lambda r, c: c.cast(dtype) <= r.cast(dtype)


def test_symbolic_positions_fit_by_their_bounds() -> None:
    short, long, endless = Variable("s", 1, 100), Variable("s", 1, 1000), Variable("s", 1)
    for dtype, rows, found in (
        ("int8", short, (None, 0)),
        ("int8", long, None),
        ("int16", long, (None, 0)),
        ("int32", endless, None),
        ("int64", endless, (None, 0)),
    ):
        assert ends(_causal_in(dtype), rows, 5) == found


def test_truth_values_keep_their_truth_through_casts() -> None:
    assert ends(lambda r, c: (c <= r).cast("int8").cast("bool")) == (None, 0)
    assert ends(lambda r, c: (c <= r).cast("float32") != 0) == (None, 0)
    assert ends(lambda r, c: (c > r).cast("uint8") == 0) == (None, 0)
    assert ends(lambda r, c: Tensor.where(c <= r, 3, 0).cast("float16")) == (None, 0)
    assert ends(lambda r, c: ~((c > r) | (c < r - 2))) == (-2, 0)


def last_keys(rows: Dim, columns: Dim) -> Tensor:
    """The queries are the last rows of the keys: query i sees keys up to i + (T - S)."""
    row, column = positions(rows, columns)
    return column <= row + (columns - rows)


@pytest.mark.parametrize(("s", "t"), [(3, 9), (9, 3), (5, 5), (1, 12), (12, 1)])
def test_a_causal_mask_that_ends_at_the_last_key(s: int, t: int) -> None:
    q, k, v = data(s, t).values()
    shown = np.tri(s, t, t - s, dtype=bool)
    scores = np.where(shown, q @ k.T, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        want = weights / weights.sum(-1, keepdims=True) @ v
    rows, columns = LENGTHS
    for added in (True, False):
        tensor = attention(last_keys(rows, columns), rows, columns, added=added)
        for fusion in (True, False):
            got = semel.prepare(tensor, threads=1, fusion=fusion)(**data(s, t))
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_symbolic_shift_of_either_sign_is_a_band() -> None:
    s, t = LENGTHS
    assert ends(lambda r, c: c <= r + (t - s), s, t) == (None, t - s)
    assert ends(lambda r, c: c.cast("int16") + (s - t) >= r, s, t) == (t - s, None)
    assert ends(lambda r, c: c.cast("uint8") <= r.cast("uint8") + (t - s), s, t) is None


@pytest.mark.parametrize("low", [-9, -5, -4, -3, 0, 2])
@pytest.mark.parametrize("high", [2, 3, 5, 6, 9])
def test_a_constant_is_a_band_with_the_ends_that_hide_something(low: int, high: int) -> None:
    distance = np.arange(7) - np.arange(5)[:, None]
    inside = (distance >= low) & (distance <= high)
    found = ends(lambda r, c: Tensor(inside), 5, 7)
    left, right = low if low > -4 else None, high if high < 6 else None
    assert found == (None if left is None and right is None else (left, right))


def test_a_shift_that_differs_from_batch_to_batch_is_no_band() -> None:
    row, column = positions(5, 6)
    shown = column <= row + Tensor.arange(3).reshape(3, 1, 1)
    s, v = (np.random.default_rng(n).standard_normal((3, 5 + n, 6), np.float32) for n in (0, 1))
    scores, values = Tensor.input("s", s.shape), Tensor.input("v", v.shape)
    tensor = Tensor.where(shown, scores, -np.inf).softmax(-1) @ values
    hidden = np.where([np.tri(5, 6, n, dtype=bool) for n in range(3)], s, -np.inf)
    weights = np.exp(hidden - hidden.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(semel.prepare(tensor, threads=1)(s=s, v=v), want, atol=2e-6)


def test_what_is_used_twice_at_every_step_is_looked_at_once() -> None:
    def seen(r: Tensor, c: Tensor) -> Tensor:
        for _ in range(40):
            r = (r + r) - r
        shown = c <= r
        for n in range(1, 40):
            shown = (shown & (c <= r + n)) & shown
        return shown

    assert ends(seen) == (None, 0)
