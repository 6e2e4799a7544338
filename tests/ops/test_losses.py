"""Losses: classes, classes to ignore, what is no class; and all of them against torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import numpy as np
import pytest
from tests.ops.together import Together

from semel import GraphError, IndexRangeError, Tensor

LOGITS = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)


def losses(target: Any, ignored: int = -100) -> np.ndarray:
    """The loss of each row in float64, 0 where its class is ignored."""
    wide = LOGITS.astype(np.float64)
    logs = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return np.array([0 if c == ignored else -row[c] for row, c in zip(logs, target, strict=True)])


def cross_entropy(target: np.ndarray, **options: Any) -> np.ndarray:
    x, t = Tensor.input("x", LOGITS.shape), Tensor.input("t", target.shape, target.dtype)
    result: np.ndarray = x.cross_entropy(t, **options).prepare()(x=LOGITS, t=target)
    return result


@pytest.mark.parametrize(("ignored", "dtype"), [(-100, "int64"), (-1, "int8"), (2, "uint8")])
def test_ignored_classes_give_zero_and_do_not_count(ignored: int, dtype: str) -> None:
    target = np.array([0, ignored, 4, 3, ignored, 1]).astype(dtype)
    want = losses(target, ignored)
    options = {} if ignored == -100 else {"ignore_index": ignored}
    got = cross_entropy(target, reduction="none", **options)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert got[1] == got[4] == 0
    total = cross_entropy(target, reduction="sum", **options)
    np.testing.assert_allclose(total, want.sum(), rtol=1e-5)
    np.testing.assert_allclose(cross_entropy(target, **options), want.sum() / 4, rtol=1e-5)


def test_the_mean_over_no_class_is_nan() -> None:
    target = np.full(6, -100)
    assert np.isnan(cross_entropy(target))
    assert cross_entropy(target, reduction="sum") == 0


@pytest.mark.parametrize("bad", [-1, -5, 5, -99])
def test_what_is_no_class_is_reported(bad: int) -> None:
    target = np.array([0, 1, 2, bad, 4, 0])
    place = rf"\[cross_entropy\] class must lie in \[0, 5\), got {bad} \(.*test_losses.py:"
    with pytest.raises(IndexRangeError, match=place):
        cross_entropy(target)


def test_classes_along_another_axis() -> None:
    logits = Tensor.input("x", (5, 6))
    target = np.array([0, 1, 2, 3, 4, 0])
    got = logits.cross_entropy(target, axis=0, reduction="none").prepare()(x=LOGITS.T.copy())
    np.testing.assert_allclose(got, losses(target), rtol=1e-5)


def test_targets_have_one_class_per_row() -> None:
    x = Tensor.input("x", (6, 5))
    with pytest.raises(GraphError, match=r"target must have shape \[6\], got i64\[6,5\]"):
        x.cross_entropy(np.zeros((6, 5), np.int64))
    with pytest.raises(GraphError, match="every class must be an integer"):
        x.cross_entropy(np.zeros(6, np.float32))


def test_a_shape_of_torch_is_told_which_axis_has_the_classes() -> None:
    x = Tensor.input("x", (2, 5, 3, 4))
    with pytest.raises(GraphError, match=r"without its axis 3, got i64\[2,3,4\]. .*axis=1"):
        x.cross_entropy(np.zeros((2, 3, 4), np.int64))


# ------------------------------------------------------------ against torch

RNG = np.random.default_rng(1)
X, Y = (RNG.standard_normal((4, 5)).astype(np.float32) for _ in range(2))
P, Q = (RNG.uniform(0, 1, (4, 5)).astype(np.float32) for _ in range(2))
P[0, :2] = 0, 1
WEIGHT = RNG.uniform(0.5, 2, 5).astype(np.float32)
REDUCTIONS = ("mean", "sum", "none")


@pytest.fixture
def torch() -> Any:
    pytest.importorskip("torch")
    return import_module("torch")


def test_losses_of_elements_are_torchs(torch: Any) -> None:
    cases, t, f = Together(), torch.from_numpy, torch.nn.functional
    far: dict[str, Any] = {"weight": WEIGHT, "pos_weight": WEIGHT * 2}
    rows: list[tuple[str, np.ndarray, np.ndarray, dict[str, Any]]] = [
        ("mse_loss", X, Y, {}),
        ("l1_loss", X, Y, {}),
        ("smooth_l1_loss", X, Y, {"beta": 0.5}),
        ("smooth_l1_loss", X, Y, {"beta": 0}),
        ("huber_loss", X, Y, {"delta": 0.7}),
        ("binary_cross_entropy", P, Q, {}),
        ("binary_cross_entropy", P, Q, {"weight": WEIGHT}),
        ("binary_cross_entropy_with_logits", X * 30, Q, far),
        ("kl_div", X, P, {}),
        ("kl_div", X, Y, {"log_target": True}),
    ]
    for name, x, y, options in rows:
        theirs = {k: t(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        for reduction in (*REDUCTIONS, *["batchmean"] * (name == "kl_div")):
            found = getattr(Tensor(x), name)(y, reduction=reduction, **options)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch, about its own mean
                want = getattr(f, name)(t(x), t(y), reduction=reduction, **theirs)
            cases.add(f"{name} {reduction}", found, want)
    cases.check()


def test_losses_of_classes_are_torchs(torch: Any) -> None:
    cases, t, f = Together(), torch.from_numpy, torch.nn.functional
    wide = RNG.standard_normal((2, 5, 3)).astype(np.float32)
    classes, soft = np.array([[0, 1, 2], [-100, 4, 3]]), RNG.uniform(0, 1, (2, 5, 3))
    soft = soft.astype(np.float32)
    for reduction in REDUCTIONS:
        for weight in (None, WEIGHT):
            ours: dict[str, Any] = {"weight": weight, "reduction": reduction}
            theirs = {"weight": None if weight is None else t(weight), "reduction": reduction}
            found = Tensor(wide).nll_loss(classes, axis=1, **ours)
            cases.add(f"nll {ours}", found, f.nll_loss(t(wide), t(classes), **theirs))
            for smoothing in (0.0, 0.2):
                for target in (classes, soft):
                    found = Tensor(wide).cross_entropy(
                        target, axis=1, label_smoothing=smoothing, **ours
                    )
                    want = f.cross_entropy(t(wide), t(target), label_smoothing=smoothing, **theirs)
                    cases.add(f"{ours} {smoothing} {target.dtype}", found, want)
    cases.check()


def test_distances_and_activations_are_torchs(torch: Any) -> None:
    cases, t, f = Together(), torch.from_numpy, torch.nn.functional
    a = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    b = RNG.standard_normal((1, 5, 4)).astype(np.float32)
    for p in (0, 1, 2, 3.5, float("inf")):
        cases.add(f"cdist {p}", Tensor(a).cdist(b, p), torch.cdist(t(a), t(b), p))
        if p:
            want = f.pairwise_distance(t(X), t(Y), p)
            cases.add(f"pairwise {p}", Tensor(X).pairwise_distance(Y, p), want)
    none = a[:, :, :0]
    cases.add("of nothing", Tensor(none).cdist(none), torch.cdist(t(none), t(none)))
    cases.add("cosine", Tensor(X).cosine_similarity(Y), f.cosine_similarity(t(X), t(Y)))
    zero = X * 0
    cases.add("no angle", Tensor(zero).cosine_similarity(Y), f.cosine_similarity(t(zero), t(Y)))
    slopes = np.array([0.1, -0.5, 2], np.float32)
    cases.add("prelu", Tensor(a).prelu(slopes), f.prelu(t(a), t(slopes)))
    cases.add("one slope", Tensor(a).prelu([0.25]), f.prelu(t(a), torch.tensor([0.25])))
    cases.add("celu", Tensor(X).celu(1.7), f.celu(t(X), 1.7))
    cases.add("threshold", Tensor(X).threshold(0.3, -7), f.threshold(t(X), 0.3, -7))
    cases.add("softmin", Tensor(X).softmin(0), f.softmin(t(X), 0))
    cases.check()


def test_writing_by_index_is_torchs(torch: Any) -> None:
    cases, t, f = Together(), torch.from_numpy, torch.nn.functional
    rows = RNG.standard_normal((3, 5)).astype(np.float32)
    places = torch.tensor([3, 0, 1])
    want = t(X).index_copy(0, places, t(rows))
    cases.add("copy", Tensor(X).index_copy(0, [3, 0, 1], rows), want)
    want = t(X).index_fill(1, torch.tensor([4, 0]), 9)
    cases.add("fill", Tensor(X).index_fill(1, [-1, 0], 9), want)
    mask = X > 0
    for m in (mask, mask[:1]):
        want = t(X).masked_scatter(t(m), t(Y))
        cases.add("masked", Tensor(X).masked_scatter(Tensor(m), Y), want)
    index, source = RNG.integers(0, 4, (6, 5)), RNG.standard_normal((6, 5)).astype(np.float32)
    for how in ("sum", "prod", "mean", "amax", "amin"):
        for own in (True, False):
            for x, s in [(X, source), ((X * 10).astype(int), (source * 10).astype(int))]:
                found = Tensor(x).scatter_reduce(0, index, s, how, include_self=own)
                want = t(x).scatter_reduce(0, t(index), t(s), how, include_self=own)
                cases.add(f"{how} {own} {x.dtype}", found, want)
    table = RNG.standard_normal((10, 4)).astype(np.float32)
    ids, starts = RNG.integers(0, 10, (3, 5)), np.array([0, 2, 2, 9])
    for mode in ("mean", "sum", "max"):
        want = f.embedding_bag(t(ids), t(table), mode=mode)
        cases.add(f"bags {mode}", Tensor(ids).embedding_bag(table, mode=mode), want)
        flat = ids.ravel()
        want = f.embedding_bag(t(flat), t(table), t(starts), mode=mode)
        cases.add(f"from {mode}", Tensor(flat).embedding_bag(table, starts, mode=mode), want)
    shares = RNG.standard_normal((3, 5)).astype(np.float32)
    want = f.embedding_bag(t(ids), t(table), mode="sum", per_sample_weights=t(shares))
    found = Tensor(ids).embedding_bag(table, mode="sum", per_sample_weights=shares)
    cases.add("weighted", found, want)
    cases.check()


def test_a_source_that_is_too_short_is_reported() -> None:
    x, m = Tensor.input("x", (4,)), Tensor.input("m", (4,), "bool")
    plan = x.masked_scatter(m, [7.0, 8.0]).prepare()
    ones = np.ones(4, np.float32)
    assert plan(x=ones, m=np.array([0, 1, 0, 1], bool)).tolist() == [1, 7, 1, 8]
    with pytest.raises(
        IndexRangeError, match=r"\[masked_scatter\] source element must lie in \[0, 2"
    ):
        plan(x=ones, m=np.array([0, 1, 1, 1], bool))


A = Tensor.input("a", (4, 5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: A.mse_loss(np.zeros((4, 1))), r"\[mse_loss\] target must have shape \[4,5\]"),
        (lambda: A.l1_loss(0, reduction="max"), r"\[l1_loss\] reduction must be mean, sum or none"),
        (lambda: A.huber_loss(0, delta=0), r"\[huber_loss\] delta must be a number > 0, got 0"),
        (lambda: A.smooth_l1_loss(0, beta=-1), "beta must be a number >= 0, got -1"),
        (lambda: A.kl_div(0, reduction="max"), "reduction must be mean, sum, batchmean or none"),
        (lambda: A.sum().kl_div(0, reduction="batchmean"), "batchmean needs at least 1 axis"),
        (
            lambda: A.cross_entropy([0] * 4, label_smoothing=2),
            r"label_smoothing must lie in \[0, 1",
        ),
        (lambda: A.cross_entropy([0] * 4, weight=[1.0]), r"weight must have shape \[5\]"),
        (lambda: A.nll_loss([0.5] * 4), r"\[nll_loss\] every class must be an integer"),
        (lambda: A.cdist(np.zeros((4, 3))), r"\[cdist\] needs x \[.., P, M\] and y"),
        (lambda: A.cdist(A, -1), r"\[cdist\] p must be a number >= 0, got -1"),
        (lambda: A.prelu(np.zeros((2, 2))), r"\[prelu\] weight must be a number or a vector"),
        (lambda: A.prelu([1.0, 2.0]), r"\[prelu\] weight must have shape \[5\]"),
        (lambda: A.sum(0).prelu([1.0, 2.0]), "x must have channels along axis 1"),
        (lambda: A.celu(0), r"\[celu\] alpha must be a number other than 0"),
        (
            lambda: A.threshold(0, cast(Any, [1, 2])),
            r"\[threshold\] the fill value must be",
        ),
        (lambda: A.index_copy(0, [[1]], 0), r"\[index_copy\] index must be 1-D"),
        (lambda: A.index_fill(0, [[1]], 0), r"\[index_fill\] index must be 1-D"),
        (lambda: A.masked_scatter(A, A), r"\[masked_scatter\] the mask must be bool"),
        (lambda: A.scatter_reduce(0, [[1]], 1, "set"), r"\[scatter_reduce\] reduce must be one of"),
        (lambda: Tensor([[1]]).embedding_bag(A, mode="min"), "mode must be mean, sum or max"),
        (lambda: Tensor([1]).embedding_bag(A), r"needs x \[bags, n\], or x \[n\] and offsets"),
        (lambda: Tensor([1]).embedding_bag(A, [[0]]), "offsets must be 1-D"),
        (
            lambda: Tensor([[1]]).embedding_bag(A, per_sample_weights=[[1.0]]),
            "per_sample_weights go with mode='sum'",
        ),
    ],
)
def test_mistakes_with_losses_and_indices(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        call()


def test_axes_go_by_torchs_name_too() -> None:
    cases, x = Together(), Tensor(X)
    pairs = [
        (x.softmin(dim=0), x.softmin(0)),
        (x.cosine_similarity(Y, dim=0), x.cosine_similarity(Y, 0)),
        (x.pairwise_distance(Y, keepdim=True), x.pairwise_distance(Y, keepdims=True)),
        (x.index_copy(dim=1, index=[0], source=Y[:, :1]), x.index_copy(1, [0], Y[:, :1])),
        (x.index_fill(dim=1, index=[0], value=3), x.index_fill(1, [0], 3)),
        (
            x.scatter_reduce(dim=0, index=[[1]], src=7.0, reduce="amax"),
            x.scatter_reduce(0, [[1]], 7.0, "amax"),
        ),
    ]
    for k, (ours, theirs) in enumerate(pairs):
        cases.add(str(k), ours, theirs.numpy())
    cases.check()
