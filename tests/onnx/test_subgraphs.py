"""Sub-graphs and local functions: nested, with captured values, against others.

The official suite has ten cases of control flow, none nested, and no local function at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel.errors import UnsupportedError

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
ReferenceEvaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(15)


def check(text: str, *feeds: dict[str, Array], compiles: int = 1, **weights: Array) -> Any:
    """Run a model that is written as text on all feeds, and compare."""
    model = onnx.parser.parse_model(text)
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    model.graph.initializer.extend(tensors)
    onnx.checker.check_model(model)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        theirs: Any = ort.InferenceSession(model.SerializeToString(), options)
        theirs.run(None, feeds[0])
    except Exception:  # it wants the shapes of all states of a loop
        theirs = ReferenceEvaluator(model)
    names = [output.name for output in model.graph.output]
    compiled: Any = semel.load(model, threads=1)
    for feed in feeds:
        found = compiled.run(feed)
        for name, expected in zip(names, theirs.run(None, feed), strict=True):
            assert (found[name].dtype, found[name].shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)
    graphs = getattr(compiled, "forms", (compiled,))
    assert sum(graph.plan.compile_count for graph in graphs) == compiles
    return compiled


def floats(*shape: int) -> Array:
    return rng.standard_normal(shape, dtype=np.float32)


def test_an_if_in_a_loop_in_a_function_with_captured_values() -> None:
    """The branches read the loop's state, the function's input and a value before the loop."""
    check(
        """
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[n, 4] x, int64 trips) => (float[n, 4] y, float[k, n] means) {
            y, means = own.steps <gain: float = 0.5> (x, trips)
        }
        <domain: "own", opset_import: ["" : 17]>
        steps <gain> (x, trips) => (out, means) {
            scale = Constant <value_float: float = @gain> ()
            doubled = Add (x, x)
            yes = Constant <value = bool {1}> ()
            limit = Constant <value = float {0.25}> ()
            out, means = Loop (trips, yes, x) <body = each (i, c, state) => (go, next, mean) {
                go = Identity (c)
                size = ReduceMean <keepdims = 0> (state)
                is_large = Greater (size, limit)
                next = If (is_large) <
                    then_branch = small () => (a) { a = Mul (state, scale) },
                    else_branch = large () => (b) { t = Mul (doubled, scale)  b = Add (state, t) }
                >
                mean = ReduceMean <axes = [1], keepdims = 0> (next)
            }>
        }
        """,
        *({"x": floats(n, 4), "trips": np.array(k)} for n, k in ((3, 4), (5, 1), (2, 7))),
    )


def test_functions_call_functions_and_take_attributes() -> None:
    check(
        """
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[n, m] x) => (float[n, m] y, float[n, m] z) {
            y = own.outer <slope: float = 0.1, axis: int = 1> (x)
            z = own.outer <slope: float = 0.3, axis: int = 0> (y)
        }
        <domain: "own", opset_import: ["" : 17, "own" : 1]>
        outer <slope, axis> (x) => (y) {
            a = own.inner <alpha: float = @slope> (x)
            y = Softmax <axis: int = @axis> (a)
        }
        <domain: "own", opset_import: ["" : 17]>
        inner <alpha> (x) => (y) {
            t = LeakyRelu <alpha: float = @alpha> (x)
            y = Mul (t, t)
        }
        """,
        {"x": floats(3, 4)},
        {"x": floats(2, 6)},
    )


def test_a_while_as_exporters_write_it() -> None:
    """The number of iterations is a state that is compared; others are carried unchanged."""
    check(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n] x, int64 end) => (float[n] y, int64 i) {
            most = Constant <value = int64 {9223372036854775807}> ()
            zero = Constant <value = int64 {0}> ()
            one = Constant <value = int64 {1}> ()
            first = Less (zero, end)
            i, same, last, y = Loop (most, first, zero, end, x, x)
            <body = each (number, c, at, to, kept, state) => (go, next_at, next_to, again, next) {
                next_at = Add (at, one)
                next_to = Identity (to)
                again = Identity (kept)
                next = Add (state, kept)
                go = Less (next_at, to)
            }>
        }
        """,
        *({"x": floats(n), "end": np.array(k)} for n, k in ((3, 4), (5, 1), (4, 0), (2, 9))),
    )


