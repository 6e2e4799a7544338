"""Operators of `ai.onnx.ml` against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel.errors import ModelError

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

rng = np.random.default_rng(3)

TREES: dict[str, Any] = {  # two trees: three nodes, and one of a root that is a leaf
    "nodes_treeids": [0, 0, 0, 0, 0, 1],
    "nodes_nodeids": [0, 1, 2, 3, 4, 0],
    "nodes_featureids": [1, 0, 0, 0, 0, 0],
    "nodes_values": [0.2, -0.5, 0.0, 0.0, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_LT", "LEAF", "LEAF", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 3, 0, 0, 0, 0],
    "nodes_falsenodeids": [2, 4, 0, 0, 0, 0],
    "nodes_missing_value_tracks_true": [1, 0, 0, 0, 0, 0],
}


def leaves(prefix: str, ids: list[int]) -> dict[str, Any]:
    """Positive weights: of classes without votes, ONNX Runtime has no score, and we have 0."""
    return {
        f"{prefix}_treeids": [0, 0, 0, 1],
        f"{prefix}_nodeids": [2, 3, 4, 0],
        f"{prefix}_ids": ids,
        f"{prefix}_weights": [1.0, 2.5, 3.0, 0.25],
    }


#: Three classes with 2, 3 and 1 vectors.
VECTORS: dict[str, Any] = {
    "classlabels_ints": [4, 5, 7],
    "vectors_per_class": [2, 3, 1],
    "support_vectors": rng.standard_normal(18).round(2).tolist(),
    "coefficients": rng.standard_normal(12).round(2).tolist(),
    "rho": [0.1, -0.2, 0.05],
    "kernel_params": [0.4, 0.5, 3.0],
}
CHANCES: dict[str, Any] = {"prob_a": [-1.2, -2.0, -0.7], "prob_b": [0.1, 0.3, -0.2]}
TWO: dict[str, Any] = {
    **{k: v for k, v in VECTORS.items() if k == "kernel_params"},
    "classlabels_ints": [0, 1],
    "vectors_per_class": [2, 2],
    "support_vectors": rng.standard_normal(12).round(2).tolist(),
    "coefficients": [1.0, -0.5, 0.25, -2.0],
    "rho": [0.1],
}
LINE: dict[str, Any] = {
    "coefficients": [1.0, -2.0, 0.5],
    "rho": [0.2],
    "kernel_params": [0.0, 0.0, 0.0],
    "kernel_type": "LINEAR",
}

X = np.concatenate([rng.standard_normal((9, 3)), [[0.0, np.nan, 1.0]]]).astype(np.float32)
CASES: dict[str, tuple[str, np.ndarray, int, dict[str, Any]]] = {
    "scaler": ("Scaler", X[:9], 1, {"offset": [0.5, 1.0, 2.0], "scale": [2.0, 0.5, 1.0]}),
    "normalizer_l2": ("Normalizer", X[:9], 1, {"norm": "L2"}),
    "normalizer_l1": ("Normalizer", X[:9], 1, {"norm": "L1"}),
    "imputer": (
        "Imputer",
        X,
        1,
        {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": np.nan},
    ),
    "linear_regressor": (
        "LinearRegressor",
        X[:9],
        1,
        {"targets": 2, "coefficients": [1.0, 2.0, 3.0, -1.0, 0.5, 0.0], "intercepts": [0.1, 0.2]},
    ),
    "linear_classifier": (
        "LinearClassifier",
        X[:9],
        2,
        {
            "classlabels_ints": [4, 5, 7],
            "coefficients": [1.0, 2.0, 3.0, -1.0, 0.5, 0.0, 0.3, -2.0, 1.0],
            "intercepts": [0.1, 0.2, -0.3],
            "post_transform": "SOFTMAX",
        },
    ),
    "more_coefficients_than_features": (
        "LinearClassifier",
        X[:9, :2],
        2,
        {
            "classlabels_ints": [0, 1],
            "coefficients": [1.0, 2.0, 3.0, -1.0, 0.5, 0.0],
            "intercepts": [0.1, 0.2],
        },
    ),
    "svm_of_three": ("SVMClassifier", X[:9], 2, {**VECTORS, "kernel_type": "RBF"}),
    "svm_chances": ("SVMClassifier", X[:9], 2, {**VECTORS, **CHANCES, "kernel_type": "POLY"}),
    "svm_of_two": ("SVMClassifier", X[:9], 2, {**TWO, "kernel_type": "SIGMOID"}),
    "svm_linear": (
        "SVMClassifier",
        X[:9],
        2,
        {**LINE, "classlabels_ints": [2, 3, 4], "coefficients": LINE["coefficients"] * 3},
    ),
    "svm_regressor": (
        "SVMRegressor",
        X[:9],
        1,
        {
            "kernel_type": "RBF",
            "kernel_params": [0.4, 0.0, 3.0],
            "n_supports": 2,
            "support_vectors": [1.0, 2.0, 0.5, -1.0, 0.0, 0.3],
            "coefficients": [1.5, -2.0],
            "rho": [0.3],
        },
    ),
    "svm_one_class": ("SVMRegressor", X[:9], 1, {**LINE, "one_class": 1}),
    "one_hot": ("OneHotEncoder", np.array([[3, 1], [2, 9]]), 1, {"cats_int64s": [1, 2, 3]}),
    "labels": (
        "LabelEncoder",
        np.array([5, 7, 9]),
        1,
        {"keys_int64s": [5, 9], "values_floats": [0.5, 0.9], "default_float": -7.0},
    ),
    "tree_regressor": (
        "TreeEnsembleRegressor",
        X,
        1,
        {**TREES, **leaves("target", [0, 0, 0, 0]), "n_targets": 1, "base_values": [1.0]},
    ),
    "tree_classifier": (
        "TreeEnsembleClassifier",
        X,
        2,
        {
            **TREES,
            **leaves("class", [0, 1, 2, 1]),
            "classlabels_int64s": [3, 4, 8],
            "post_transform": "SOFTMAX",
        },
    ),
    "binary_tree_classifier": (
        "TreeEnsembleClassifier",
        X,
        2,
        {
            **TREES,
            **leaves("class", [0, 0, 0, 0]),
            "classlabels_int64s": [3, 4],
            "post_transform": "LOGISTIC",
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_onnx_runtime_computes(name: str) -> None:
    op, x, outputs, attrs = CASES[name]
    helper, names = onnx.helper, [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, ["x"], names, domain="ai.onnx.ml", **attrs)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    given = helper.make_tensor_value_info("x", kind, ["rows", *x.shape[1:]])
    graph = helper.make_graph([node], "g", [given], [onnx.ValueInfoProto(name=n) for n in names])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString())
    compiled = semel.load(model, threads=1)
    for rows in (len(x), 1):
        for n, want in zip(names, session.run(None, {"x": x[-rows:]}), strict=True):
            found = compiled.run(x[-rows:])[n]
            assert (found.dtype, found.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_random_numbers_differ_between_runs_unless_they_have_a_seed() -> None:
    helper = onnx.helper
    nodes = [
        helper.make_node("RandomNormal", [], ["a"], shape=[1000], mean=2.0, scale=3.0),
        helper.make_node("RandomUniform", [], ["b"], shape=[1000], low=-1.0, high=3.0, seed=1.0),
        helper.make_node("Multinomial", ["logits"], ["c"], sample_size=500, dtype=7),
    ]
    logits = np.log(np.array([[0.1, 0.6, 0.3]], np.float32))
    given = helper.make_tensor_value_info("logits", 1, [1, 3])
    made = [onnx.ValueInfoProto(name=n) for n in "abc"]
    graph = helper.make_graph(nodes, "g", [given], made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    compiled = semel.load(model, threads=1)
    one, other = compiled.run(logits), compiled.run(logits)
    assert not np.array_equal(one["a"], other["a"]) and np.array_equal(one["b"], other["b"])
    assert abs(one["a"].mean() - 2) < 0.4 and abs(one["a"].std() - 3) < 0.4
    assert one["b"].min() >= -1 and one["b"].max() < 3 and abs(one["b"].mean() - 1) < 0.2
    shares = np.bincount(one["c"].reshape(-1), minlength=3) / 500
    assert one["c"].shape == (1, 500) and np.abs(shares - [0.1, 0.6, 0.3]).max() < 0.1


def forest(**changed: Any) -> Any:
    """One tree: x[0] <= 0.5 gives 1, else 10."""
    helper, tensor = onnx.helper, onnx.numpy_helper.from_array
    attrs = {
        "nodes_splits": tensor(np.array([0.5], np.float32)),
        "nodes_modes": tensor(np.array([0], np.uint8)),
        "nodes_featureids": [0],
        "nodes_truenodeids": [0],
        "nodes_trueleafs": [1],
        "nodes_falsenodeids": [1],
        "nodes_falseleafs": [1],
        "leaf_targetids": [0, 0],
        "leaf_weights": tensor(np.array([1, 10], np.float32)),
        "tree_roots": [0],
        **changed,
    }
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", **attrs)
    given = helper.make_tensor_value_info("x", 1, ["n", 1])
    graph = helper.make_graph([node], "g", [given], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 5)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tree_roots": [-1]}, r"tree_roots must be in \[0, 1\), got -1"),
        ({"nodes_falsenodeids": [-1]}, r"ids of leaves must be in \[0, 2\), got -1"),
        ({"nodes_trueleafs": [0], "nodes_truenodeids": [3]}, r"nodes below must be in \[0, 1\)"),
        ({"leaf_targetids": [0, -1]}, r"leaf_targetids must be in \[0, 1\), got -1"),
        ({"nodes_featureids": [-1]}, "nodes_featureids must be at least 0, got -1"),
    ],
)
def test_a_tree_names_what_is_there(changed: dict[str, Any], message: str) -> None:
    x = np.array([[0.0], [1.0]], np.float32)
    assert semel.load(forest(), threads=1).run(x)["y"].tolist() == [[1], [10]]
    with pytest.raises(ModelError, match=message):
        semel.load(forest(**changed), threads=1).run(x)


def test_a_node_on_the_host_that_means_nothing_is_refused() -> None:
    attrs = {"keys_strings": ["a", "b"], "values_int64s": [0, 1]}
    helper = onnx.helper
    node = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **attrs)
    node.attribute.append(onnx.AttributeProto(name="default_int64"))  # of no type
    given = helper.make_tensor_value_info("x", onnx.TensorProto.STRING, ["n"])
    graph = helper.make_graph([node], "g", [given], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 4)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    with pytest.raises(ModelError, match="'LabelEncoder' cannot be read: KeyError"):
        semel.load(model, threads=1)
