"""Attention as exporters and people write it out becomes one streamed op, with the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.ops.attention_reference import np_attention

from semel import Tensor, Variable
from semel.ir.graph import Graph, Node
from semel.ir.types import as_dtype
from semel.ops.attrs import AttentionAttrs
from semel.passes import run_passes

Array = np.ndarray[Any, np.dtype[Any]]

S, T, D = 70, 70, 16
LOWEST = float(np.finfo(np.float32).min)


def data(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def found_in(tensor: Tensor) -> Node:
    """The one streamed attention that the passes make of the graph."""
    nodes = run_passes(Graph((tensor.node,)), verify=True).nodes
    assert not [n for n in nodes if n.op.name in ("exp", "reduce_max")]
    (node,) = [n for n in nodes if n.op.name == "softmax_matmul"]
    return node


def attrs_of(tensor: Tensor) -> AttentionAttrs:
    attrs: AttentionAttrs = found_in(tensor).attrs
    return attrs


def causal(s: int = S, t: int = T, offset: int = 0) -> Array:
    return np.tri(s, t, offset, dtype=bool)


def divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """ONNX: MatMul, Div, Softmax, MatMul."""
    return ((q @ k.mT) / math.sqrt(D)).softmax(-1) @ v


def scaled_both(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's exporter of scaled_dot_product_attention: sqrt(scale) on queries and keys."""
    root = math.sqrt(1 / math.sqrt(D))
    return ((q * root) @ (k.permute(0, 1, 3, 2) * root)).softmax(-1) @ v


def scaled_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q / math.sqrt(D)) @ k.mT).softmax(-1) @ v


def scaled_key(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ (k * D**-0.5).mT).softmax(-1) @ v


