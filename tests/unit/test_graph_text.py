"""Graphs as text: printing, parsing back, and the verifier."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import semel.ops  # noqa: F401  (registers the ops)
from semel.errors import GraphError
from semel.ir.expr import Index, Variable, maximum, minimum
from semel.ir.graph import Graph, Node, Storage, make_node
from semel.ir.text import format_dim, format_graph, parse_graph
from semel.ir.types import BFLOAT16, FLOAT32, INT32, INT64, TensorType
from semel.ir.verify import verify_graph
from semel.ops.attrs import (
    CheckIndexAttrs,
    ConstantAttrs,
    ExpandAttrs,
    InputAttrs,
    IotaAttrs,
    PadAttrs,
    ParamAttrs,
    ReduceAttrs,
    ScalarAttrs,
    SliceAttrs,
)

N = Variable("n", 1, 512)
M = Variable("m", 0)


def build_everything() -> Graph:
    x = make_node("input", (), InputAttrs("x : [y]", TensorType((N, 4), FLOAT32)))
    data = np.array([[1, np.nan, -0.0, np.inf]], np.float32)
    c = make_node("constant", (), ConstantAttrs(Storage(data), TensorType((1, 4), FLOAT32)))
    y = make_node("add", [x, make_node("expand", [c], ExpandAttrs((N, 4)))])
    highest = make_node("reduce_max", [y], ReduceAttrs((1,), propagate_nan=False))
    zero = make_node("scalar", (), ScalarAttrs(-0.0, FLOAT32))
    padded = make_node("pad", [y, zero], PadAttrs((2 * (N // 3), 0), (M, 1)))
    numbers = make_node("iota", (), IotaAttrs((3,), 0, INT32))
    checked = make_node("check_index", [numbers], CheckIndexAttrs(N, 'say "}: hi"'))
    weights = Storage(np.array([1, 2]).astype(BFLOAT16.numpy))
    param = make_node("param", (), ParamAttrs("w", weights, TensorType((2,), BFLOAT16)))
    return Graph((highest, padded, checked, param), ("highest", "padded", "checked", "p q"))


def test_graph_prints_as_written() -> None:
    assert format_graph(build_everything()) == (
        "variable m in [0, inf]\n"
        "variable n in [1, 512]\n"
        '%0 = input "x : [y]" : f32[n,4]\n'
        "%1 = constant @0 : f32[1,4] = [1.0, nan, -0.0, inf]\n"
        "%2 = expand %1 {shape=(n, 4)} : f32[n,4]\n"
        "%3 = add %0 %2 : f32[n,4]\n"
        "%4 = reduce_max %3 {axes=(1,), propagate_nan=False} : f32[n,1]\n"
        "%5 = scalar -0.0 : f32[]\n"
        "%6 = pad %3 %5 {before=(2*((n)//(3)), 0), after=(m, 1)} : f32[m + n + 2*((n)//(3)),5]\n"
        "%7 = iota {shape=(3,), axis=0, dtype=i32} : i32[3]\n"
        '%8 = check_index %7 {size=n, where="say \\"}: hi\\""} : i64[3]\n'
        '%9 = param "w" @1 : bf16[2] = [1.0, 2.0]\n'
        'output %4 "highest"\n'
        'output %6 "padded"\n'
        'output %8 "checked"\n'
        'output %9 "p q"\n'
    )


def test_text_round_trips() -> None:
    text = format_graph(build_everything())
    assert format_graph(parse_graph(text)) == text


def test_parsed_graph_without_constants_is_the_same_nodes() -> None:
    x = make_node("input", (), InputAttrs("x", TensorType((N, M), FLOAT32)))
    node = make_node("slice", [x], SliceAttrs((N - 1, 0), (N, M), (-1, 1)))
    graph = Graph((node,), ("y",))
    assert parse_graph(format_graph(graph)) == graph


def test_large_constants_are_named_by_number_only() -> None:
    storage = Storage(np.ones((100,), np.float32))
    node = make_node("constant", (), ConstantAttrs(storage, TensorType((100,), FLOAT32)))
    text = format_graph(Graph((node,)))
    assert text == '%0 = constant @0 : f32[100]\noutput %0 "output0"\n'
    assert parse_graph(text).outputs[0].type == node.type


def test_shared_storage_stays_shared() -> None:
    text = (
        "%0 = constant @3 : i64[1] = [-7]\n"
        '%1 = param "w" @3 : i64[1] = [-7]\n'
        "output %0\noutput %1\n"
    )
    first, second = parse_graph(text).outputs
    assert first.attrs.storage is second.attrs.storage
    assert first.attrs.storage.array.tolist() == [-7]


@pytest.mark.parametrize(
    "dim",
    [
        7, N, N + M, 3 * N * M - 4, -1 * N + 512, 2 * (N // 3), N % 5 - M // 2,
        minimum(N, M + 3) * 2, maximum(N * 2, M) // 4,
    ],
    ids=str,
)  # fmt: skip
def test_dims_round_trip(dim: Any) -> None:
    x = make_node("input", (), InputAttrs("x", TensorType((N, M), FLOAT32)))
    y = make_node("input", (), InputAttrs("y", TensorType((dim,), FLOAT32)))
    graph = parse_graph(format_graph(Graph((x, y))))
    assert graph.outputs[1].type.shape == (dim,)


def test_product_with_a_quotient_prints_without_ambiguity() -> None:
    assert format_dim(2 * (N // 3)) == "2*((n)//(3))"


BAD: list[tuple[str, str]] = [
    ("%0 = nonsense", "line 1 must be a variable, a node or an output"),
    ("%0 = neg %5 : f32[4]", "line 1 uses %5 before it is defined"),
    (
        '%0 = input "x" : f32[4]\n%1 = neg %0 : f32[5]',
        "line 2 declares f32[5] where neg gives f32[4]",
    ),
    ('%0 = input "x" : f32[n]', "unknown value 'n'"),
    ('%0 = input "x" : f99[4]', "dtype must be one of"),
    ('%0 = input "x" : f32[4]\n%1 = frob %0 : f32[4]', "[frob] is not an op"),
    ('%0 = input "x" : f32[4]\n%1 = permute %0 {axis=(0,)} : f32[4]', "unknown attribute 'axis'"),
    ('%0 = input "x" : f32[4]\n%1 = permute %0 {} : f32[4]', "lacks attributes axes"),
    ('%0 = input "x" : f32[4]\n%1 = permute %0 {axes=(} : f32[4]', "cannot be read"),
    ("%0 = scalar abc : f32[]\noutput %0", "a number was expected, got 'abc'"),
]


@pytest.mark.parametrize(("text", "words"), BAD, ids=range(len(BAD)))
def test_unreadable_text_is_refused(text: str, words: str) -> None:
    with pytest.raises(GraphError, match=re.escape(words)):
        parse_graph(text)


# ---------------------------------------------------------------- verify


def broken(node: Node, **fields: Any) -> Graph:
    """A graph around a copy of `node` in which some fields are wrong."""
    copy = Node()
    for name in ("op", "inputs", "attrs", "type", "id", "origins", "rule"):
        setattr(copy, name, fields.get(name, getattr(node, name)))
    return Graph((copy,))


def test_sound_graph_has_no_problems() -> None:
    assert verify_graph(build_everything()) == []


def test_verifier_reports_all_problems() -> None:
    x = make_node("input", (), InputAttrs("x", TensorType((N, 4), FLOAT32)))
    total = make_node("reduce_sum", [x], ReduceAttrs((1,)))
    wrong_type = TensorType((N, 4), INT64)
    assert verify_graph(broken(total, type=wrong_type)) == [
        "%1 reduce_sum: has type i64[n,4], infer gives f32[n,1]."
    ]
    assert verify_graph(broken(total, attrs=ReduceAttrs((5,)))) == [
        "%1 reduce_sum: infer refuses it: "
        "[reduce_sum] axis must lie in [0, 2), got axis=5 for f32[n,4]."
    ]
    assert verify_graph(broken(total, attrs=None)) == [
        "%1 reduce_sum: attrs must be ReduceAttrs, got None."
    ]


def test_verifier_sees_what_is_computed_twice() -> None:
    x = make_node("input", (), InputAttrs("x", TensorType((4,), FLOAT32)))
    node = make_node("neg", [x])
    twin = broken(node).outputs[0]
    assert verify_graph(Graph((node, twin))) == ["%2 neg: is computed twice."]


def test_verifier_sees_loop_indices_in_dims() -> None:
    type_ = TensorType((Index("i", 4),), FLOAT32)
    x = make_node("input", (), InputAttrs("x", type_))
    assert verify_graph(Graph((x,))) == ["%0 input: dim i of f32[i] holds a loop index."]