def test_a_recurrent_layer_in_the_body_of_a_loop() -> None:
    """Weights lie outside of the loop; the states of the layer are those of the loop."""
    check(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[t, b, 3] x, int64 trips) => (float[1, b, 2] h, float[1, b, 2] c)
        <float[1, 8, 3] w, float[1, 8, 2] r, float[1, 1, 2] zero>
        {
            yes = Constant <value = bool {1}> ()
            shape = Shape <start = 1, end = 2> (x)
            one = Constant <value_ints = [1]> ()
            two = Constant <value_ints = [2]> ()
            wanted = Concat <axis = 0> (one, shape, two)
            first = Expand (zero, wanted)
            h, c = Loop (trips, yes, first, first) <body = each (i, go, h0, c0) => (on, h1, c1) {
                on = Identity (go)
                y, h1, c1 = LSTM <hidden_size = 2> (x, w, r, , , h0, c0)
            }>
        }
        """,
        *(
            {"x": floats(t, b, 3), "trips": np.array(k)}
            for t, b, k in ((4, 2, 3), (1, 1, 1), (2, 3, 2))
        ),
        w=floats(1, 8, 3),
        r=floats(1, 8, 2),
        zero=np.zeros((1, 1, 2), np.float32),
    )


def test_branches_in_branches_see_everything_around_them() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n] x, bool p, bool q) => (float[n] y) {
            a = Neg (x)
            y = If (p) <
                then_branch = t () => (r) {
                    b = Abs (a)
                    r = If (q) <
                        then_branch = tt () => (s) { s = Add (b, x) },
                        else_branch = tf () => (u) { u = Mul (b, a) }
                    >
                },
                else_branch = f () => (v) { v = Identity (a) }
            >
        }
        """
    flags = [np.array(flag) for flag in (False, True)]
    check(text, *({"x": floats(3 + i), "p": p, "q": q} for i, p in enumerate(flags) for q in flags))


def test_branches_of_one_element_may_differ_in_rank() -> None:
    """A scalar on one side, a vector on the other: the higher rank serves both."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n] x, bool p) => (float[n] y) {
            z = If (p) <
                then_branch = t () => (r) { r = Constant <value_float = 2.0> () },
                else_branch = f () => (v) { k = Constant <value_ints = [0]> () v = Gather (x, k) }
            >
            y = Mul (x, z)
        }
        """
    check(text, *({"x": floats(n), "p": np.array(p)} for n, p in ((3, True), (4, False))))


def test_states_that_a_loop_only_writes_may_begin_as_anything() -> None:
    """Exporters begin them as the number 0; one that is read gains an axis of size 1."""
    check(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n] x) => (float[n] doubled, float[n] sum) {
            yes = Constant <value = bool {1}> ()
            count = Constant <value_int = 50> ()
            unset = Constant <value_float = 0.0> ()
            no = Constant <value = bool {0}> ()
            doubled, sum, ended = Loop (count, yes, unset, x, no) <
                body = b (i, c, d, s, e) => (go, d1, s1, e1) {
                    s1 = Add (s, x)
                    d1 = Add (s1, s1)
                    large = ReduceMax <keepdims = 1> (s1)
                    limit = Constant <value_float = 9.0> ()
                    is_large = Greater (large, limit)
                    e1 = Or (e, is_large)
                    over = Squeeze (e1)
                    go = Not (over)
                }
            >
        }
        """,
        *({"x": np.abs(floats(n)) + 1} for n in (3, 5)),
    )


def test_a_state_that_changes_its_shape_is_refused_where_data_says_if_a_loop_begins() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 3] x) => (float[n, 3] y) {
            unset = Constant <value_float = 0.0> ()
            two = Constant <value_int = 2> ()
            m = ReduceMax <keepdims = 0> (x)
            p = Greater (m, unset)
            y = Loop (two, p, unset) <
                body = b (i, c, d) => (go, d1) { go = Identity (c) d1 = Add (x, x) }
            >
        }
        """)
    with pytest.raises(UnsupportedError, match=r"Loop 'y'\] its condition comes from data"):
        semel.load(model)


def test_all_that_is_not_supported_is_said_at_once() -> None:
    """In functions and sub-graphs as well; with names, operators and versions."""
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17, "own" : 1, "other" : 1]>
        g (float[n] x, bool p) => (float[n] y) {
            [one] a = other.Thing (x)
            [two] b = own.f (x)
            c = Add (a, b)
            y = If (p) <
                then_branch = t () => (r) { [three] r = other.Third (x) },
                else_branch = f () => (v) { v = Identity (c) }
            >
        }
        <domain: "own", opset_import: ["" : 17, "other" : 1]>
        f (x) => (y) { y = other.Else (x) }
        """
    )
    with pytest.raises(UnsupportedError, match=r"Thing 'one'(?s:.*)Else(?s:.*)Third 'three'"):
        semel.load(model)


def test_what_reads_a_refused_node_is_said_as_well() -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17, "own" : 1, "com.microsoft.nchwc" : 1]>
        g (float[n] x, bool p) => (float[n] z) {
            [one] a = own.Bar (x)
            [two] b = com.microsoft.nchwc.Conv (a)
            c = Relu (b)
            [three] y = own.Baz (c)
            z = If (p) <
                then_branch = t () => (r) { [four] r = own.Then (x) },
                else_branch = f () => (v) { [five] v = own.Else (x) }
            >
        }
        """
    )
    with pytest.raises(UnsupportedError, match="5 nodes are not supported") as caught:
        semel.load(model)
    said = vars(caught.value)
    assert said["nodes"] == ["one", "two", "three", "four", "five"]
    (layout,) = (text for text in said["refused"] if "'two'" in text)
    assert "ORT_ENABLE_EXTENDED" in layout
    assert all("Export the model" in text for text in said["refused"] if text != layout)