def scaled_by_a_third(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A divisor whose reciprocal is not exact, so that it stays a division."""
    return ((q / 3.0) @ (0.75 * k).mT).softmax(-1) @ v


def softmax_as_quotient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT) / math.sqrt(D)
    weights = (scores - scores.max(-1, keepdims=True)).exp()
    return (weights / weights.sum(-1, keepdims=True)) @ v


def merged_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Batch and heads as one axis, as older models write it for bmm."""
    a, b, c = (x.reshape(8, -1, D) for x in (q, k, v))
    return ((a @ b.mT) * D**-0.5).softmax(-1) @ c


def transposed_storage(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(batch, length, heads, depth) as projections leave it, and back."""
    a, b, c = (x.permute(0, 2, 1, 3).reshape(2, -1, 4 * D) for x in (q, k, v))
    q, k, v = (x.reshape(2, -1, 4, D).permute(0, 2, 1, 3) for x in (a, b, c))
    k = k.permute(0, 2, 1, 3).permute(0, 2, 3, 1)
    return ((q @ k) * D**-0.5).softmax(-1) @ v


PLAIN: dict[str, Callable[..., Tensor]] = {
    f.__name__: f
    for f in (
        divided, scaled_both, scaled_query, scaled_key, scaled_by_a_third, softmax_as_quotient,
        merged_heads, transposed_storage,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_every_way_to_write_it_is_found(name: str) -> None:
    q, k, v = (data(i, 2, 4, S, D) for i in range(3))
    tensor = PLAIN[name](*(Tensor.input(n, q.shape) for n in "qkv"))
    assert found_in(tensor).attrs == AttentionAttrs()
    plan = tensor.prepare()
    assert len(plan.prepared_ops) == 1
    got = plan(q=q, k=k, v=v).reshape(q.shape)
    np.testing.assert_allclose(got, np_attention(q, k, v), atol=2e-6)


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT) * D**-0.5


MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    # PyTorch's exporter: tril of ones, where(== 0, -inf, 0), added.
    "added_constant": lambda s: s + np.where(causal(), 0, -np.inf).astype(np.float32),
    "chosen_constant": lambda s: Tensor(causal()).where(s, -math.inf),
    "filled_where_false": lambda s: s.masked_fill(Tensor(~causal()), -math.inf),
    "compared_to_zero": lambda s: s.masked_fill(Tensor.ones((S, T)).tril() == 0, -math.inf),
    "positions": lambda s: s.masked_fill(
        Tensor.arange(T).reshape(1, T) > Tensor.arange(S).reshape(S, 1), -math.inf
    ),
    "positions_added": lambda s: s + (Tensor.arange(S).unsqueeze(1) >= Tensor.arange(T)).where(
        0.0, -math.inf
    ),
    "with_batch_axes": lambda s: s + np.where(causal(), 0, -np.inf).astype("f4")[None, None],
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_a_causal_mask_becomes_an_attribute(name: str) -> None:
    q, k, v = (data(i, 2, 4, S, D) for i in range(3))
    tensors = [Tensor.input(n, q.shape) for n in "qkv"]
    tensor = MASKS[name](scores_of(*tensors[:2])).softmax(-1) @ tensors[2]
    assert attrs_of(tensor) == AttentionAttrs(right=0)
    plan = tensor.prepare()
    assert len(plan.prepared_ops) == 1
    want = np_attention(q, k, v, is_causal=True)
    np.testing.assert_allclose(plan(q=q, k=k, v=v), want, atol=2e-6)


def test_a_causal_mask_of_symbolic_lengths_becomes_an_attribute() -> None:
    s, t = Variable("s", 1, 512), Variable("t", 1, 512)
    q, k, v = (
        Tensor.input("q", (4, s, D)),
        Tensor.input("k", (4, t, D)),
        Tensor.input("v", (4, t, D)),
    )
    last = Tensor.arange(s).unsqueeze(1) + (t - s)
    tensor = (Tensor.arange(t) <= last).where(scores_of(q, k), -math.inf).softmax(-1) @ v
    assert attrs_of(tensor) == AttentionAttrs(right=t - s)
    plan = tensor.prepare()
    for queries, keys in ((1, 70), (5, 5), (100, 300)):
        arrays = data(1, 4, queries, D), data(2, 4, keys, D), data(3, 4, keys, D)
        want = np_attention(*arrays, is_causal=True)
        np.testing.assert_allclose(plan(**dict(zip("qkv", arrays, strict=True))), want, atol=2e-6)


def test_a_window_of_two_masks_becomes_attributes() -> None:
    q, k, v = (data(i, 2, 4, S, D) for i in range(3))
    tensors = [Tensor.input(n, q.shape) for n in "qkv"]
    distance = Tensor.arange(S).unsqueeze(1) - Tensor.arange(T)
    seen = (distance >= 0) & (distance < 9)
    tensor = seen.where(scores_of(*tensors[:2]), -math.inf).softmax(-1) @ tensors[2]
    assert attrs_of(tensor) == AttentionAttrs(left=-8, right=0)
    want = np_attention(q, k, v, window=(8, 0))
    np.testing.assert_allclose(tensor.prepare()(q=q, k=k, v=v), want, atol=2e-6)


@pytest.mark.parametrize("fill", [LOWEST, -1e9])
def test_a_finite_fill_keeps_its_numbers(fill: float) -> None:
    """A row that sees nothing is then a mean, so that such a mask stays one."""
    q, k, v = (data(i, 2, 4, S, D) for i in range(3))
    tensors = [Tensor.input(n, q.shape) for n in "qkv"]
    mask = causal(offset=-3)
    tensor = scores_of(*tensors[:2]).masked_fill(Tensor(~mask), fill).softmax(-1) @ tensors[2]
    assert attrs_of(tensor) == AttentionAttrs()
    plan = tensor.prepare()
    assert len(plan.prepared_ops) == 1
    got = plan(q=q, k=k, v=v)
    want = np_attention(q, k, v, mask)
    np.testing.assert_allclose(got[:, :, 3:], want[:, :, 3:], atol=2e-6)
    for row in range(3):
        np.testing.assert_allclose(got[:, :, row], v.mean(-2), atol=2e-6)


def test_a_mask_that_is_passed_in_is_added() -> None:
    q, k, v = (data(i, 2, 4, S, D) for i in range(3))
    mask = np.where(data(5, 2, 1, 1, T) > 0, 0, -1e9).astype(np.float32)
    tensors = [Tensor.input(n, q.shape) for n in "qkv"]
    given = Tensor.input("mask", mask.shape)
    tensor = (scores_of(*tensors[:2]) + given).softmax(-1) @ tensors[2]
    plan = tensor.prepare()
    assert len(plan.prepared_ops) == 1
    got = plan(q=q, k=k, v=v, mask=mask)
    np.testing.assert_allclose(got, np_attention(q, k, v, mask), atol=2e-6)


def test_rows_without_a_key_as_pytorch_exports_them() -> None:
    """where(isnan(softmax), 0, softmax): a row that sees nothing, or a NaN, gives 0."""
    q, k, v = (data(i, 2, 4, S, D) for i in range(3))
    mask = data(5, S, T) > 0
    mask[3] = False
    tensors = [Tensor.input(n, q.shape) for n in "qkv"]
    weights = Tensor(mask).where(scores_of(*tensors[:2]), -math.inf).softmax(-1)
    tensor = weights.isnan().where(0.0, weights) @ tensors[2]
    assert attrs_of(tensor) == AttentionAttrs(zero_if_nan=True)
    q[0, 0, 5, 2] = np.nan
    got = tensor.prepare()(q=q, k=k, v=v)
    assert not got[:, :, 3].any() and not got[0, 0, 5].any()
    q[0, 0, 5, 2] = 0
    got = tensor.prepare()(q=q, k=k, v=v)
    np.testing.assert_allclose(got, np_attention(q, k, v, mask), atol=2e-6)


def test_a_row_without_a_key_stays_nan_where_it_was() -> None:
    q, k, v = (data(i, 2, 4, S, D) for i in range(3))
    tensors = [Tensor.input(n, q.shape) for n in "qkv"]
    seen = Tensor(causal(offset=-1))
    tensor = seen.where(scores_of(*tensors[:2]), -math.inf).softmax(-1) @ tensors[2]
    assert attrs_of(tensor) == AttentionAttrs(right=-1)
    got = tensor.prepare()(q=q, k=k, v=v)
    assert np.isnan(got[:, :, 0]).all()
    want = np_attention(q, k, v, causal(offset=-1))
    np.testing.assert_allclose(got[:, :, 1:], want[:, :, 1:], atol=2e-6)


def test_repeated_heads_are_read_where_they_lie() -> None:
    """repeat_kv: unsqueeze, expand, reshape."""
    q, k, v = data(1, 2, 6, S, D), data(2, 2, 2, T, D), data(3, 2, 2, T, D)
    tensors = [Tensor.input(n, x.shape) for n, x in zip("qkv", (q, k, v), strict=True)]
    keys, values = (x.unsqueeze(2).expand(2, 2, 3, T, D).reshape(2, 6, T, D) for x in tensors[1:])
    tensor = scores_of(tensors[0], keys).softmax(-1) @ values
    plan = tensor.prepare()
    assert len(plan.prepared_ops) == 1
    np.testing.assert_allclose(plan(q=q, k=k, v=v), np_attention(q, k, v), atol=2e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_casts_around_the_softmax_are_found(dtype: str) -> None:
    kind = as_dtype(dtype).numpy
    q, k, v = (data(i, 2, 4, S, D).astype(kind) for i in range(3))
    tensors = [Tensor.input(n, q.shape, dtype) for n in "qkv"]
    scores = (tensors[0] @ tensors[1].mT) * D**-0.5
    tensor = scores.cast("float32").softmax(-1).cast(dtype) @ tensors[2]
    found_in(tensor)
    plan = tensor.prepare()
    assert len(plan.prepared_ops) == 1
    got = plan(q=q, k=k, v=v).astype(np.float64)
    unit = 2**-8 if dtype == "bfloat16" else 2**-11
    np.testing.assert_allclose(got, np_attention(q, k, v), atol=16 * unit)


def test_weights_with_another_user_stay() -> None:
    tensors = [Tensor.input(n, (4, S, D)) for n in "qkv"]
    weights = scores_of(*tensors[:2]).softmax(-1)
    graph = run_passes(Graph(((weights @ tensors[2]).node, weights.node)))
    assert not [n for n in graph.nodes if n.op.name == "softmax_matmul"]


def test_a_softmax_over_another_axis_stays() -> None:
    tensors = [Tensor.input(n, (4, S, S)) for n in "qkv"]
    tensor = scores_of(*tensors[:2]).softmax(-2) @ tensors[2]
    graph = run_passes(Graph((tensor.node,)))
    assert not [n for n in graph.nodes if n.op.name == "softmax_matmul"]


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("shared", ["sum", "max"])
def test_a_sum_or_maximum_over_other_axes_stays(axes: tuple[int, ...], shared: str) -> None:
    s, v = data(1, 3, 4, 4), data(2, 3, 4, 5)
    scores = Tensor.input("s", s.shape)
    over = {"sum": (-1,), "max": (-1,)} | {shared: axes}
    weights = (scores - scores.max(over["max"], keepdims=True)).exp()
    tensor = weights / weights.sum(over["sum"], keepdims=True) @ Tensor.input("v", v.shape)
    nodes = run_passes(Graph((tensor.node,))).nodes
    assert not [n for n in nodes if n.op.name == "softmax_matmul"]
    e = np.exp(s - s.max(over["max"], keepdims=True))
    want = e / e.sum(over["sum"], keepdims=True) @ v
    np.testing.assert_allclose(tensor.prepare(threads=1)(s=s, v=v), want, atol=2e-6)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32"])
def test_scores_of_integers_are_computed_in_integers(dtype: str) -> None:
    """They wrap in their dtype; the attention's own float32 does not."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 2000, (n, 4)).astype(dtype) for n in (3, 5))
    if dtype == "int32":
        a, b = a + 10**6, b + 10**6
    v = data(1, 5, 4)
    q, k = Tensor.input("q", a.shape, dtype), Tensor.input("k", b.shape, dtype)
    low = (q @ k.T) & 127  # what float32 would not know
    plan = ((low.cast("float32") * 0.1).softmax(-1) @ Tensor.input("v", v.shape)).prepare(threads=1)
    exact = ((a @ b.T) & 127).astype(np.float32) * np.float32(0.1)
    weights = np.exp(exact - exact.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(plan(q=a, k=b, v=v), want, rtol=1e-5, atol=1e-6)


def test_scores_of_float64_keep_their_precision() -> None:
    """1e9 is taken off before they become float32, which would not know what is left."""
    a, b, v = data(1, 3, 4).astype(float), data(2, 5, 4).astype(float), data(3, 5, 4)
    a[:, 3], b[:, 3] = 1.0, 1e9
    q, k = (Tensor.input(name, x.shape, "float64") for name, x in (("q", a), ("k", b)))
    scores = (q @ k.T - 1e9).cast("float32")
    plan = (scores.softmax(-1) @ Tensor.input("v", v.shape)).prepare(threads=1)
    exact = a[:, :3] @ b[:, :3].T
    weights = np.exp(exact - exact.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(plan(q=a, k=b, v=v), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("factor", "size"), [(1e30, 1e-30), (1e-30, 1e30)])
def test_factors_that_keep_numbers_in_range_stay(factor: float, size: float) -> None:
    """The product without them, or of them, would be 0 or infinite."""
    a, b, v = data(1, 3, 4), data(2, 5, 4), data(3, 5, 4)
    q, k = Tensor.input("q", a.shape), Tensor.input("k", b.shape)
    scores = (q * factor) @ (k * factor).T
    plan = (scores.softmax(-1) @ Tensor.input("v", v.shape)).prepare(threads=1)
    exact = a @ b.T
    weights = np.exp(exact - exact.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ v
    got = plan(q=a * np.float32(size), k=b * np.float32(size), v=v)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
