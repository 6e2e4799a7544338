"""Rows for reductions, products, order and the compositions of neural networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tests.ops.case import Case, Spec

import semel

M = Spec((3, 4))
B = Spec((2, 3, 5))
LONG = Spec((2, 1031))
AXES: tuple[Any, ...] = (None, 0, -1, (0, 2), (1, 2))


def np_logsumexp(x: np.ndarray, axis: Any = None, keepdims: bool = False) -> Any:
    top = np.max(x, axis=axis, keepdims=True)
    result = np.log(np.exp(x - top).sum(axis, keepdims=True)) + top
    return result if keepdims else np.squeeze(result, axis)


def np_softmax(x: np.ndarray, axis: Any = -1) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def np_normalized(x: np.ndarray, axis: Any, eps: float) -> Any:
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps)


REDUCTIONS: list[tuple[str, Callable[..., Any]]] = [
    ("sum", np.sum), ("prod", np.prod), ("mean", np.mean), ("max", np.max), ("min", np.min),
    ("var", np.var), ("std", np.std), ("any", np.any), ("all", np.all),
    ("logsumexp", np_logsumexp),
]  # fmt: skip


def bound(name: str, numpy_fn: Callable[..., Any], **options: Any) -> tuple[Any, Any]:
    return (
        lambda x: getattr(x, name)(**options),
        lambda x: numpy_fn(x, **options),
    )


def reduction_cases() -> Iterator[Case]:
    for name, numpy_fn in REDUCTIONS:
        for axis in AXES:
            run, reference = bound(name, numpy_fn, axis=axis)
            yield Case(f"{name}_{axis}", run, reference, (B,), atol=2e-6)
        run, reference = bound(name, numpy_fn, axis=1, keepdims=True)
        yield Case(f"{name}_keepdims", run, reference, (B,), atol=2e-6)
        run, reference = bound(name, numpy_fn)
        # A product of no more than five numbers near 1 keeps its relative error small.
        yield Case(f"{name}_0d", run, reference, (Spec(()),), atol=2e-6)
        yield Case(f"{name}_one", run, reference, (Spec((1, 1)),), atol=2e-6)
        yield Case(f"{name}_f64", run, reference, (Spec((33,), "float64"),), rtol=1e-11, atol=1e-12)
        for half, rtol in (("float16", 2e-3), ("bfloat16", 2e-2)):
            spec = Spec((4, 5), half, 0.5, 1.5)
            row, row_reference = bound(name, numpy_fn, axis=-1)
            yield Case(f"{name}_half", row, row_reference, (spec,), rtol=rtol, atol=rtol)
    for name, numpy_fn in (("sum", np.sum), ("mean", np.mean), ("max", np.max)):
        run, reference = bound(name, numpy_fn, axis=-1)
        yield Case(f"{name}_long", run, reference, (LONG,), rtol=1e-5, atol=1e-4)
        run, reference = bound(name, numpy_fn, axis=0)
        yield Case(f"{name}_columns", run, reference, (Spec((65, 33)),), rtol=1e-5, atol=1e-5)
    specials = Spec((4, 9), special=(math.nan, math.inf, -math.inf))
    for name, numpy_fn in (
        ("max", np.max),
        ("min", np.min),
        ("sum", np.sum),
        ("argmax", np.argmax),
        ("argmin", np.argmin),
    ):
        run, reference = bound(name, numpy_fn, axis=1)
        yield Case(f"{name}_specials", run, reference, (specials,), atol=1e-5)


def np_int_sum(x: np.ndarray) -> Any:
    return x.astype(np.int64).sum(0)


def integer_cases() -> Iterator[Case]:
    for dtype in ("bool", "int8", "int32", "uint8", "int64"):
        spec = Spec((5, 7), dtype, -9, 9)
        yield Case("int_sum", lambda x: x.sum(0), np_int_sum, (spec,))
        yield Case("int_prod", lambda x: x.prod(1), lambda x: x.astype(np.int64).prod(1), (spec,))
        yield Case("int_max", lambda x: x.max(1), lambda x: x.max(1), (spec,))
        yield Case("int_min", lambda x: x.min(), lambda x: x.min(), (spec,))
        yield Case("int_mean", lambda x: x.mean(0), lambda x: x.mean(0), (spec,), "float32")
        yield Case("int_var", lambda x: x.var(0), lambda x: x.var(0), (spec,), "float32", atol=1e-5)
        yield Case("int_argmax", lambda x: x.argmax(1), lambda x: x.argmax(1), (spec,))
        yield Case(
            "int_cumsum", lambda x: x.cumsum(1), lambda x: x.astype(np.int64).cumsum(1), (spec,)
        )
    yield Case("uint64_sum", lambda x: x.sum(), lambda x: x.sum(), (Spec((5,), "uint64", 0, 9),))
    for name in ("argmax", "argmin"):
        run, reference = bound(name, getattr(np, name))
        yield Case(f"{name}_flat", run, reference, (B,))
        run, reference = bound(name, getattr(np, name), axis=1, keepdims=True)
        yield Case(f"{name}_axis", run, reference, (B,))
        yield Case(f"{name}_ties", run, reference, (Spec((4, 9), "int32", 0, 2),))
    empty = Spec((0, 3))
    yield Case("sum_empty", lambda x: x.sum(0), lambda x: x.sum(0), (empty,))
    yield Case("prod_empty", lambda x: x.prod(0), lambda x: x.prod(0), (empty,))
    yield Case("any_empty", lambda x: x.any(0), lambda x: x.any(0), (empty,))
    yield Case("all_empty", lambda x: x.all(0), lambda x: x.all(0), (empty,))
    yield Case("max_of_empty_rows", lambda x: x.max(1), lambda x: x.max(1), (empty,))
    yield Case("var_ddof", lambda x: x.var(1, ddof=1), lambda x: x.var(1, ddof=1), (B,), atol=1e-6)
    yield Case("std_correction", lambda x: x.std(correction=1), lambda x: x.std(ddof=1), (B,))
    yield Case(
        "count_nonzero",
        lambda x: x.count_nonzero(0),
        lambda x: np.count_nonzero(x, 0),
        (Spec((5, 7), "int32", 0, 2),),
    )
    for order in (None, 1, 2, 3, np.inf, -np.inf):
        run, reference = norms(order)
        yield Case(f"norm_{order}", run, reference, (M,), rtol=1e-5)
    yield Case(
        "logsumexp_of_minus_inf",
        lambda x: (x * 0 - np.inf).logsumexp(-1),
        lambda x: np.full(3, -np.inf),
        (M,),
    )


def norms(order: Any) -> tuple[Any, Any]:
    return (
        lambda x: x.norm(order, axis=1),
        lambda x: np.linalg.norm(x, order, axis=1),
    )


MATMULS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((3, 4), (2, 4, 5)), ((1, 1), (1, 1)),
    ((17, 33), (33, 65)), ((0, 4), (4, 5)), ((3, 0), (0, 5)), ((2, 3, 4), (4,)),
]  # fmt: skip
EINSUMS: list[tuple[str, tuple[tuple[int, ...], ...]]] = [
    ("ij,jk->ik", ((3, 4), (4, 5))), ("ij,jk", ((3, 4), (4, 5))), ("ij->ji", ((3, 4),)),
    ("ii->i", ((4, 4),)), ("ii", ((4, 4),)), ("ij->", ((3, 4),)), ("ij->j", ((3, 4),)),
    ("i,j->ij", ((3,), (4,))), ("i,i", ((5,), (5,))), ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))),
    ("bhid,bhjd->bhij", ((2, 2, 3, 4), (2, 2, 5, 4))), ("...ij,...jk->...ik", ((2, 3, 4), (4, 5))),
    ("...i->...", ((2, 3, 4),)), ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 5))),
    ("ijk,k->ij", ((2, 3, 4), (4,))), ("ij,ij->ij", ((3, 4), (3, 4))), ("iij->j", ((3, 3, 4),)),
    ("ij,kj->k", ((3, 4), (5, 4))), ("ba,b->a", ((3, 4), (3,))), ("ij,j->ij", ((3, 1), (4,))),
    ("a...,...b->ab...", ((2, 3), (3, 4))), ("bi,bj,bk->ijk", ((2, 3), (2, 4), (2, 2))),
]  # fmt: skip


def product_cases() -> Iterator[Case]:
    for a, b in MATMULS:
        yield Case(
            "matmul", lambda x, y: x @ y, np.matmul, (Spec(a), Spec(b)), rtol=1e-5, atol=1e-5
        )
    for dtype in ("float64", "int32", "int64", "uint8"):
        inputs = (Spec((5, 7), dtype), Spec((7, 3), dtype))
        yield Case("matmul", lambda x, y: x @ y, np.matmul, inputs, rtol=1e-11, atol=1e-11)
    for half, rtol in (("float16", 2e-3), ("bfloat16", 2e-2)):
        inputs = (Spec((5, 7), half), Spec((7, 3), half))
        yield Case("matmul", lambda x, y: x @ y, np.matmul, inputs, rtol=rtol, atol=rtol * 10)
    yield Case(
        "matmul_promotes",
        lambda x, y: x @ y,
        np.matmul,
        (Spec((2, 3), "int32"), Spec((3, 2))),
        atol=1e-5,
    )
    for equation, shapes in EINSUMS:
        run, reference = einsums(equation)
        name = f"einsum_{equation}"
        yield Case(name, run, reference, tuple(map(Spec, shapes)), rtol=1e-5, atol=1e-5)
    yield Case("dot_3d", lambda x, y: x.dot(y), np.dot, (Spec((2, 3)), Spec((4, 3, 5))), atol=1e-5)
    yield Case("outer", lambda x, y: x.outer(y), np.outer, (Spec((3,)), Spec((2, 2))))
    yield Case(
        "linear",
        lambda x, w, b: x.linear(w, b),
        lambda x, w, b: x @ w.T + b,
        (Spec((2, 3, 4)), Spec((5, 4)), Spec((5,))),
        atol=1e-5,
    )


def einsums(equation: str) -> tuple[Any, Any]:
    return (
        lambda *xs: semel.einsum(equation, *xs),
        lambda *xs: np.einsum(equation, *xs),
    )


def np_descending(x: np.ndarray) -> np.ndarray:
    return -np.sort(-x, -1)


def order_cases() -> Iterator[Case]:
    for name, numpy_fn in (
        ("cumsum", np.cumsum),
        ("cumprod", np.cumprod),
        ("cummax", np.maximum.accumulate),
        ("cummin", np.minimum.accumulate),
    ):
        for axis in (0, 1, -1):
            run, reference = bound(name, numpy_fn, axis=axis)
            yield Case(f"{name}_{axis}", run, reference, (B,), rtol=1e-5, atol=1e-5)
        run, reference = bound(name, numpy_fn, axis=1)
        yield Case(f"{name}_long", run, reference, (Spec((2, 67), low=0.9, high=1.1),), rtol=1e-4)
        yield Case(f"{name}_empty", run, reference, (Spec((2, 0)),))
    yield Case("cumsum_flat", lambda x: x.cumsum(), lambda x: x.cumsum(), (M,), atol=1e-5)
    yield Case(
        "cumsum_exclusive",
        lambda x: x.cumsum(1, exclusive=True),
        lambda x: x.cumsum(1) - x,
        (M,),
        atol=1e-5,
    )
    for spec in (
        Spec((3, 17)),
        Spec((3, 17), "int32", -5, 5),
        Spec((4, 1)),
        Spec((2, 0)),
        Spec((3, 65), "float16"),
        Spec((2, 9), special=(math.nan, math.inf)),
    ):
        yield Case("sort", lambda x: x.sort(), lambda x: np.sort(x, -1), (spec,))
        yield Case(
            "argsort", lambda x: x.argsort(), lambda x: np.argsort(x, -1, kind="stable"), (spec,)
        )
    yield Case("sort_axis0", lambda x: x.sort(0), lambda x: np.sort(x, 0), (Spec((17, 3)),))
    yield Case("sort_flat", lambda x: x.sort(None), lambda x: np.sort(x, None), (M,))
    yield Case("sort_descending", lambda x: x.sort(descending=True), np_descending, (Spec((3, 9)),))
    yield Case(
        "argsort_stable",
        lambda x: x.argsort(descending=True),
        lambda x: np.argsort(-x, -1, kind="stable"),
        (Spec((3, 33), "int32", 0, 3),),
    )
    yield Case("topk", lambda x: x.topk(3)[0], lambda x: np_descending(x)[:, :3], (Spec((2, 9)),))
    yield Case(
        "topk_indices", lambda x: x.topk(3)[1], lambda x: np.argsort(-x, -1)[:, :3], (Spec((2, 9)),)
    )
    yield Case(
        "topk_smallest",
        lambda x: x.topk(2, 0, largest=False)[0],
        lambda x: np.sort(x, 0)[:2],
        (Spec((9, 2)),),
    )


def np_attention(q: Any, k: Any, v: Any, mask: Any = 0.0) -> Any:
    return np_softmax(q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]) + mask) @ v


def causal_mask(queries: int, keys: int) -> np.ndarray:
    return np.where(np.tri(queries, keys, keys - queries), 0.0, -np.inf)


def np_group_norm(x: Any, w: Any, b: Any) -> Any:
    grouped = x.reshape(x.shape[0], 2, -1)
    return np_normalized(grouped, 2, 1e-5).reshape(x.shape) * w[:, None] + b[:, None]


def nn_cases() -> Iterator[Case]:
    close: dict[str, Any] = {"rtol": 1e-5, "atol": 2e-6}
    for spec in (Spec((3, 17)), Spec((2, 3, 65)), Spec((4, 1)), Spec((0, 5)), Spec((2, 1031))):
        yield Case("softmax", lambda x: x.softmax(-1), np_softmax, (spec,), **close)
        yield Case(
            "log_softmax",
            lambda x: x.log_softmax(-1),
            lambda x: np.log(np_softmax(x)),
            (spec,),
            rtol=1e-5,
            atol=1e-5,
        )
        yield Case(
            "layer_norm",
            lambda x: x.layer_norm(),
            lambda x: np_normalized(x, -1, 1e-5),
            (spec,),
            rtol=1e-4,
            atol=1e-5,
        )
    yield Case("softmax_axis0", lambda x: x.softmax(0), lambda x: np_softmax(x, 0), (B,), **close)
    yield Case(
        "softmax_axes", lambda x: x.softmax((1, 2)), lambda x: np_softmax(x, (1, 2)), (B,), **close
    )
    yield Case(
        "softmax_large",
        lambda x: (x * 1000).softmax(),
        lambda x: np_softmax(x * 1000),
        (Spec((3, 9)),),
        rtol=1e-3,  # a rounding of 3000 is an error of 1e-4 in the exponent, so in the result
        atol=1e-6,
    )
    yield Case(
        "softmax_nan",
        lambda x: x.softmax(),
        np_softmax,
        (Spec((3, 9), special=(math.nan,)),),
        **close,
    )
    for half, rtol in (("float16", 2e-3), ("bfloat16", 2e-2)):
        yield Case(
            "softmax",
            lambda x: x.softmax(),
            np_softmax,
            (Spec((3, 9), half),),
            rtol=rtol,
            atol=1e-6,
        )
    affine = (Spec((3, 17)), Spec((17,)), Spec((17,)))
    yield Case(
        "layer_norm_affine",
        lambda x, w, b: x.layer_norm(w, b),
        lambda x, w, b: np_normalized(x, -1, 1e-5) * w + b,
        affine,
        **close,
    )
    yield Case(
        "rms_norm",
        lambda x, w, b: x.rms_norm(w) + b * 0,
        lambda x, w, b: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w,
        affine,
        **close,
    )
    channels = (Spec((2, 4, 5)), Spec((4,)), Spec((4,)))
    yield Case(
        "group_norm", lambda x, w, b: x.group_norm(2, w, b), np_group_norm, channels, **close
    )
    yield Case(
        "instance_norm",
        lambda x, w, b: x.instance_norm(w, b),
        lambda x, w, b: np_normalized(x, 2, 1e-5) * w[:, None] + b[:, None],
        channels,
        **close,
    )
    yield Case(
        "batch_norm",
        lambda x, m, v: x.batch_norm(m, v.abs() + 1),
        lambda x, m, v: (x - m[:, None]) / np.sqrt(np.abs(v) + 1 + 1e-5)[:, None],
        channels,
        **close,
    )
    heads = (Spec((2, 3, 4)), Spec((2, 5, 4)), Spec((2, 5, 6)))
    yield Case(
        "attention",
        lambda q, k, v: q.scaled_dot_product_attention(k, v),
        np_attention,
        heads,
        **close,
    )
    yield Case(
        "attention_causal",
        lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
        lambda q, k, v: np_attention(q, k, v, causal_mask(3, 5)),
        heads,
        **close,
    )
    yield Case(
        "attention_mask",
        lambda q, k, v: q.scaled_dot_product_attention(k, v, [True, False, True, True, True]),
        lambda q, k, v: np_attention(q, k, v, np.array([0, -np.inf, 0, 0, 0])),
        heads,
        **close,
    )
    yield Case(
        "cross_entropy",
        lambda x, t: x.cross_entropy(t),
        lambda x, t: -np.log(np_softmax(x))[np.arange(5), t].mean(),
        (Spec((5, 7)), Spec((5,), "int64", 0, 6)),
        **close,
    )
    yield Case(
        "normalize",
        lambda x: x.normalize(),
        lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True),
        (M,),
        **close,
    )
    yield Case(
        "glu", lambda x: x.glu(), lambda x: x[:, :2] / (1 + np.exp(-x[:, 2:])), (M,), **close
    )
    yield Case(
        "mlp",
        lambda x, w, b: ((x @ w).gelu() + b).softmax(),
        np_mlp,
        (Spec((9, 17)), Spec((17, 33)), Spec((33,))),
        rtol=1e-4,
        atol=1e-5,
    )
    yield Case("dropout_0", lambda x: x.dropout(0.0), lambda x: x, (M,))
    yield Case("dropout_1", lambda x: x.dropout(1.0), lambda x: x * 0, (M,))


def np_mlp(x: Any, w: Any, b: Any) -> Any:
    hidden = x @ w
    erf = np.vectorize(math.erf)
    return np_softmax(0.5 * hidden * (1 + erf(hidden / math.sqrt(2))) + b)


REDUCE = [
    *reduction_cases(), *integer_cases(), *product_cases(), *order_cases(), *nn_cases(),
]  # fmt: skip
