"""Models with text and dictionaries: classifiers as they are exported, n-grams of words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel.errors import InputError

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

rng = np.random.default_rng(8)
ML = "ai.onnx.ml"
X = rng.standard_normal((9, 3)).astype(np.float32)
LABELS = ["ant", "bee", "cat"]


def model(nodes: list[Any], inputs: dict[str, Any], outputs: list[str], **weights: Any) -> Any:
    """These nodes, each a tuple of an operator, inputs, outputs and attributes."""
    made = [
        onnx.helper.make_node(op, ins, outs, domain=ML if op in ML_OPS else "", **attributes)
        for op, ins, outs, attributes in nodes
    ]
    kinds = onnx.helper.make_tensor_value_info
    types = {"U": onnx.TensorProto.STRING, "f": onnx.TensorProto.FLOAT}
    given = [kinds(name, types[x.dtype.kind], ["n", *x.shape[1:]]) for name, x in inputs.items()]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    tensors = [onnx.numpy_helper.from_array(np.array(w), name) for name, w in weights.items()]
    graph = onnx.helper.make_graph(made, "g", given, results, tensors)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(ML, 3)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


ML_OPS = {
    "ArrayFeatureExtractor", "LinearClassifier", "OneHotEncoder", "SVMClassifier",
    "TreeEnsembleClassifier", "ZipMap",
}  # fmt: skip


def agree(made: Any, inputs: dict[str, Any], outputs: list[str]) -> None:
    """What ONNX Runtime computes, for all rows and for one."""
    session = ort.InferenceSession(made.SerializeToString())
    compiled: Any = semel.load(made, threads=1)
    for rows in (9, 1):
        feed = {name: x[:rows] for name, x in inputs.items()}
        words = {n: x.astype(object) if x.dtype.kind == "U" else x for n, x in feed.items()}
        found = compiled.run(feed)
        for name, want in zip(outputs, session.run(None, words), strict=True):
            compare(found[name], want)
    assert compiled.compile_count == 1


def compare(found: Any, want: Any) -> None:
    if isinstance(want, list):
        for one, other in zip(found, want, strict=True):
            assert one == pytest.approx(other, rel=1e-5, abs=1e-6)
    elif want.dtype.kind in "OU":
        assert found.astype(object).tolist() == want.tolist()
    else:
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


LINEAR: dict[str, Any] = {
    "coefficients": [1.0, 2.0, 3.0, -1.0, 0.5, 0.0, 0.3, -2.0, 1.0],
    "intercepts": [0.1, 0.2, -0.3],
    "post_transform": "SOFTMAX",
}


def test_a_classifier_with_labels_of_text_and_dictionaries() -> None:
    nodes = [
        ("LinearClassifier", ["x"], ["label", "p"], {"classlabels_strings": LABELS, **LINEAR}),
        ("ZipMap", ["p"], ["chances"], {"classlabels_strings": LABELS}),
    ]
    outputs = ["label", "chances"]
    agree(model(nodes, {"x": X}, outputs), {"x": X}, outputs)


def test_dictionaries_by_number() -> None:
    nodes = [
        ("LinearClassifier", ["x"], ["label", "p"], {"classlabels_ints": [3, 5, 9], **LINEAR}),
        ("ZipMap", ["p"], ["chances"], {"classlabels_int64s": [3, 5, 9]}),
    ]
    outputs = ["label", "chances"]
    agree(model(nodes, {"x": X}, outputs), {"x": X}, outputs)


def test_labels_that_are_gathered_and_cast() -> None:
    """What depends on text that numbers have chosen is the host's as well."""
    nodes = [
        ("ArgMax", ["x"], ["best"], {"axis": 1, "keepdims": 0}),
        ("ArrayFeatureExtractor", ["labels", "best"], ["row"], {}),
        ("Cast", ["row"], ["cast"], {"to": onnx.TensorProto.STRING}),
        ("Reshape", ["cast", "flat"], ["label"], {}),
        ("Softmax", ["x"], ["p"], {"axis": 1}),
    ]
    made = model(nodes, {"x": X}, ["label", "p"], labels=LABELS, flat=np.array([-1]))
    agree(made, {"x": X}, ["label", "p"])


def test_categories_of_text_and_numbers_from_them() -> None:
    words = np.array([["ant", "cat"], ["cow", "bee"], ["bee", "ant"]] * 3)
    nodes = [
        ("OneHotEncoder", ["w"], ["hot"], {"cats_strings": LABELS, "zeros": 1}),
        ("ReduceSum", ["hot", "last"], ["y"], {"keepdims": 0}),
    ]
    agree(model(nodes, {"w": words}, ["y"], last=np.array([1])), {"w": words}, ["y"])


@pytest.mark.parametrize("is_flat", [True, False], ids=["a vector", "rows"])
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_n_grams_of_words(mode: str, is_flat: bool) -> None:
    words = rng.choice(["a", "b", "c", "d"], (9,) if is_flat else (9, 6))
    attributes = {
        "mode": mode,
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 2,
        "pool_strings": ["a", "b", "c", "a", "b", "b", "c"],
        "ngram_counts": [0, 3],
        "ngram_indexes": [2, 0, 1, 4, 3],
        "weights": [0.5, 1.0, 2.0, 3.0, 4.0],
    }
    nodes = [("TfIdfVectorizer", ["w"], ["t"], attributes), ("Neg", ["t"], ["y"], {})]
    agree(model(nodes, {"w": words}, ["y"]), {"w": words}, ["y"])


def test_n_grams_of_numbers_have_weights_in_the_order_of_the_pool() -> None:
    x = np.array([[1, 2, 1], [2, 2, 3]])
    node = onnx.helper.make_node(
        "TfIdfVectorizer",
        ["x"],
        ["y"],
        mode="TFIDF",
        min_gram_length=1,
        max_gram_length=1,
        max_skip_count=0,
        pool_int64s=[1, 2, 3],
        ngram_counts=[0],
        ngram_indexes=[2, 0, 1],
        weights=[10.0, 20.0, 30.0],
    )
    given = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.INT64, ["n", "m"])
    graph = onnx.helper.make_graph([node], "g", [given], [onnx.ValueInfoProto(name="y")])
    made = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )
    (want,) = ort.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(semel.load(made).run(x)["y"], want)


def test_scores_without_labels_are_refused() -> None:
    made = model([("ZipMap", ["x"], ["y"], {"classlabels_int64s": [1, 2]})], {"x": X}, ["y"])
    with pytest.raises(InputError, match="a row has 3 scores for 2 labels"):
        semel.load(made).run(X)
