"""Attention in all its variants is NumPy's, streamed in one kernel, for all lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ops.attention_reference import bound, np_attention

from semel import IndexRangeError, Tensor, Variable
from semel.errors import GraphError
from semel.ir.graph import Graph
from semel.ir.types import as_dtype
from semel.ops.evaluate import evaluate

Array = np.ndarray[Any, np.dtype[Any]]

RARELY = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def data(seed: int, *shape: int, dtype: str = "float32") -> Array:
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return drawn.astype(as_dtype(dtype).numpy)


def build(q: Array, k: Array, v: Array, options: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """The attention of named inputs, and what to pass for them; arrays in options are inputs."""
    given_arrays = {"q": q, "k": k, "v": v}
    fixed: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, np.ndarray):
            given_arrays[name] = value
            fixed[name] = Tensor.input(name, value.shape, value.dtype)
        else:
            fixed[name] = value
    tensors = [Tensor.input(n, given_arrays[n].shape, given_arrays[n].dtype) for n in "qkv"]
    return tensors[0].scaled_dot_product_attention(*tensors[1:], **fixed), given_arrays


def check(q: Array, k: Array, v: Array, **options: Any) -> None:
    """The compiled kernel and the reference of the graph agree with NumPy."""
    tensor, arrays = build(q, k, v, options)
    want = np_attention(q, k, v, **options)
    plan = tensor.prepare()
    got = plan(**arrays)
    assert len(plan.prepared_ops) == 1
    assert got.dtype == q.dtype
    oracle = evaluate(Graph((tensor.node,)), arrays)[0]
    limit = bound(q, k, v)
    if as_dtype(q.dtype).is_half:
        limit += float(np.abs(want).max(initial=0)) * (2**-8 if "bf" in str(q.dtype) else 2**-11)
    np.testing.assert_allclose(oracle.astype(np.float64), want, rtol=0, atol=limit)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=limit)


MASKS: dict[str, Callable[[int, int], Array | None]] = {
    "none": lambda s, t: None,
    "bool": lambda s, t: data(5, s, t) < 0.7,
    "per_key": lambda s, t: data(6, 2, 1, 1, t) < 0.7,
    "additive": lambda s, t: data(7, 2, 4, s, t),
    "per_head": lambda s, t: data(8, 4, 1, t),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", [(1, 1), (3, 70), (97, 33), (130, 130)], ids=str)
def test_any_mask_that_broadcasts(mask: str, sizes: tuple[int, int]) -> None:
    s, t = sizes
    q, k, v = data(1, 2, 4, s, 20), data(2, 2, 4, t, 20), data(3, 2, 4, t, 18)
    check(q, k, v, mask=MASKS[mask](s, t))


BANDS = [(True, None), (False, (0, 0)), (False, (5, None)), (False, (None, 3)), (True, (70, 2))]


@pytest.mark.parametrize("align", ["start", "end"])
@pytest.mark.parametrize(("is_causal", "window"), BANDS, ids=str)
@pytest.mark.parametrize("sizes", [(1, 90), (100, 150), (150, 100)], ids=str)
def test_bands_of_keys_around_a_query(
    align: str, window: Any, sizes: tuple[int, int], is_causal: bool
) -> None:
    s, t = sizes
    q, k, v = data(1, 3, s, 16), data(2, 3, t, 16), data(3, 3, t, 16)
    check(q, k, v, is_causal=is_causal, window=window, align=align)


@pytest.mark.parametrize("heads", [(4, 1), (6, 2), (8, 8)], ids=str)
@pytest.mark.parametrize("sizes", [(1, 70), (5, 5), (40, 100), (100, 130)], ids=str)
def test_heads_share_keys_without_a_copy(heads: tuple[int, int], sizes: tuple[int, int]) -> None:
    (h, shared), (s, t) = heads, sizes
    q, k, v = data(1, 2, h, s, 16), data(2, 2, shared, t, 16), data(3, 2, shared, t, 24)
    check(q, k, v)
    check(q, k, v, is_causal=True, softcap=4.0, scale=0.3)
    check(q, k, v, mask=data(4, 2, h, s, t))


@pytest.mark.parametrize("sizes", [(1, 200), (3, 70), (70, 130)], ids=str)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=str)
def test_only_the_keys_of_an_entry_are_read(sizes: tuple[int, int], heads: tuple[int, int]) -> None:
    (s, t), (h, shared) = sizes, heads
    lengths = np.array([t, 0, t // 2, 1, 65 % (t + 1)])
    q, k, v = data(1, 5, h, s, 16), data(2, 5, shared, t, 16), data(3, 5, shared, t, 16)
    for entry, length in enumerate(lengths):
        k[entry, :, length:] = v[entry, :, length:] = np.nan
    tensor, arrays = build(q, k, v, {"key_lengths": lengths})
    got = tensor.prepare()(**arrays)
    clean = np_attention(q, np.nan_to_num(k), np.nan_to_num(v), key_lengths=lengths)
    np.testing.assert_allclose(got, clean, atol=1e-5)
    assert not got[1].any(), "a query that sees no key gives 0"
    k, v = np.nan_to_num(k), np.nan_to_num(v)
    for align in ("start", "end"):
        check(q, k, v, key_lengths=lengths, is_causal=True, align=align)
        check(q, k, v, key_lengths=lengths.astype(np.int32), window=(20, 3), align=align)


@pytest.mark.parametrize("size", [1, 16, 100])
@pytest.mark.parametrize("queries", [1, 4, 50])
def test_keys_and_values_in_blocks(size: int, queries: int) -> None:
    lengths = np.array([130, 7, 0])
    blocks = -(-130 // size)
    rng = np.random.default_rng(3)
    table = rng.permutation(3 * blocks).reshape(3, blocks)
    used = np.arange(blocks) * size < lengths[:, None]
    table = np.where(used, table, -7)  # never looked at
    q = data(1, 3, 4, queries, 16)
    k, v = data(2, 3 * blocks, size, 2, 16), data(3, 3 * blocks, size, 2, 8)
    check(q, k, v, key_lengths=lengths, block_table=table)
    check(q, k, v, key_lengths=lengths, block_table=table.astype(np.int32), is_causal=True)


def test_lengths_and_blocks_out_of_range_are_errors() -> None:
    q, k = data(1, 2, 2, 1, 8), data(2, 4, 16, 2, 8)
    options = {"key_lengths": np.array([20, 5]), "block_table": np.array([[0, 1], [2, 3]])}
    tensor, arrays = build(q, k, k, options)
    plan = tensor.prepare()
    plan(**arrays)
    where = "scaled_dot_product_attention"
    for bad in (4, -1):
        arrays["block_table"] = np.array([[0, bad], [2, 3]])
        with pytest.raises(IndexRangeError, match=rf"{where}.*block number must lie in \[0, 4\)"):
            plan(**arrays)
    arrays["block_table"] = np.array([[0, 1], [2, -1]])
    plan(**arrays)
    for bad in (33, -1):
        arrays["key_lengths"] = np.array([20, bad])
        with pytest.raises(IndexRangeError, match=rf"{where}.*key length must lie in \[0, 33\)"):
            plan(**arrays)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("sizes", [(1, 100), (70, 70)], ids=str)
def test_other_dtypes_round_once(dtype: str, sizes: tuple[int, int]) -> None:
    s, t = sizes
    q, k, v = (data(i, 2, n, 32, dtype=dtype) for i, n in enumerate((s, t, t)))
    check(q, k, v, is_causal=True)


def test_a_query_that_sees_no_key_gives_zero() -> None:
    q, k = data(1, 2, 5, 8), data(2, 2, 3, 8)
    check(q, k, k, is_causal=True)  # queries 0 and 1 stand before the first key
    check(q, k, k, mask=np.zeros((5, 3), bool))
    check(q, k[:, :0], k[:, :0])


@st.composite
def attentions(draw: Any) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Sizes (batch, heads, shared, S, T, depth, width) and options."""
    shared = draw(st.sampled_from([1, 1, 2, 3]))
    heads = shared * draw(st.sampled_from([1, 1, 2, 4]))
    length = st.one_of(st.integers(0, 9), st.integers(10, 140))
    width = st.sampled_from([1, 2, 7, 16, 33, 64])
    sizes = (draw(st.integers(1, 2)), heads, shared, draw(length), draw(length), draw(width))
    side = st.one_of(st.none(), st.integers(0, 100))
    options: dict[str, Any] = {
        "is_causal": draw(st.booleans()),
        "window": draw(st.one_of(st.none(), st.tuples(side, side))),
        "softcap": draw(st.sampled_from([None, 3.0])),
        "scale": draw(st.sampled_from([None, 0.5])),
        "align": draw(st.sampled_from(["start", "end"])),
    }
    if draw(st.booleans()):
        options["key_lengths"] = np.array([draw(st.integers(0, sizes[4])) for _ in range(sizes[0])])
    return (*sizes, draw(width)), options


