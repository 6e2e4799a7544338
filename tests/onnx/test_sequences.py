"""Sequences that loops build, as exporters write lists of Python, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel.errors import UnsupportedError

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(15)

#: `for i in range(n): state = tanh(state + x[i]); o.append(state); p.append(x[i] * x[i])`
BUILD = """
    yes = Constant <value = bool {1}> ()
    zero = Constant <value_int = 0> ()
    shape = Shape (x)
    t = Gather (shape, zero)
    none = SequenceEmpty ()
    last, o, p, sums = Loop (COUNT, yes, h, none, none) <body = each (i, c, s, a, b)
        => (go, next, a2, b2, sum) {
        go = Identity (c)
        row = Gather (x, i)
        moved = Add (s, row)
        next = Tanh (moved)
        a1 = SequenceInsert (a, next)
        a2 = Identity (a1)
        square = Mul (row, row)
        b2 = SequenceInsert (b, square)
        sum = ReduceSum <keepdims = 0> (next)
    }>
"""

INPUTS = "float[t, 4] x, float[4] h, int64 k"


def parsed(outputs: str, text: str, count: str = "t", build: str = BUILD) -> Any:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g ({INPUTS}) => ({outputs}) {{ {build.replace("COUNT", count)} {text} }}"""
    )
    each = next(node for node in model.graph.node if node.op_type == "Loop").attribute[0].g
    kind = onnx.helper.make_sequence_type_proto
    tensor = onnx.helper.make_tensor_type_proto
    types = [tensor(7, []), tensor(9, []), tensor(1, [4])]
    types += [kind(tensor(1, [4]))] * 2
    for given, each_type in zip(each.input, types, strict=True):
        given.type.CopyFrom(each_type)
    for output, each_type in zip(each.output, [*types[1:], tensor(1, [])], strict=True):
        output.type.CopyFrom(each_type)
    return model


def feed(t: int, k: int = 0) -> dict[str, Array]:
    x, h = rng.standard_normal((2, t, 4), dtype=np.float32)[0], np.ones(4, np.float32)
    return {"x": x, "h": h, "k": np.array(k)}


def check(model: Any, *feeds: dict[str, Array]) -> int:
    """Compare; how many graphs were compiled."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    theirs = ort.InferenceSession(model.SerializeToString(), options)
    compiled: Any = semel.load(model, threads=1)
    for each in feeds:
        found = compiled.run({name: each[name] for name in compiled_inputs(compiled)})
        names = {given.name for given in theirs.get_inputs()}
        wanted = theirs.run(None, {name: x for name, x in each.items() if name in names})
        for output, want in zip(theirs.get_outputs(), wanted, strict=True):
            _compare(found[output.name], want)
    return sum(form.plan.compile_count for form in getattr(compiled, "forms", (compiled,)))


def compiled_inputs(compiled: Any) -> list[str]:
    return list(getattr(compiled, "input_names", None) or compiled.inputs)


def _compare(found: Any, want: Any) -> None:
    if isinstance(want, list):
        assert len(found) == len(want)
        for one, other in zip(found, want, strict=True):
            _compare(one, other)
        return
    assert found.shape == want.shape and found.dtype == want.dtype
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


JOINED = {
    "stacked": "y = ConcatFromSequence <axis = 0, new_axis = 1> (o)",
    "stacked last": "y = ConcatFromSequence <axis = -1, new_axis = 1> (o)",
    "concatenated": "y = ConcatFromSequence <axis = 0> (p)",
    "concatenated last": "y = ConcatFromSequence <axis = -1> (p)",
    "both": """
        y0 = ConcatFromSequence <axis = 1, new_axis = 1> (o)
        y1 = ConcatFromSequence <axis = 1, new_axis = 1> (p)
        y = Concat <axis = 0> (y0, y1)""",
    "first": "y = SequenceAt (o, zero)",
    "last": "m = Constant <value_int = -1> () y = SequenceAt (o, m)",
    "one of a run": "d = Cast <to = 7> (k) y = SequenceAt (p, d)",
    "length": "y = SequenceLength (o)",
}


@pytest.mark.parametrize("name", JOINED)
def test_what_loops_append_is_one_tensor(name: str) -> None:
    """One graph for all lengths; the other state and what is collected stay what they were."""
    outputs = "int64 y" if name == "length" else "float y"
    model = parsed(f"{outputs}, float[4] last, float[n] sums", JOINED[name])
    model.graph.output[0].type.tensor_type.ClearField("shape")
    count = check(model, *(feed(t, k) for t, k in ((6, 2), (9, 5), (1, 0), (3, -1))))
    assert count == 1


def test_the_count_may_be_data() -> None:
    text = "y = ConcatFromSequence <axis = 0, new_axis = 1> (o)"
    model = parsed("float[a, b] y", text, count="n")
    first = onnx.helper.make_node("ReduceMax", ["k1"], ["n"], keepdims=0)
    model.graph.node.insert(0, first)
    model.graph.input.append(onnx.helper.make_tensor_value_info("k1", 7, ["q"]))
    feeds = [{**feed(40), "k1": np.arange(k + 1)} for k in (3, 7, 1, 30)]
    assert check(model, *feeds) == 1


ONE_BY_ONE = {
    "an output": ("seq(float[4]) o, float[4] last", ""),
    "one more": (
        "float[a, b] y",
        "q = SequenceInsert (o, h, zero) y = ConcatFromSequence <axis = 0, new_axis = 1> (q)",
    ),
    "one less": (
        "float[a, b] y",
        "r = SequenceInsert (o, h) q = SequenceErase (r) "
        "y = ConcatFromSequence <axis = 0, new_axis = 1> (q)",
    ),
}


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_what_treats_items_one_by_one_has_a_form_for_each_length(name: str) -> None:
    outputs, text = ONE_BY_ONE[name]
    assert check(parsed(outputs, text), *(feed(t) for t in (4, 2, 4, 1))) == 3


def other_body(old: str, new: str) -> Any:
    """The model with something else in the body."""
    text = "y = ConcatFromSequence <axis = 0, new_axis = 1> (o)"
    assert old in BUILD
    return parsed("float[a, b] y", text, build=BUILD.replace(old, new))


OTHERS = {
    "two": ("a2 = Identity (a1)", "a2 = SequenceInsert (a1, row)"),
    "at the front": ("a1 = SequenceInsert (a, next)", "a1 = SequenceInsert (a, next, zero)"),
    "its length": (
        "moved = Add (s, row)",
        "len = SequenceLength (a) l = Cast <to = 1> (len) r = Add (s, l) moved = Add (r, row)",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_bodies_that_do_more_than_append_are_written_out(name: str) -> None:
    """One form for each number of iterations."""
    assert check(other_body(*OTHERS[name]), *(feed(t) for t in (4, 2, 4, 1))) == 3


def test_a_count_that_data_decides_is_not_written_out() -> None:
    model = other_body(*OTHERS["two"])
    model.graph.node.insert(4, onnx.helper.make_node("NonZero", ["x"], ["nz"]))
    model.graph.node.insert(5, onnx.helper.make_node("Size", ["nz"], ["size"]))
    loop = next(node for node in model.graph.node if node.op_type == "Loop")
    loop.input[0] = "size"
    with pytest.raises(
        UnsupportedError, match="a size that decides what is computed must be known"
    ):
        semel.load(model)
