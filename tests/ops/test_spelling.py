"""Second names of arguments (`dim=`), of what is to be split, and words of PyTorch."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import semel
from semel import GraphError, Tensor, Variable
from semel.ir.graph import Graph
from semel.ops.evaluate import evaluate
from semel.tensor.spelling import AXIS, SameAs, spelled

Array = np.ndarray[Any, Any]
X = np.array([[3.0, 1.0, 2.0], [0.5, 4.0, -1.0]], np.float32)
I = np.array([[0, 2, 1], [2, 0, 1]])  # noqa: E741
T = Tensor(X)
#: The modules whose functions go along axes.
FAMILIES = ("reduce", "order", "movement", "pieces", "indexing", "assign")
#: What says by which other names an argument goes.
SAME = {
    name: {p.name: str(p.default) for p in inspect.signature(f).parameters.values()
           if isinstance(p.default, SameAs)}
    for name in semel.__all__
    if isinstance(f := getattr(semel, name), FunctionType)
}  # fmt: skip


def run(tensor: Tensor, **values: Any) -> Array:
    return evaluate(Graph((tensor.node,)), values)[0]


#: A call by second names, and what NumPy gives.
CALLS: list[tuple[Callable[[], Any], Any]] = [
    (lambda: T.sum(dim=1, keepdim=True), X.sum(1, keepdims=True)),
    (lambda: semel.sum(X, dim=(0, 1)), X.sum()),
    (lambda: T.mean(dim=-1), X.mean(-1)),
    (lambda: T.max(dim=0, keepdims=True), X.max(0, keepdims=True)),
    (lambda: T.min(0, keepdim=True), X.min(0, keepdims=True)),
    (lambda: T.var(dim=0, ddof=1), X.var(0, ddof=1)),
    (lambda: T.std(dim=0, correction=0.5), X.std(0, ddof=0.5)),
    (lambda: T.argmax(dim=1), X.argmax(1)),
    (lambda: T.softmax(dim=0).sum(dim=0), np.ones(3)),
    (lambda: T.cumsum(dim=1, dtype="float64"), X.cumsum(1, dtype=np.float64)),
    (lambda: T.sort(dim=0, stable=True), np.sort(X, 0)),
    (lambda: T.topk(1, dim=0)[1], X.argmax(0)[None]),
    (lambda: T.unsqueeze(dim=1).squeeze(dim=1), X),
    (lambda: T.expand_dims(axis=0), X[None]),
    (lambda: T.flip(dims=[0]), X[::-1]),
    (lambda: T.roll(shifts=1, dims=1), np.roll(X, 1, 1)),
    (lambda: semel.cat([X, X], dim=1), np.concatenate([X, X], 1)),
    (lambda: semel.concatenate([X, X], axis=None), np.concatenate([X, X], None)),
    (lambda: semel.stack([X, X], dim=2), np.stack([X, X], 2)),
    (lambda: T.gather(dim=1, index=I), np.take_along_axis(X, I, 1)),
    (lambda: T.take_along_dim(I, dim=1), np.take_along_axis(X, I, 1)),
    (lambda: T.take_along_axis([5, 0], None), X.ravel()[[5, 0]]),
    (lambda: T.index_select(dim=1, index=[2, 0]), X[:, [2, 0]]),
    (lambda: T.scatter(dim=1, index=[[0], [1]], src=[[9.0], [8.0]]), [[9, 1, 2], [0.5, 8, -1]]),
    (lambda: T.narrow(dim=1, start=1, length=2), X[:, 1:]),
    (lambda: T.swapaxes(dim0=0, dim1=1), X.T),
    (lambda: T.permute(dims=(1, 0)), X.T),
    (lambda: T.transpose(axes=(1, 0)), X.T),
    (lambda: semel.transpose(X), X.T),
    (lambda: T.reshape(shape=(3, 2)), X.reshape(3, 2)),
    (lambda: T.unflatten(dim=1, sizes=(3, 1)), X[:, :, None]),
    (lambda: T.clamp(min=0, max=2), X.clip(0, 2)),
    (lambda: T.clip(a_min=1), X.clip(1)),
    (lambda: T.tril(diagonal=-1), np.tril(X, -1)),
    (lambda: T.triu(k=1), np.triu(X, 1)),
    (lambda: T.norm(ord=1, dim=0), np.abs(X).sum(0)),
    (lambda: semel.zeros(shape=(2, 1), dtype="int8"), np.zeros((2, 1), np.int8)),
    # numbers stay weak on the left, too
    (lambda: semel.subtract(1, X.astype(np.float16)), 1 - X.astype(np.float16)),
    (lambda: semel.power(2, np.arange(3, dtype=np.int8)), 2 ** np.arange(3, dtype=np.int8)),
    (lambda: semel.less(1, I), I > 1),
    (lambda: semel.greater_equal(I, 1), I >= 1),
    (lambda: semel.left_shift(1, np.arange(3, dtype=np.uint8)), 1 << np.arange(3, dtype=np.uint8)),
    (lambda: semel.bitwise_xor(I, 1), I ^ 1),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_second_names_are_first_names(number: int) -> None:
    call, want = CALLS[number]
    got = run(call())
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("call", [
    lambda: T.sum(0, dim=0), lambda: T.sum(axis=0, dim=0), lambda: semel.sum(T, dim=0, axis=0),
])  # fmt: skip
def test_both_names_are_one_too_many(call: Callable[[], Any]) -> None:
    with pytest.raises(GraphError, match=r"\[sum\] dim is another name of axis: give one, not bo"):
        call()
    with pytest.raises(TypeError, match=r"reshape\(\) got multiple values for argument 'shape'"):
        T.reshape(6, shape=(6,))  # type: ignore[misc]


def test_what_is_needed_is_named() -> None:
    with pytest.raises(TypeError, match=r"\[gather\] needs x, axis, index, got no axis\."):
        T.gather(index=I)
    with pytest.raises(TypeError, match=r"\[scatter\] needs x, axis, index, source, got no index"):
        T.scatter(dim=1, src=X)
    with pytest.raises(TypeError, match="unexpected keyword argument 'dims'"):
        T.sum(dims=1)  # type: ignore[call-arg]


def test_every_axis_is_a_dim() -> None:
    """Whoever takes `axis` takes `dim`; signatures show it, and what it stands for."""
    lacking = {
        name
        for name in SAME
        for function in [getattr(semel, name)]
        for names in [inspect.signature(function).parameters]
        if function.__module__.rpartition(".")[2] in FAMILIES
        and "axis" in names
        and not {"dim", "dims"} & set(names)
    }
    assert not lacking
    assert SAME["sum"] == {"dim": "axis", "keepdim": "keepdims"}
    assert str(inspect.signature(semel.unsqueeze)) == (
        "(x: 'TensorLike', axis: 'int | Sequence[int]' = dim, *, "
        "dim: 'int | Sequence[int]' = axis) -> 'Tensor'"
    )


def test_a_declared_name_is_needed() -> None:
    def f(x: int, *, dim: int = AXIS) -> int:
        return x

    with pytest.raises(TypeError, match="f declares no axis"):
        spelled(dim="axis")(f)


# ------------------------------------------------------------ split


def test_split_is_numpys() -> None:
    x = np.arange(24).reshape(6, 4)
    calls: list[tuple[list[Tensor], list[Array]]] = [
        (Tensor(x).split(3), np.split(x, 3)),
        (semel.split(x, 2, axis=1), np.split(x, 2, 1)),
        (Tensor(x).split([1, 4]), np.split(x, [1, 4])),
        (Tensor(x).split([4, 2, -1, 9]), np.split(x, [4, 2, -1, 9])),
        (Tensor(x).split(indices_or_sections=[3], dim=1), np.split(x, [3], 1)),
        (semel.array_split(x, 4), np.array_split(x, 4)),
        (semel.tensor_split(x, 5, dim=1), np.array_split(x, 5, 1)),
        (semel.array_split(x, [2, 3]), np.array_split(x, [2, 3])),
        (semel.hsplit(x, 2), np.hsplit(x, 2)),
        (semel.vsplit(x, [1]), np.vsplit(x, [1])),
        (semel.dsplit(x.reshape(2, 3, 4), 2), np.dsplit(x.reshape(2, 3, 4), 2)),
        (Tensor(x).split(split_size=4), [x[:4], x[4:]]),
        (Tensor(x).split(split_size=[1, 3], axis=1), [x[:, :1], x[:, 1:]]),
    ]
    for got, want in calls:
        assert len(got) == len(want)
        for piece, wanted in zip(got, want, strict=True):
            np.testing.assert_array_equal(run(piece), wanted)


def test_split_of_symbolic_sizes() -> None:
    n = Variable("n", 1, 64)
    x = Tensor.input("x", (n, 2), "int64")
    values = np.arange(14).reshape(7, 2)
    for k, piece in enumerate(x.array_split(3)):
        want = np.array_split(values, 3)[k]
        np.testing.assert_array_equal(run(piece, x=values), want)
    np.testing.assert_array_equal(run(x.split(7)[3], x=values), values[3:4])
    assert Tensor.input("y", (2 * n,)).split(2)[1].shape == (n,)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: T.split(2, 1), r"\[split\] 2 sections must be of one size, got 3 elements\. Pieces of "
     r"2 elements are split_size=2; array_split takes the rest\."),
    (T.split, r"\[split\] needs sections or split_size=, got neither"),
    (lambda: T.split(2, split_size=2), r"\[split\] needs sections or split_size=, got both"),
    (lambda: T.split(0), r"\[split\] the number of sections must be > 0, got 0"),
    (lambda: T[0].vsplit(1), r"\[vsplit\] needs 2 axes or more, got f32\[3\]"),
])  # fmt: skip
def test_what_split_refuses(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        call()


def test_pieces_are_put_together() -> None:
    a, b = np.arange(3), np.arange(3) + 3
    for name in ("hstack", "vstack", "dstack", "column_stack"):
        for parts in ([a, b], [X, X], [X[None], X[None]], [1, 2]):
            want = getattr(np, name)(parts)
            np.testing.assert_array_equal(run(getattr(semel, name)(parts)), want)
    for name in ("atleast_1d", "atleast_2d", "atleast_3d"):
        for part in (np.array(3), a, X, X[None]):
            got = run(getattr(Tensor(part), name)())
            np.testing.assert_array_equal(got, getattr(np, name)(part), strict=True)
    for got_one, want_one in zip(semel.broadcast_arrays(a, X, 1), np.broadcast_arrays(a, X, 1),
                                 strict=True):  # fmt: skip
        np.testing.assert_array_equal(run(got_one), want_one)


# ------------------------------------------------------------ words of PyTorch


def test_words_for_dtypes_and_shapes() -> None:
    words = ["float", "double", "half", "bfloat16", "long", "int", "short", "char", "byte", "bool"]
    names = [
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
    ]
    assert [getattr(T, word)().dtype.name for word in words] == names
    assert T.type_as(I).dtype == semel.int64
    assert (T.numel(), T.dim(), T.t().shape, T[0].t().shape) == (6, 2, (3, 2), (3,))
    assert T[0].expand_as(T).shape == T.view_as(X).shape == T.reshape_as(X).shape == (2, 3)
    assert T.contiguous() is T
    assert T.detach() is T
    assert T.cpu().tolist() == X.tolist()
    copy = T.clone()
    copy[0] = 0
    assert T.tolist() == X.tolist()
    with pytest.raises(GraphError, match=r"\[t\] needs at most 2 axes, got f32\[1,2,3\]\. x\.mT"):
        T[None].t()


def test_a_size_can_be_called() -> None:
    assert T.size == 6
    assert (T.size(), T.size(0), T.size(-1)) == ((2, 3), 2, 3)
    assert type(pickle.loads(pickle.dumps(T.size))) is int
    assert Tensor(X).reshape(T.size).shape == (6,)
    assert type(T.size // 2) is int
    with pytest.raises(GraphError, match=r"\[size\] axis must lie in \[-2, 2\), got axis=2"):
        T.size(2)
    n = Variable("n", 1)
    assert Tensor.input("x", (n, 2)).size == 2 * n