@RARELY
@given(attentions())
def test_any_attention_is_numpys(case: tuple[tuple[int, ...], dict[str, Any]]) -> None:
    (b, h, shared, s, t, depth, width), options = case
    q, k, v = data(1, b, h, s, depth), data(2, b, shared, t, depth), data(3, b, shared, t, width)
    tensor, arrays = build(q, k, v, options)
    got = tensor.prepare()(**arrays)
    np.testing.assert_allclose(got, np_attention(q, k, v, **options), atol=bound(q, k, v))


LENGTHS = ((1, 1), (1, 77), (2, 512), (12, 12), (13, 64), (96, 97), (100, 65), (512, 512))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [(3, 3), (6, 2)], ids=str)
def test_one_plan_serves_all_lengths_with_the_bits_of_fixed_ones(
    is_causal: bool, heads: tuple[int, int]
) -> None:
    h, shared = heads
    s, t = Variable("s", 1, 512), Variable("t", 1, 512)

    def attention(s: Any, t: Any) -> Tensor:
        q, k, v = (
            Tensor.input(name, (n, length, 24), "float32")
            for name, n, length in (("q", h, s), ("k", shared, t), ("v", shared, t))
        )
        return q.scaled_dot_product_attention(k, v, is_causal=is_causal)

    plans = [attention(s, t).prepare(threads=n) for n in (1, 2)]
    for queries, keys in LENGTHS:
        q, k, v = data(1, h, queries, 24), data(2, shared, keys, 24), data(3, shared, keys, 24)
        fixed = attention(queries, keys).prepare(threads=1)(q=q, k=k, v=v)
        for plan in plans:
            assert plan(q=q, k=k, v=v).tobytes() == fixed.tobytes(), (queries, keys)
        want = np_attention(q, k, v, is_causal=is_causal)
        np.testing.assert_allclose(fixed, want, atol=bound(q, k, v))
    assert [plan.compile_count for plan in plans] == [1, 0]


