"""Models with several compiled graphs, one for each form of their inputs; and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel.errors import InputError, ModelError, ParamError, UnsupportedError

onnx = pytest.importorskip("onnx")


def parsed(text: str, opset: int = 21) -> Any:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {text}')


def reduced() -> Any:
    """A model whose axes are an input, with a param."""
    model = parsed(
        """(float[n, m] x, int64[1] axes) => (float[a, b] y) {
            s = ReduceSum (x, axes)
            y = Mul (s, w)
        }"""
    )
    scale = onnx.numpy_helper.from_array(np.full((1, 1), 2.0, np.float32).repeat(2, 1), "w")
    model.graph.initializer.append(scale)
    return model


X = np.arange(6, dtype=np.float32).reshape(3, 2)
AXES = [np.array([axis]) for axis in (0, 1)]


def test_runs_of_every_kind_find_their_form() -> None:
    compiled: Any = semel.load(reduced())
    want = [X.sum(axis, keepdims=True) * 2 for axis in (0, 1)]
    ticket = compiled.commit_no_wait(X, AXES[0])
    np.testing.assert_array_equal(ticket.result()["y"], want[0])
    sets = [{"x": X, "axes": AXES[i % 2]} for i in range(6)]
    for i, found in enumerate(compiled.run_pipelined(sets)):
        np.testing.assert_array_equal(found["y"], np.broadcast_to(want[i % 2], found["y"].shape))
    compiled.sync_pending()
    assert compiled.compile_count == len(compiled.forms) == 2


def test_clones_share_what_is_compiled_and_have_params_of_their_own() -> None:
    compiled: Any = semel.load(reduced())
    compiled.run(X, AXES[0])
    other = compiled.clone_box()
    other.set_params({"w": np.full((1, 2), 3.0, np.float32)})
    assert other.compile_count == 1
    np.testing.assert_array_equal(other.run(X, AXES[0])["y"], X.sum(0, keepdims=True) * 3)
    np.testing.assert_array_equal(compiled.run(X, AXES[0])["y"], X.sum(0, keepdims=True) * 2)
    assert other.compile_count == compiled.compile_count == 1
    np.testing.assert_array_equal(other.run(X, AXES[1])["y"], X.sum(1, keepdims=True) * [[3, 3]])
    assert (other.compile_count, compiled.compile_count) == (2, 1)


def test_what_belongs_to_one_form_is_refused_with_the_way_to_it(tmp_path: Any) -> None:
    compiled: Any = semel.load(reduced())
    with pytest.raises(UnsupportedError, match=r"\[save\] belongs to one compiled graph"):
        compiled.save(tmp_path / "all.plan")
    form, _ = compiled.form_of({"x": X, "axes": AXES[0]})
    form.save(tmp_path / "one.plan")
    again: Any = semel.load(tmp_path / "one.plan")
    np.testing.assert_array_equal(again.run(X, AXES[0])["y"], X.sum(0, keepdims=True) * 2)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = compiled.nothing


def test_sizes_in_inputs_wait() -> None:
    compiled: Any = semel.load(
        parsed("(float[n] x, int64[2] to) => (float[a, b] y) { y = Reshape (x, to) }")
    )
    with pytest.raises(UnsupportedError, match="sizes come from shapes"):
        compiled.commit_no_wait(np.ones(6, np.float32), np.array([2, 3]))
    assert compiled.run(np.ones(6, np.float32), np.array([2, 3]))["y"].shape == (2, 3)


def test_an_input_of_any_rank_may_decide() -> None:
    model = parsed("(float[n] x, int64[2] to) => (float[a, b] y) { y = Reshape (x, to) }")
    model.graph.input[1].type.tensor_type.ClearField("shape")
    compiled: Any = semel.load(model)
    for to in ([2, 3], [3, 2], [1, 2, 3]):
        assert compiled.run(np.ones(6, np.float32), np.array(to))["y"].shape == tuple(to)


def test_sizes_of_an_input_of_any_rank_may_decide() -> None:
    """How many numbers there are is how many axes the result has."""
    model = parsed("(float[n] x, int64[2] to) => (float[a, b] y) { y = Reshape (x, to) }")
    model.graph.input[1].type.tensor_type.ClearField("shape")
    compiled: Any = semel.load(model)
    for to in ([[2, 3]], [[[3, 2]]]):
        found = compiled.run(np.ones(6, np.float32), np.array(to))["y"]
        assert found.shape == tuple(np.ravel(to))


def test_values_freeze_inputs() -> None:
    compiled: Any = semel.load(reduced(), values={"axes": [1]})
    assert list(compiled.inputs) == ["x"]
    np.testing.assert_array_equal(compiled.run(X)["y"], X.sum(1, keepdims=True) * [[2, 2]])
    assert compiled.plan.compile_count == 1


def test_sizes_of_zero_are_asked_for() -> None:
    text = "(float[n, 2] x) => (float[n, 2] y, float[1, 2] s) { y = Relu (x) s = ReduceSum (x, a) }"
    model = parsed(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "a"))
    compiled = semel.load(model, dims={"n": (0, 64)})
    for n in (0, 3):
        found = compiled.run(np.ones((n, 2), np.float32))
        assert found["y"].shape == (n, 2)
        np.testing.assert_array_equal(found["s"], np.full((1, 2), n))
    with pytest.raises(semel.errors.InputError, match=r"must lie in \[1,"):
        semel.load(model).run(np.ones((0, 2), np.float32))


OLD = """(float[n, c, l] x) => (float[n, c, l] y) {
    p = PRelu (x, slope)
    y = Add <broadcast = 1, axis = 1> (p, slope)
}"""


def test_old_models_with_open_dims() -> None:
    """The version converter takes no dims without a number; slopes are one for each channel."""
    model = parsed(OLD, opset=6)
    slope = np.array([0.5, 0.25, 2.0], np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(slope, "slope"))
    compiled = semel.load(model)
    for shape in ((2, 3, 5), (1, 3, 3), (3, 3, 3)):
        x = np.random.default_rng(2).standard_normal(shape, dtype=np.float32)
        want = np.where(x < 0, x * slope[:, None], x) + slope[:, None]
        np.testing.assert_allclose(compiled.run(x)["y"], want, rtol=1e-6)


BROKEN = [
    ("(float[n, m] x) => (float[n, m] y) { y = Softmax <axis = 5> (x) }", r"must lie in \[-2, 2\)"),
    (
        "(float[n, m] x) => (float[k] y) { y = ReduceSum <keepdims = 7> (x) }",
        "must be 0 or 1, got 7",
    ),
    (
        "(float[n, m] x, int64[4] p) => (float[a, b] y) "
        '{ e = Constant <value_ints = [0, -2]> () y = Pad (x, p, "", e) }',
        "its axes must differ",
    ),
    ("(string[n] x) => (string[n] y) { y = StringConcat (x, z) }", "'z' is used and nothing"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN, ids=[each[1][:20] for each in BROKEN])
def test_what_a_node_says_must_mean_something(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        compiled: Any = semel.load(parsed(text))
        compiled.run(np.ones((2, 2), np.float32), np.ones(4, np.int64))


def test_names_are_text() -> None:
    data = parsed("(float[n] x) => (float[n] yyyy) { yyyy = Relu (x) }").SerializeToString()
    with pytest.raises(ModelError, match="names must be UTF-8"):
        semel.load(data.replace(b"yyyy", b"yy\xff\xfe"))


def test_a_file_in_another_format_is_called_so() -> None:
    with pytest.raises(ModelError, match=r"in ONNX Runtime's own format\. Load the \.onnx file"):
        semel.load(b"\x18\0\0\0ORTM" + bytes(40))


def test_a_squeeze_of_all_axes_has_a_form_for_each_rank() -> None:
    compiled: Any = semel.load(
        parsed("(float[n, 1, m] x) => (float[n] y) { s = Squeeze (x) \n y = Neg (s) }", 11)
    )
    for n, m in [(2, 3), (1, 3), (2, 1), (1, 1), (4, 5), (1, 7)]:
        x = np.arange(n * m, dtype=np.float32).reshape(n, 1, m)
        np.testing.assert_array_equal(compiled.run(x)["y"], -x.squeeze(), strict=True)
    assert compiled.compile_count == 4


def test_a_rank_that_data_decides_is_refused() -> None:
    text = "(float[n] x) => (int64[m] y) { i = NonZero (x) \n y = Squeeze (i) }"
    with pytest.raises(UnsupportedError, match="a size that decides what is computed"):
        semel.load(parsed(text, 11))


# ---------------------------------------------------------------- params of several forms


def with_weights(model: Any, **arrays: Any) -> Any:
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def few_bits(weights: dict[str, Any]) -> Any:
    """A product whose weight is made of two params, and axes that decide."""
    text = """(float[n, 64] x, int64[1] axes) => (float[a] y) {
        p = com.microsoft.MatMulNBits <K=64, N=48, bits=4, block_size=32> (x, B, s)
        y = ReduceSum <keepdims=0> (p, axes)
    }"""
    opsets = '"" : 21, "com.microsoft" : 1'
    model = onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{opsets}]> g {text}")
    return with_weights(model, **weights)


def joined() -> Any:
    """y = x @ [the first columns of w, v]; of no columns of w, v alone is the weight."""
    text = """(float[n, 4] x, int64[1] end) => (float[a, b] y) {
        q = Slice (w, zero, end, one)
        p = Concat <axis=1> (q, v)
        y = MatMul (x, p)
    }"""
    numbers = {"zero": np.array([0]), "one": np.array([1])}
    return with_weights(parsed(text), **numbers, w=WHOLE["w"], v=WHOLE["v"])


RNG = np.random.default_rng(3)
WHOLE = {n: RNG.standard_normal((4, 4)).astype(np.float32) for n in "wv"}
FEW, OTHER = (
    {
        "B": RNG.integers(0, 256, (48, 2, 16)).astype(np.uint8),
        "s": RNG.standard_normal(96).astype(np.float32),
    }
    for _ in range(2)
)
WIDE = RNG.standard_normal((5, 64)).astype(np.float32)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_params_of_one_weight_are_set_together_in_all_forms(before: int) -> None:
    """Before any form is compiled, after one, and after both."""
    compiled: Any = semel.load(few_bits(FEW))
    for axes in AXES[:before]:
        compiled.run(WIDE, axes)
    other = compiled.clone()
    compiled.set_params(OTHER)
    wanted: Any = semel.load(few_bits(OTHER))
    unchanged: Any = semel.load(few_bits(FEW))
    for axes in AXES:
        assert compiled.run(WIDE, axes)["y"].tobytes() == wanted.run(WIDE, axes)["y"].tobytes()
        assert other.run(WIDE, axes)["y"].tobytes() == unchanged.run(WIDE, axes)["y"].tobytes()


@pytest.mark.parametrize("forms", [0, 1])
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"w": np.ones((3, 3), np.float32)}, InputError, r"\[param 'w'\] shape must be \(1, 2\)"),
        ({"w": np.ones((1, 2))}, InputError, "dtype must be float32, got float64"),
        ({"none": np.ones(2)}, ParamError, "'none' must be an initializer of the model"),
        ({"x": X}, ParamError, "'x' must be an initializer of the model"),
        ({"w": np.ones((1, 2), np.float32), "none": 1}, ParamError, "'none' must be"),
    ],
)
def test_what_is_refused_changes_nothing(forms: int, given: Any, error: Any, message: str) -> None:
    compiled: Any = semel.load(reduced())
    for axes in AXES[:forms]:
        compiled.run(X, axes)
    with pytest.raises(error, match=message):
        compiled.set_params(given)
    for axis, axes in enumerate(AXES):
        want = X.sum(axis, keepdims=True) * [[2, 2]]
        np.testing.assert_array_equal(compiled.run(X, axes)["y"], want)


def test_a_form_that_refuses_changes_no_other_form() -> None:
    compiled: Any = semel.load(joined())
    x, ends = np.eye(4, dtype=np.float32), (np.array([0]), np.array([-1]), np.array([-2]))
    want = [np.concatenate([WHOLE["w"][:, : end[0]], WHOLE["v"]], 1) for end in ends]
    for end in ends[:2]:
        compiled.run(x, end)
    with pytest.raises(InputError, match=r"'v'.*must be set together with 'w'"):
        compiled.set_param("v", np.zeros((4, 4), np.float32))
    for end, whole in zip(ends, want, strict=True):
        np.testing.assert_array_equal(compiled.run(x, end)["y"], whole)
    compiled.set_params({"w": WHOLE["v"], "v": WHOLE["w"]})
    for end in ends:
        swapped = np.concatenate([WHOLE["v"][:, : end[0]], WHOLE["w"]], 1)
        np.testing.assert_array_equal(compiled.run(x, end)["y"], swapped)


def test_a_param_is_set_alone_where_params_are_kept() -> None:
    compiled: Any = semel.load(joined(), keep_params=True)
    x, ends = np.eye(4, dtype=np.float32), (np.array([-1]), np.array([0]))
    compiled.run(x, ends[0])
    compiled.set_param("v", WHOLE["w"])
    for end in ends:
        found = compiled.run(x, end)["y"]
        np.testing.assert_array_equal(found[:, -4:], WHOLE["w"])


def test_what_decides_is_no_param_of_the_forms_that_know_it() -> None:
    text = """(float[n, m] x, int64[1] axes) => (float[a, b] y) {
        r = Resize <mode="nearest"> (x, , scales)
        y = ReduceSum (r, axes)
    }"""
    model = with_weights(parsed(text), scales=np.array([1, 2], np.float32))
    compiled: Any = semel.load(model)
    compiled.set_param("scales", np.array([1, 3], np.float32))  # nothing knows it yet
    assert compiled.run(X, AXES[0])["y"].shape == (1, 6)
    with pytest.raises(ParamError, match=r"\[param 'scales'\] must be no constant"):
        compiled.set_param("scales", np.array([1, 2], np.float32))


def test_params_of_models_with_a_part_on_the_host() -> None:
    text = """(string[k] words, float[n, 64] x, int64[1] axes) => (string[k] up, float[a] y) {
        up = StringNormalizer <case_change_action="UPPER"> (words)
        p = com.microsoft.MatMulNBits <K=64, N=48, bits=4, block_size=32> (x, B, s)
        y = ReduceSum <keepdims=0> (p, axes)
    }"""
    opsets = '"" : 21, "com.microsoft" : 1'
    model = onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{opsets}]> g {text}")
    compiled: Any = semel.load(with_weights(model, **FEW))
    words = np.array(["a"], object)
    compiled.run(words, WIDE, AXES[0])
    with pytest.raises(InputError, match="must be set together with 's'"):
        compiled.set_param("B", OTHER["B"])
    compiled.set_params(OTHER)
    wanted: Any = semel.load(few_bits(OTHER))
    for axes in AXES:
        found = compiled.run(words, WIDE, axes)["y"]
        assert found.tobytes() == wanted.run(WIDE, axes)["y"].tobytes()
