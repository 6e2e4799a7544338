"""Sparse tensors: initializers and constants, against the dense ones that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel.errors import ModelError

onnx = pytest.importorskip("onnx")

W = np.zeros((3, 4), np.float32)
W[0, 1], W[2, 3], W[2, 0] = 1, 2, 3
X = np.arange(6, dtype=np.float32).reshape(2, 3)
FLAT = np.array([1, 8, 11])
PAIRS = np.array([[0, 1], [2, 0], [2, 3]])


def sparse(places: Any, values: Any = (1, 3, 2), dims: Any = (3, 4), name: str = "w") -> Any:
    made = onnx.SparseTensorProto(dims=dims)
    made.values.CopyFrom(onnx.numpy_helper.from_array(np.array(values, np.float32), name))
    made.indices.CopyFrom(onnx.numpy_helper.from_array(np.asarray(places)))
    return made


def model(text: str) -> Any:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')


def product(tensor: Any) -> Any:
    made = model("(float[n, 3] x) => (float[n, 4] y) { y = MatMul (x, w) }")
    made.graph.sparse_initializer.append(tensor)
    return made


@pytest.mark.parametrize("places", [FLAT, PAIRS], ids=["flat", "by axis"])
def test_a_sparse_initializer_is_a_param(places: Any) -> None:
    compiled = semel.load(product(sparse(places)))
    assert list(compiled.params) == ["w"]
    np.testing.assert_array_equal(compiled.run(X)["y"], X @ W)
    compiled.set_param("w", 2 * W)
    np.testing.assert_array_equal(compiled.run(X)["y"], X @ W * 2)


def test_a_sparse_constant() -> None:
    made = model(
        "(float[n, 3] x) => (float[n, 4] y) { w = Constant <value_int = 1> () y = MatMul (x, w) }"
    )
    del made.graph.node[0].attribute[:]
    constant = onnx.helper.make_attribute("sparse_value", sparse(PAIRS, name=""))
    made.graph.node[0].attribute.append(constant)
    np.testing.assert_array_equal(semel.load(made).run(X)["y"], X @ W)


def test_a_sparse_initializer_of_a_branch() -> None:
    made = model(
        """(float[n, 3] x, bool c) => (float[n, 4] y) {
            y = If (c) <then_branch = a () => (p) { p = MatMul (x, w) },
                        else_branch = b () => (q) { r = MatMul (x, w) q = Neg (r) }>
        }"""
    )
    for attribute in made.graph.node[0].attribute:
        attribute.g.sparse_initializer.append(sparse(FLAT))
    compiled: Any = semel.load(made)
    for truth, sign in ((True, 1), (False, -1)):
        np.testing.assert_array_equal(compiled.run(X, np.array(truth))["y"], X @ W * sign)


DAMAGED = {
    "behind the end": (sparse([1, 8, 12]), "must have indices and dims that fit"),
    "below 0": (sparse([1, -1, 11]), "must have indices and dims that fit"),
    "a row below 0": (sparse([[0, 1], [-1, 0], [2, 3]]), "must have indices and dims that fit"),
    "a row too much": (sparse([[0, 1], [3, 0], [2, 3]]), "must have indices and dims that fit"),
    "too few": (sparse([1, 8]), r"must have int64 indices of shape \[3\], got \[2\]"),
    "too many axes": (sparse(np.zeros((3, 3), np.int64)), r"of shape \[3, 2\], got \[3, 3\]"),
    "fractions": (sparse([0.5, 1.0, 2.0]), "must have int64 indices"),
    "dims below 0": (sparse(FLAT, dims=(-3, 4)), "must have a list of values"),
    "huge": (sparse(FLAT, dims=(2**40, 2**40)), "must have indices and dims that fit"),
    "values of an axis more": (sparse(FLAT, values=[[1], [2], [3]]), "must have a list of values"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_sparse_tensors_are_refused(name: str) -> None:
    tensor, message = DAMAGED[name]
    with pytest.raises(ModelError, match=message):
        semel.load(product(tensor))
