"""Operators that move, select, reduce and sample, at sizes the official suite does not have.

Every dim is open, and one compile serves all sizes; the reference evaluator of ONNX says what is
right, or ONNX Runtime where it knows more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel

onnx = pytest.importorskip("onnx")
parser = pytest.importorskip("onnx.parser")

RNG = np.random.default_rng(3)


def loaded(body: str, inputs: str, version: int = 21) -> Any:
    header = f'<ir_version: 10, opset_import: ["" : {version}]>'
    outputs = ", ".join(f"float[] {name}" for name in ("y", "z", "i", "c") if f"{name} " in body)
    text = body.replace("'", '"')
    model = parser.parse_model(f"{header} g ({inputs}) => ({outputs}) {{ {text} }}")
    for output in model.graph.output:
        output.ClearField("type")
    return model


def check(model: Any, compiled: Any, *inputs: Any, exact: bool = False) -> None:
    from onnx.reference import ReferenceEvaluator

    names = [given.name for given in model.graph.input]
    expected = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    found = compiled.run(*inputs)
    for output, wanted in zip(model.graph.output, expected, strict=True):
        got = found[output.name]
        assert got.shape == np.shape(wanted) and got.dtype == wanted.dtype, output.name
        np.testing.assert_allclose(got, wanted, 0 if exact else 1e-4, 0 if exact else 1e-5)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


SIZES = ((2, 3, 5, 4), (1, 4, 6, 7))
X = "float[a, b, c, d] x"
ONE_INPUT = {
    "pads by reflection, again and again": (
        "p = Constant<value_ints=[0, 9]>() e = Constant<value_ints=[-1]>() n ="
        " Constant<value_float=0.0>() y = Pad<mode='reflect'>(x, p, n, e)",
        X,
    ),
    "pads that wrap": (
        "p = Constant<value_ints=[9, 3]>() e = Constant<value_ints=[2]>() n ="
        " Constant<value_float=0.0>() y = Pad<mode='wrap'>(x, p, n, e)",
        X,
    ),
    "parts of unequal size": ("y, z = Split<axis=3, num_outputs=2>(x)", X),
    "backwards, to beyond the beginning": (
        "s = Constant<value_ints=[-1, 100]>() e = Constant<value_ints=[-1000, -2147483648]>()"
        " a1 = Constant<value_ints=[-1, 1]>() t = Constant<value_ints=[-2, -1]>()"
        " y = Slice(x, s, e, a1, t)",
        X,
    ),
    "half a size": (
        "s = Shape(x) two = Constant<value_int=2>() h = Div(s, two) zero ="
        " Constant<value_ints=[0, 0, 0, 0]>() y = Slice(x, zero, h)",
        X,
    ),
    "the last of the largest": ("y = ArgMax<axis=2, select_last_index=1, keepdims=0>(x)", X),
    "nothing but squares": ("y = ReduceSumSquare<noop_with_empty_axes=1>(x)", X),
    "a mean of integers": ("i1 = Cast<to=7>(x) y = ReduceMean(i1)", X),
    "running products from the end": (
        "a1 = Constant<value_int=-2>() y = CumSum<reverse=1, exclusive=1>(x, a1)",
        X,
    ),
    "positions": ("y = NonZero(x)", X),
    "an order of rows": ("y, i, z, c = Unique<axis=1, sorted=1>(x)", X),
    "an order of occurrence": (
        "m = Constant<value_ints=[-1]>() f = Reshape(x, m) r = Round(f)"
        " y, i, z, c = Unique<sorted=0>(r)",
        X,
    ),
    "between pixels, half the size": (
        "s = Constant<value_floats=[1.0, 1.0, 0.5, 0.7]>() n = Constant<value = float[0] {}>()"
        " y = Resize<mode='linear'>(x, n, s)",
        X,
    ),
    "cubic, three halves of the size": (
        "s = Constant<value_floats=[1.5, 1.5]>() n = Constant<value = float[0] {}>()"
        " y = Resize<mode='cubic', axes=[3, 2], exclude_outside=1,"
        " coordinate_transformation_mode='asymmetric'>(x, n, s)",
        X,
    ),
    "smaller, without aliases": (
        "s = Constant<value_floats=[0.6, 0.35]>() n = Constant<value = float[0] {}>()"
        " y = Resize<mode='linear', axes=[2, 3], antialias=1>(x, n, s)",
        X,
    ),
    "in proportion": (
        "k = Constant<value_ints=[8, 9]>() n = Constant<value = float[0] {}>()"
        " y = Resize<mode='linear', axes=[2, 3],"
        " keep_aspect_ratio_policy='not_larger'>(x, n, n, k)",
        X,
    ),
    "cropped and padded": (
        "k = Constant<value_ints=[5, 5]>() y = CenterCropPad<axes=[2, 3]>(x, k)",
        X,
    ),
    "fractions as many as a size": (
        "s = Shape(x) f = Cast<to=1>(s) k = Constant<value_ints=[2]>() w = Gather(f, k)"
        " q = Squeeze(w) z = Constant<value_float=0.25>() t = Constant<value_float=0.5>()"
        " y = Range(z, q, t)",
        X,
    ),
    "fractions as many as data says": (
        "m = ReduceMax<keepdims=0>(x) l = Abs(m) z = Constant<value_float=-9.0>()"
        " t = Constant<value_float=0.75>() y = Range(z, l, t)",
        X,
    ),
    "as wide as its batch": (
        "s = Shape<start=0, end=1>(x) z0 = Constant<value_int=0>() d1 = Squeeze(s) o ="
        " Constant<value_int=1>() r = Range(z0, d1, o) v = Constant<value_floats=[2.0, 3.0]>()"
        " y = OneHot<axis=0>(r, d1, v)",
        X,
    ),
}


@pytest.mark.parametrize(("body", "inputs"), ONE_INPUT.values(), ids=ONE_INPUT)
def test_one_compile_serves_all_sizes(body: str, inputs: str) -> None:
    model = loaded(body, inputs)
    compiled = semel.load(model, threads=1)
    for size in SIZES:
        check(model, compiled, floats(*size))


def test_scales_made_of_sizes_give_the_size_that_is_meant() -> None:
    body = """s = Shape(x) f = Cast<to=1>(s) k = Constant<value_floats=[2.0, 9.0]>() q = Div(k, f)
        n = Constant<value = float[0] {}>() y = Resize<mode='nearest', nearest_mode='floor',
        coordinate_transformation_mode='asymmetric'>(x, n, q)"""
    compiled = semel.load(loaded(body, "float[a, b] x"), threads=1)
    for a, b in ((4, 5), (1, 7)):
        x = floats(a, b)
        rows, columns = np.arange(2) * a // 2, np.arange(9) * b // 9
        np.testing.assert_array_equal(compiled.run(x)["y"], x[rows][:, columns])


def test_pads_of_both_signs() -> None:
    pads = "p = Constant<value_ints=[0, -1, 2, 1]>()"
    compiled = semel.load(loaded(f"{pads} y = Pad(x, p)", "float[a, b] x"), threads=1)
    for size in ((2, 3), (4, 1)):
        x = floats(*size)
        wanted = np.pad(x[:, 1:], ((0, 2), (0, 1)))
        np.testing.assert_array_equal(compiled.run(x)["y"], wanted)


def test_determinants_of_any_size() -> None:
    model = loaded("y = Det(x)", "float[a, n, n] x")
    compiled = semel.load(model, threads=1)
    for batch, size in ((2, 3), (4, 5), (1, 1)):
        check(model, compiled, floats(batch, size, size))


def test_a_dim_that_decides_is_compiled_for_and_counted() -> None:
    model = loaded("y = GatherND(x, i1)", "float[a, b] x, int64[n, k] i1")
    compiled: Any = semel.load(model, threads=1)
    x = floats(4, 3)
    for index in ([[1, 2]], [[3, 0], [0, 1]], [[2, 2], [1, 1], [0, 0]]):
        check(model, compiled, x, np.array(index))
    assert compiled.compile_count == 1
    check(model, compiled, x, np.array([[1], [3]]))
    assert compiled.compile_count == 2


def test_lengths_in_an_input_are_sizes() -> None:
    model = loaded("y, i = TopK<axis=1>(x, k)", "float[a, b] x, int64[1] k")
    compiled: Any = semel.load(model, threads=1)
    for k in (1, 3, 5):
        check(model, compiled, floats(3, 5), np.array([k]))
    assert compiled.compile_count == 1


@pytest.mark.parametrize("center", [0, 1])
def test_boxes_are_kept_as_the_runtime_keeps_them(center: int) -> None:
    ort = pytest.importorskip("onnxruntime")
    body = f"y = NonMaxSuppression<center_point_box={center}>(b, s, m, t, u)"
    model = loaded(body, "float[n, k, 4] b, float[n, c, k] s, int64[1] m, float[1] t, float[1] u")
    compiled = semel.load(model, threads=1)
    for n, c, k in ((1, 2, 30), (2, 3, 12)):
        boxes = RNG.random((n, k, 4), np.float32)
        scores = RNG.random((n, c, k), np.float32)
        given = [
            boxes,
            scores,
            np.array([5]),
            np.array([0.3], np.float32),
            np.array([0.2], np.float32),
        ]
        session = ort.InferenceSession(model.SerializeToString())
        (wanted,) = session.run(None, dict(zip("bsmtu", given, strict=True)))
        np.testing.assert_array_equal(compiled.run(*given)["y"], wanted)


def test_regions_sample_as_often_as_they_are_large() -> None:
    body = "y = RoiAlign<output_height=2, output_width=3, sampling_ratio=0>(x, r, i1)"
    model = loaded(body, "float[n, c, h, w] x, float[k, 4] r, int64[k] i1")
    compiled = semel.load(model, threads=1)
    rois = np.array([[0, 0, 7, 6], [1, 2, 3, 4], [2, 1, 9, 3]], np.float32)
    check(model, compiled, floats(2, 2, 8, 9), rois, np.array([0, 1, 1]))
    check(model, compiled, floats(1, 3, 12, 10), rois[:2] * 1.5, np.array([0, 0]))


def test_regions_pool_their_largest_pixels() -> None:
    ort = pytest.importorskip("onnxruntime")
    body = "y = MaxRoiPool<pooled_shape=[2, 2], spatial_scale=0.5>(x, r)"
    model = loaded(body, "float[n, c, h, w] x, float[k, 5] r")
    compiled = semel.load(model, threads=1)
    rois = np.array([[0, 0, 0, 9, 9], [1, 2, 4, 7, 11]], np.float32)
    x = floats(2, 3, 8, 7)
    session = ort.InferenceSession(model.SerializeToString())
    (wanted,) = session.run(None, {"x": x, "r": rois})
    np.testing.assert_array_equal(compiled.run(x, rois)["y"], wanted)


@pytest.mark.parametrize(("mode", "padding"), [("linear", "reflection"), ("nearest", "border")])
def test_images_between_their_pixels(mode: str, padding: str) -> None:
    body = f"y = GridSample<mode='{mode}', padding_mode='{padding}', align_corners=1>(x, g)"
    model = loaded(body, "float[n, c, h, w] x, float[n, p, q, 2] g")
    compiled = semel.load(model, threads=1)
    for h, w in ((4, 5), (6, 3)):
        grid = RNG.uniform(-1.7, 1.7, (1, 3, 2, 2)).astype(np.float32)
        check(model, compiled, floats(1, 2, h, w), grid)


def test_an_unknown_mode_names_the_node() -> None:
    model = loaded("p = Constant<value_ints=[1, 1]>() y = Pad<mode='mirror'>(x, p)", "float[a] x")
    with pytest.raises(semel.errors.UnsupportedError, match=r"Pad.*mode 'mirror' is unknown"):
        semel.load(model)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("resize", "(float[1, 2, 4, 4] x) => (float[1, 2, 6, 6] y) { y = Resize (x, , , s) }"),
        ("lrn", "(float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) { y = LRN <size=3> (x) }"),
        ("dft", "(float[1, 16, 1] x) => (float[1, 16, 2] y) { y = DFT (x) }"),
        ("softmax", "(float[1, 16] x) => (float[1, 16] y) { y = Softmax (x) }"),
    ],
)
def test_kernels_are_named_after_functions_of_tensors_or_the_operator(name: str, text: str) -> None:
    """Not after a helper that no user calls."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 19]> g {text}')
    sizes = onnx.numpy_helper.from_array(np.array([1, 2, 6, 6]), "s")
    model.graph.initializer.append(sizes)
    plan = semel.load(model).plan
    assert {kernel.name.split("_")[0] for kernel in plan.prepared_kernels} == {name}