def test_what_no_run_can_do_without_is_refused_before_contents_are_asked_for() -> None:
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[n] x, int64[1] axes) => (float[n] y) {
            a = ReduceSum (x, axes)
            [one] y = own.Bar (a)
        }
        """
    )
    with pytest.raises(UnsupportedError, match="Bar 'one'"):
        semel.load(model)


def test_functions_of_another_version_than_the_model() -> None:
    """They are walked in their own version; sub-graphs in them see the attributes of a call."""
    check(
        """
        <ir_version: 8, opset_import: ["" : 18, "own" : 1]>
        g (float[n, 4] x) => (float[n, k] y) {
            s = own.scaled <by: float = 3.0> (x)
            t = own.scaled (s)
            y = ReduceSum <keepdims = 1> (t)
        }
        <domain: "own", opset_import: ["" : 16]>
        scaled <by: float = 0.5> (x) => (y) {
            sum = Abs (x)
            all = ReduceSum <keepdims = 0> (x)
            zero = Constant <value_float = 0.0> ()
            p = Greater (all, zero)
            y = If (p) <
                then_branch = a () => (r) {
                    k = Constant <value_float: float = @by> ()
                    r = Mul (sum, k)
                },
                else_branch = b () => (v) { v = Neg (sum) }
            >
        }
        """,
        {"x": np.abs(floats(3, 4))},
        {"x": -np.abs(floats(2, 4))},
    )


TWO_SIDES = """
    y = If (c) <
        then_branch = a () => (float[u, 4] y1) {
            begin = Constant <value_ints = [0]> ()
            end = Constant <value_ints = [4]> ()
            y1 = Slice (x, begin, end)
        },
        else_branch = b () => (float[v, 4] y2) { y2 = Concat <axis = 0> (x, x) }
    >
"""


def test_sides_whose_sizes_might_agree_are_chosen_by_sizes() -> None:
    """min(4, t) and 2 t are equal for one t only: two graphs, each with one of the sides."""
    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[t, 4] x) => (float[s, 4] y) {{
            shape = Shape (x)
            zero = Constant <value_int = 0> ()
            n = Gather (shape, zero)
            four = Constant <value_int = 4> ()
            c = Greater (n, four)
            {TWO_SIDES}
        }}
    """
    check(text, *({"x": floats(t, 4)} for t in (6, 3, 2, 4, 5, 1)), compiles=2)


@pytest.mark.parametrize("shape", ["", "1"])
def test_sides_whose_sizes_might_agree_are_chosen_by_a_switch(shape: str) -> None:
    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[t, 4] x, bool[{shape}] use) => (float[s, 4] y) {{
            c = Not (use)
            {TWO_SIDES}
        }}
    """.replace("bool[]", "bool")
    feeds = [
        {"x": floats(t, 4), "use": np.full((1,) * len(shape), use)}
        for t, use in ((6, True), (3, True), (6, False), (3, False))
    ]
    check(text, *feeds, compiles=2)


def test_sides_that_data_chooses_must_agree_in_the_run() -> None:
    """Where only data knows, both are in one graph, and a wrong size of the side is an error."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[t, 4] x, float[u, 4] w) => (float[s, 4] y) {
            sum = ReduceSum <keepdims = 0> (x)
            zero = Constant <value_float = 0.0> ()
            c = Greater (sum, zero)
            y = If (c) <then_branch = a () => (p) { p = Identity (x) },
                        else_branch = b () => (q) { q = Identity (w) }>
        }
    """
    feeds = [{"x": sign * np.ones((3, 4), np.float32), "w": floats(3, 4)} for sign in (1, -1)]
    compiled = check(text, *feeds)
    with pytest.raises(semel.VariableError, match="dim 0 must be t, got u"):
        compiled.run(x=-np.ones((3, 4), np.float32), w=floats(2, 4))