def test_a_decoded_token_has_the_bits_of_the_whole_sequence() -> None:
    q, k, v = (data(i, 2, 200, 64) for i in range(3))
    whole, arrays = build(q, k, v, {"is_causal": True})
    expected = whole.prepare()(**arrays)
    n = Variable("n", 1, 200)
    one = Tensor.input("q", (2, 1, 64)).scaled_dot_product_attention(
        Tensor.input("k", (2, n, 64)), Tensor.input("v", (2, n, 64)), is_causal=True
    )
    plan = one.prepare()
    for length in (1, 63, 64, 65, 200):
        last = slice(length - 1, length)
        got = plan(q=q[:, last], k=k[:, :length], v=v[:, :length])
        assert got.tobytes() == expected[:, last].tobytes(), length


def test_a_plan_of_the_longest_keys_gives_the_bits_of_the_actual_ones() -> None:
    q, k, v = data(1, 4, 2, 1, 32), data(2, 4, 2, 300, 32), data(3, 4, 2, 300, 32)
    lengths = np.array([300, 1, 64, 131])
    tensor, arrays = build(q, k, v, {"key_lengths": lengths})
    got = tensor.prepare()(**arrays)
    for entry, length in enumerate(lengths):
        part = q[entry], k[entry, :, :length], v[entry, :, :length]
        one, inputs = build(*part, {})
        assert got[entry].tobytes() == one.prepare()(**inputs).tobytes()


def test_a_cache_and_a_new_token_are_read_where_they_lie() -> None:
    old, new = data(2, 4, 130, 16), data(3, 4, 1, 16)
    q = data(1, 4, 1, 16)
    n = Variable("n", 1, 512)
    keys = Tensor.concat([Tensor.input("old", (4, n, 16)), Tensor.input("new", (4, 1, 16))], 1)
    plan = Tensor.input("q", q.shape).scaled_dot_product_attention(keys, keys).prepare()
    assert len(plan.prepared_ops) == 1
    both = np.concatenate([old, new], 1)
    np.testing.assert_allclose(
        plan(q=q, old=old, new=new), np_attention(q, both, both), atol=bound(q, both, both)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"align": "middle"}, "align must be start, end or a size, got 'middle'"),
        ({"window": (-1, 0)}, "window must be"),
        ({"key_lengths": np.array([1.0, 2.0])}, "every key length must be an integer"),
        ({"key_lengths": np.ones((2, 6, 1), np.int64)}, "key_lengths must have at most 2 axes"),
        ({"block_table": np.zeros((2, 3), np.int64)}, "block_table needs key_lengths"),
        ({"mask": np.ones((2, 6, 5, 3), bool)}, "must broadcast"),
    ],
)
def test_what_does_not_fit_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        build(data(1, 2, 6, 5, 8), data(2, 2, 6, 4, 8), data(3, 2, 6, 4, 8), options)


def test_heads_that_do_not_divide_are_an_error() -> None:
    with pytest.raises(GraphError, match="must be a multiple"):
        build(data(1, 2, 6, 5, 8), data(2, 2, 4, 4, 8), data(3, 2, 4, 4, 8), {})


def test_torch_agrees() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: no peer to compare")
    q, k, v = data(1, 2, 6, 70, 32), data(2, 2, 2, 70, 32), data(3, 2, 2, 70, 32)
    theirs = torch.nn.functional.scaled_dot_product_attention
    arrays = [torch.from_numpy(x) for x in (q, k, v)]
    for is_causal in (False, True):
        tensor, inputs = build(q, k, v, {"is_causal": is_causal, "align": "start"})
        want = theirs(*arrays, is_causal=is_causal, enable_gqa=True).numpy()
        np.testing.assert_allclose(tensor.prepare()(**inputs), want, atol=2e-6)
