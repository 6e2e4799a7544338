"""Other names of an operation, and what an argument is that was left out.

Every row is a call on small data and the same in NumPy. The data of the norms vary so little that
their `eps` decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.ops.windows_reference import np_conv

from semel import Tensor
from semel.ir.graph import Graph
from semel.ops.evaluate import evaluate

Array = np.ndarray[Any, Any]
X = np.array([[-7.5, 3.25, 0.0, 5.5], [2.75, -1.0, 6.0, -4.5], [0.5, 8.0, -0.25, 1.5]], np.float32)
Y = np.array([[2, -2, 3, -4], [-3, 1, 4, 2], [5, -1, 2, 3]], np.float32)
K, L = X.astype(np.int32), Y.astype(np.int32)
B, C = X > 0, Y > 0
#: Three axes of different sizes.
CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4) % 7
#: Rows that vary by about 1e-3: their variance is near the usual eps.
FLAT = (1 + np.arange(12).reshape(2, 6) % 5 * 1e-3).astype(np.float64)
TINY = FLAT - 1  # and rows of about that size
IMAGE = FLAT.reshape(1, 2, 6)
T = Tensor


def run(tensor: Tensor) -> Array:
    return evaluate(Graph((tensor.node,)), {})[0]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def normed(x: Array, axis: int | tuple[int, ...], eps: float) -> Array:
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps)


#: name -> (the operation of two tensors, NumPy)
BINARY: dict[str, tuple[Callable[[Tensor, Any], Tensor], Callable[..., Any]]] = {
    "add": (lambda x, y: x.add(y), np.add),
    "sub": (lambda x, y: x.sub(y), np.subtract),
    "mul": (lambda x, y: x.mul(y), np.multiply),
    "floor_divide": (lambda x, y: x.floor_divide(y), np.floor_divide),
    "remainder": (lambda x, y: x.remainder(y), np.remainder),
    "fmod": (lambda x, y: x.fmod(y), np.fmod),
    "maximum": (lambda x, y: x.maximum(y), np.maximum),
    "minimum": (lambda x, y: x.minimum(y), np.minimum),
    "eq": (lambda x, y: x.eq(y), np.equal),
    "ne": (lambda x, y: x.ne(y), np.not_equal),
    "logical_and": (lambda x, y: x.logical_and(y), np.logical_and),
    "logical_or": (lambda x, y: x.logical_or(y), np.logical_or),
    "logical_xor": (lambda x, y: x.logical_xor(y), np.logical_xor),
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize(("x", "y"), [(X, Y), (K, L)], ids=["float", "int"])
def test_a_method_is_its_operator(name: str, x: Array, y: Array) -> None:
    method, numpy_function = BINARY[name]
    np.testing.assert_array_equal(run(method(T(x), T(y))), numpy_function(x, y), strict=True)
    np.testing.assert_array_equal(run(method(T(x), y)), numpy_function(x, y), strict=True)


def test_methods_of_floats_and_bits() -> None:
    np.testing.assert_array_equal(run(T(X).div(Y)), X / Y)
    np.testing.assert_array_equal(run(T(K).div(L)), (K / L).astype(np.float32))
    np.testing.assert_allclose(run(T(np.abs(X)).pow(Y)), np.abs(X) ** Y, rtol=1e-6)
    np.testing.assert_array_equal(run(T(K).pow(3)), K**3, strict=True)
    np.testing.assert_array_equal(run(T(K).bitwise_not()), ~K, strict=True)
    np.testing.assert_array_equal(run(T(K).logical_not()), K == 0, strict=True)
    for name, want in (("and", B & C), ("or", B | C), ("xor", B ^ C)):
        got = run(getattr(T(B), f"logical_{name}")(C))
        np.testing.assert_array_equal(got, want, strict=True)


#: what is called -> (the call, NumPy)
CALLS: dict[str, tuple[Callable[[], Tensor], Callable[[], Any]]] = {
    # other names
    "amax": (lambda: T(X).amax(0), lambda: X.max(0)),
    "amin": (lambda: T(X).amin(1), lambda: X.min(1)),
    "clamp": (lambda: T(X).clamp(-1, 2), lambda: X.clip(-1, 2)),
    "expand_dims": (lambda: T(X).expand_dims(1), lambda: X[:, None]),
    "repeat_interleave": (lambda: T(X).repeat_interleave(2, 1), lambda: X.repeat(2, 1)),
    "matmul": (lambda: T(X).matmul(Y.T), lambda: X @ Y.T),
    "swish": (lambda: T(X).swish(), lambda: X * sigmoid(X)),
    "quick_gelu": (lambda: T(X).quick_gelu(), lambda: X * sigmoid(1.702 * X)),
    "ones_like": (lambda: T(K).ones_like(), lambda: np.ones_like(K)),
    "zeros_like": (lambda: T(K).zeros_like("float32"), lambda: np.zeros_like(X)),
    "conv3d": (
        lambda: T(CUBE.reshape(1, 1, 2, 3, 4)).conv3d(CUBE[:, :2, :3].reshape(1, 1, 2, 2, 3)),
        lambda: np_conv(CUBE.reshape(1, 1, 2, 3, 4), CUBE[:, :2, :3].reshape(1, 1, 2, 2, 3)),
    ),
    # numbers left out
    "hardtanh": (lambda: T(X).hardtanh(), lambda: X.clip(-1, 1)),
    "hardtanh of its own": (lambda: T(X).hardtanh(-2, 3), lambda: X.clip(-2, 3)),
    "leaky_relu": (lambda: T(X).leaky_relu(), lambda: np.where(X > 0, X, X * np.float32(0.01))),
    "elu": (lambda: T(X).elu(), lambda: np.where(X > 0, X, np.expm1(X))),
    "selu": (
        lambda: T(X).selu(),
        lambda: 1.0507009873554805 * np.where(X > 0, X, 1.6732632423543772 * np.expm1(X)),
    ),
    "softplus": (lambda: T(X).softplus(), lambda: np.log1p(np.exp(X))),
    "softplus, steep": (lambda: T(X).softplus(2), lambda: np.log1p(np.exp(2 * X)) / 2),
    "layer_norm": (lambda: T(FLAT).layer_norm(), lambda: normed(FLAT, -1, 1e-5)),
    "layer_norm of columns": (lambda: T(FLAT).layer_norm(axis=0), lambda: normed(FLAT, 0, 1e-5)),
    "rms_norm": (
        lambda: T(TINY).rms_norm(),
        lambda: TINY / np.sqrt((TINY**2).mean(-1, keepdims=True) + 1e-6),
    ),
    "instance_norm": (lambda: T(IMAGE).instance_norm(), lambda: normed(IMAGE, -1, 1e-5)),
    "group_norm": (lambda: T(IMAGE).group_norm(1), lambda: normed(IMAGE, (1, 2), 1e-5)),
    "batch_norm": (
        lambda: T(IMAGE).batch_norm(np.ones(2), IMAGE.var((0, 2))),
        lambda: (IMAGE - 1) / np.sqrt(IMAGE.var((0, 2)).reshape(2, 1) + 1e-5),
    ),
    "normalize": (
        lambda: T(TINY * 1e-11).normalize(),
        lambda: TINY * 1e-11 / np.maximum(np.linalg.norm(TINY * 1e-11, axis=-1, keepdims=True),
                                          1e-12),
    ),
    "var": (lambda: T(X).var(0), lambda: X.var(0)),
    "std": (lambda: T(X).std(1), lambda: X.std(1)),
    "std of a sample": (lambda: T(X).std(1, correction=1), lambda: X.std(1, ddof=1)),
    "round": (lambda: T(X).round(), X.round),
    "isclose": (
        lambda: T(np.array([1.0, 1.0, 0.0, 0.0])).isclose([1 + 9e-6, 1 + 2e-5, 9e-9, 2e-8]),
        lambda: np.array([True, False, True, False]),
    ),
    # axes left out
    "softmax": (lambda: T(X).softmax(), lambda: np.exp(X) / np.exp(X).sum(-1, keepdims=True)),
    "log_softmax": (
        lambda: T(X).log_softmax(), lambda: X - np.log(np.exp(X).sum(-1, keepdims=True))
    ),
    "glu": (lambda: T(X).glu(), lambda: X[:, :2] * sigmoid(X[:, 2:])),
    "sort": (lambda: T(X).sort(), lambda: np.sort(X, -1)),
    "argsort": (lambda: T(X).argsort(), lambda: np.argsort(X, -1)),
    "topk": (lambda: T(X).topk(2)[0], lambda: -np.sort(-X, -1)[:, :2]),
    "concat": (lambda: T.concat([X, Y]), lambda: np.concatenate([X, Y])),
    "stack": (lambda: T.stack([X, Y]), lambda: np.stack([X, Y])),
    "chunk": (lambda: T(X).chunk(3)[1], lambda: X[1:2]),
    "split": (lambda: T(X).split(3)[1], lambda: X[1:2]),
    "unbind": (lambda: T(X).unbind()[2], lambda: X[2]),
    "flatten": (lambda: T(CUBE).flatten(), lambda: CUBE.reshape(-1)),
    "flatten from": (lambda: T(CUBE).flatten(1), lambda: CUBE.reshape(2, 12)),
    "flatten to": (lambda: T(CUBE).flatten(0, 1), lambda: CUBE.reshape(6, 4)),
    "diagonal": (lambda: T(CUBE).diagonal(), CUBE.diagonal),
    "trace": (lambda: T(X).trace(), lambda: np.trace(X)),
    "cumsum": (lambda: T(X).cumsum(1), lambda: X.cumsum(1)),
    # places and sizes left out
    "arange": (lambda: T.arange(4), lambda: np.arange(4)),
    "arange from": (lambda: T.arange(2, 5), lambda: np.arange(2, 5)),
    "linspace": (lambda: T.linspace(0, 7), lambda: np.linspace(0, 7, dtype=np.float32)),
    "eye": (lambda: T.eye(3), lambda: np.eye(3)),
    "diag": (lambda: T(X[0]).diag(), lambda: np.diag(X[0])),
    "tri": (lambda: T.tri(3, 4), lambda: np.tri(3, 4)),
    "tril": (lambda: T(X).tril(), lambda: np.tril(X)),
    "triu": (lambda: T(X).triu(), lambda: np.triu(X)),
    "pad": (lambda: T(X).pad(1), lambda: np.pad(X, 1)),
    "meshgrid": (lambda: T.meshgrid(X[0], X[1, :2])[0], lambda: np.meshgrid(X[0], X[1, :2])[0]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_what_is_left_out_is_as_in_numpy(name: str) -> None:
    call, want = CALLS[name]
    got, wanted = run(call()), np.asarray(want())
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=1e-6)
