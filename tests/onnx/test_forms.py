"""Models with several compiled graphs, one for each form of their inputs; and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
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


@pytest.mark.parametrize("names", [("1", "2"), ("to.1", "to_1")], ids=["numbers", "alike"])
def test_deciding_inputs_may_be_called_anything(names: tuple[str, str]) -> None:
    """Old exporters number values; and two names may differ in signs that variables do not have."""
    model = parsed(
        """(float[n] x, int64[2] a, int64[2] b) => (float[p, q] y, float[r, s] z) {
            y = Reshape (x, a)
            z = Reshape (x, b)
        }"""
    )
    for i, name in enumerate(names):
        model.graph.input[1 + i].name = model.graph.node[i].input[1] = name
    compiled: Any = semel.load(model)
    found = compiled.run(np.ones(6, np.float32), np.array([2, 3]), np.array([6, 1]))
    assert (found["y"].shape, found["z"].shape) == ((2, 3), (6, 1))


def test_axes_that_are_computed_from_an_input() -> None:
    compiled: Any = semel.load(
        parsed(
            """(float[n, m] x, int64 first) => (float[p, q] y) {
                two = Constant <value_int = 2> ()
                one = Constant <value_int = 1> ()
                axes = Range (first, two, one)
                y = ReduceSum (x, axes)
            }"""
        )
    )
    for first in (1, 0, 1):
        axes = tuple(range(first, 2))
        found = compiled.run(X, np.array(first))["y"]
        np.testing.assert_array_equal(found, X.sum(axes, keepdims=True))
    assert compiled.compile_count == 2


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
    with pytest.raises(
        semel.InputError, match=r"Sizes of 0 are asked for: dims={'n': \(0, None\)}"
    ):
        semel.load(model).run_raw(np.ones((0, 2), np.float32))


DECODER = """(float[1, t, 4] x, float[1, p, 4] past) => (float[1, t, 4] y, float[1, q, 4] next) {
    next = Concat <axis = 1> (past, x)
    turned = Transpose <perm = [0, 2, 1]> (next)
    scores = MatMul (x, turned)
    shares = Softmax <axis = -1> (scores)
    seen = MatMul (shares, next)
    y = Add (seen, bias)
}"""
BIAS = np.arange(4, dtype=np.float32)


def decoder(folder: Path) -> Path:
    model = parsed(DECODER)
    model.graph.initializer.append(onnx.numpy_helper.from_array(BIAS, "bias"))
    path: Path = folder / "decoder.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def decoded(x: Any, past: Any, bias: Any = BIAS) -> Any:
    following = np.concatenate([past, x], 1)
    scores = np.exp(x @ following.transpose(0, 2, 1))
    return scores / scores.sum(-1, keepdims=True) @ following + bias


def floats(*shape: int) -> Any:
    return np.random.default_rng(4).standard_normal(shape, dtype=np.float32)


def test_the_first_step_of_a_decoder_has_an_empty_past(tmp_path: Path) -> None:
    """A second graph, compiled and counted once; the first one stays without guards."""
    compiled = semel.load(decoder(tmp_path))
    past = floats(1, 0, 4)
    with semel.no_recompiles(), pytest.raises(semel.RecompileError, match="would be compiled"):
        compiled.run(floats(1, 3, 4), past)
    for t in (3, 1, 1):
        x = floats(1, t, 4)
        found = compiled.run(x=x, past=past)
        np.testing.assert_allclose(found["y"], decoded(x, past), rtol=1e-5, atol=1e-6)
        past = found["next"]
    assert compiled.plan.compile_count == 2
    with semel.no_recompiles():
        x, none = floats(1, 5, 4), floats(1, 0, 4)
        found = compiled.commit_no_wait(x, none).result()
        np.testing.assert_allclose(found["y"], decoded(x, none), rtol=1e-5, atol=1e-6)
    with pytest.raises(semel.InputError, match="Sizes of 0 are asked for"):
        compiled.run_raw(x, none)
    assert compiled.run(floats(1, 0, 4), floats(1, 2, 4))["y"].shape == (1, 0, 4)
    assert compiled.plan.compile_count == 3


def test_params_and_clones_reach_the_graph_for_empty_sizes(tmp_path: Path) -> None:
    compiled = semel.load(decoder(tmp_path))
    x, none = floats(1, 3, 4), floats(1, 0, 4)
    compiled.run(x, none)
    other = compiled.clone()
    other.set_param("bias", BIAS + 1)
    for each, bias in ((other, BIAS + 1), (compiled, BIAS)):
        with semel.no_recompiles():
            found = each.run(x, none)["y"]
        np.testing.assert_allclose(found, decoded(x, none, bias), rtol=1e-5, atol=1e-6)


def test_a_model_that_is_not_as_it_was_read_has_no_second_graph(tmp_path: Path) -> None:
    """Its params were replaced, or its file was: what is there is not what was loaded."""
    path = decoder(tmp_path)
    changed, rewritten, gone = (semel.load(path) for _ in range(3))
    changed.set_params({"bias": BIAS + 1})
    os.utime(path, ns=(1, 1))
    for each in (changed, rewritten):
        with pytest.raises(semel.InputError, match="Sizes of 0 are asked for"):
            each.run(floats(1, 3, 4), floats(1, 0, 4))
    path.unlink()
    with pytest.raises(semel.InputError, match="Sizes of 0 are asked for"):
        gone.run(floats(1, 3, 4), floats(1, 0, 4))


def test_models_from_memory_are_held_if_they_are_small() -> None:
    x, none = floats(1, 3, 4), floats(1, 0, 4)
    for size, is_held in ((4, True), (1 << 18, False)):
        model = parsed(DECODER)
        model.graph.initializer.append(onnx.numpy_helper.from_array(BIAS, "bias"))
        rest = onnx.numpy_helper.from_array(np.zeros(size, np.float32), "rest")
        model.graph.initializer.append(rest)
        for source in (model, model.SerializeToString()):
            compiled = semel.load(source)
            if is_held:
                found = compiled.run(x, none)["y"]
                np.testing.assert_allclose(found, decoded(x, none), rtol=1e-5, atol=1e-6)
                continue
            with pytest.raises(semel.InputError, match="Sizes of 0 are asked for"):
                compiled.run(x, none)


def test_bounds_that_were_given_hold(tmp_path: Path) -> None:
    path = decoder(tmp_path)
    compiled = semel.load(path, dims={"p": (1, 8)})
    with pytest.raises(semel.InputError, match=r"must lie in \[1, 8\]. Sizes of 0 are asked for"):
        compiled.run(floats(1, 3, 4), floats(1, 0, 4))
    assert compiled.plan.compile_count == 1


def test_forms_have_sizes_of_zero_too() -> None:
    compiled: Any = semel.load(reduced())
    for rows, axis in ((3, 0), (0, 0), (2, 0), (0, 1), (0, 0)):
        x, axes = floats(rows, 2), np.array([axis])
        found = compiled.run(x, axes)["y"]
        np.testing.assert_allclose(found, x.sum(axis, keepdims=True) * [[2, 2]], rtol=1e-6)
    assert compiled.compile_count == 3


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


def test_names_inside_of_branches_are_text() -> None:
    text = """(float[n] x, bool p) => (float[m] y) {
        y = If (p) <
            then_branch = t () => (inner) { inner = Abs (x) },
            else_branch = e () => (other) { other = Neg (x) }
        >
    }"""
    whole = parsed(text).SerializeToString()
    at = whole.rindex(b"inner")  # the output of the branch, and not the node's
    damaged = whole[:at] + b"inn\xffr" + whole[at + 5 :]
    with pytest.raises(ModelError, match="names must be UTF-8"):
        semel.load(damaged)


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


def test_a_squeeze_keeps_what_data_decides() -> None:
    """That it is not of size 1 is checked in the run: there, others give a tensor of lower rank."""
    text = """(float[n] x) => (float[m] y) {
        i = NonZero (x)
        j = Squeeze (i)
        y = Gather (x, j)
    }"""
    compiled = semel.load(parsed(text, 11))
    for x in ([0, 2, 3, 0, 1], [0, 0], [4, 5]):
        given = np.array(x, np.float32)
        np.testing.assert_array_equal(compiled.run(given)["y"], given[given != 0])
    with pytest.raises(semel.VariableError, match=r"\(Squeeze 'j'\). Found late\d*=1"):
        compiled.run(np.array([0, 7, 0], np.float32))


DIMS = "(float[batch, seq] x, float[b2, 4] w) => (float[p, q] y) { y = Concat <axis = 0> (w, x) }"
NO_DIM = r"must be a size, \(least, largest or None\), the name of another dim or a Variable"
REFUSED_DIMS = [
    ({"typo": 3}, r"dims must be of the model's \(b2, batch, seq\), got 'typo'"),
    ({"typo": (1, 3)}, r"dims must be of the model's"),
    (["seq"], "dims must map names of dims"),
    *(
        ({"seq": said}, NO_DIM)
        for said in (2.5, None, True, -3, (5, 2), (1, 2, 3), ("a", 3), (2.5, 3), (0, -3), (-1, 4))
    ),
]


@pytest.mark.parametrize(("dims", "message"), REFUSED_DIMS, ids=[str(d) for d, _ in REFUSED_DIMS])
def test_dims_must_be_the_models_and_sizes(dims: Any, message: str) -> None:
    with pytest.raises(semel.InputError, match=message):
        semel.load(parsed(DIMS), dims=dims)


def test_dims_of_numpy_and_by_other_names() -> None:
    compiled = semel.load(parsed(DIMS), dims={"seq": np.int64(4), "b2": "batch", "batch": (1, 8)})
    shapes = [tuple(map(str, x.shape)) for x in compiled.inputs.values()]
    assert shapes == [("batch", "4"), ("batch", "4")]
    followed = semel.load(parsed(DIMS), dims={"b2": "batch", "batch": 3, "seq": 4})
    assert [tuple(x.shape) for x in followed.inputs.values()] == [(3, 4), (3, 4)]


def test_dims_are_known_by_what_the_model_calls_them() -> None:
    model = parsed(DIMS)
    for given in model.graph.input:
        given.type.tensor_type.shape.dim[0].dim_param = "batch size"
    compiled = semel.load(model, dims={"batch size": (1, 8), "seq": 4})
    with pytest.raises(semel.InputError, match=r"batch_size=9, which must lie in \[1, 8\]"):
        compiled.run(np.ones((9, 4), np.float32), np.ones((9, 4), np.float32))


def test_values_must_be_numbers_of_inputs() -> None:
    for values, message in (
        ([1], "must be given a mapping"),
        ({"axes": "x"}, "must be numbers of"),
    ):
        with pytest.raises(semel.InputError, match=message):
            semel.load(reduced(), values=values)  # type: ignore[arg-type]


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
