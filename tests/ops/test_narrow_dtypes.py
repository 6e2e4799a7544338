"""Dtypes of at most eight bits: every code out, half floats and edges in, moved, quantised.

The oracles are onnx's own reference and ml_dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import semel
from semel import GraphError, InputError, Tensor
from semel.ir.graph import make_node
from semel.ir.narrow import from_narrow, to_narrow
from semel.ir.text import format_graph, parse_graph
from semel.ir.types import DTYPES, NARROW, DType, as_dtype, is_lossless, promote
from semel.kernel.interpret import evaluate_value
from semel.kernel.math import expand_math
from semel.kernel.values import Buffer, cast, load
from semel.tensor.realize import build_graph

Array = np.ndarray[Any, Any]
WIDE = tuple(d for d in DTYPES if not d.is_narrow)
FLOATS8 = tuple(d for d in NARROW if d.is_float)
_HALF = np.arange(1 << 16, dtype=np.uint16)
#: All float16 and all bfloat16 as float32, and what lies one step beside each float8 and each tie.
_TIES = np.concatenate([
    np.convolve(np.sort(v[np.isfinite(v)]), [0.5, 0.5])
    for v in (np.arange(256, dtype=np.uint8).view(d.numpy).astype(np.float32) for d in FLOATS8)
]).astype(np.float32)  # fmt: skip
_TIES = _TIES[np.isfinite(_TIES)]
with np.errstate(all="ignore"):
    EDGES = np.concatenate([
        _HALF.view(np.float16).astype(np.float32),
        _HALF.view(ml_dtypes.bfloat16).astype(np.float32),
        np.nextafter(_TIES, np.float32(0)), _TIES, np.nextafter(_TIES, np.float32(np.inf)),
        np.array([2.0**31, -(2.0**31), 2.0**31 - 128, 1e38, -1e38, 1e-45], np.float32),
    ])  # fmt: skip
    _BESIDE = _TIES[np.abs(_TIES) < 1e6].astype(np.float64) * (1 + 2.0**-40)
    DOUBLES = np.concatenate([EDGES.astype(np.float64), _BESIDE])
SOURCES: dict[str, Array] = {
    "float32": EDGES,
    "float16": _HALF.view(np.float16),
    "bfloat16": _HALF.view(ml_dtypes.bfloat16),
    "float64": DOUBLES,
    "int32": np.concatenate([np.arange(-70_000, 70_000), [2**31 - 1, -(2**31)]]).astype(np.int32),
    "int8": np.arange(-128, 128).astype(np.int8),
    "uint64": np.array([0, 1, 2**63, 2**64 - 1], np.uint64),
    "bool": np.array([True, False]),
}


def codes(dtype: DType) -> Array:
    """Every element there is."""
    return np.arange(1 << dtype.bits, dtype=np.uint16).astype(np.uint8).view(dtype.numpy)


def check_same(got: Array, want: Array, message: object = "") -> None:
    """The same bits, but that one NaN is as good as another."""
    assert got.dtype == want.dtype and got.shape == want.shape, message
    size = f"V{got.itemsize}"
    wrong = np.ascontiguousarray(got).view(size) != np.ascontiguousarray(want).view(size)
    wrong &= ~(np.isnan(got.astype(np.float32)) & np.isnan(want.astype(np.float32)))
    assert not wrong.any(), (message, got[wrong][:5], want[wrong][:5])


def ids(dtype: DType) -> str:
    return dtype.name


few_dtypes = pytest.mark.parametrize("dtype", [NARROW[i] for i in (0, 4, 5, 6)], ids=ids)
each_dtype = pytest.mark.parametrize("dtype", NARROW, ids=ids)


# ---------------------------------------------------------------- casts


@each_dtype
def test_every_code_is_the_number_that_ml_dtypes_has(dtype: DType) -> None:
    x = Tensor.input("x", (1 << dtype.bits,), dtype)
    results = semel.prepare([x.cast(d) for d in WIDE])(x=codes(dtype))
    for wide, result in zip(WIDE, results, strict=True):
        if wide.is_float:
            with np.errstate(all="ignore"):
                check_same(result, codes(dtype).astype(wide.numpy))
        else:  # as any float, truncated and saturated, or as any integer
            number = Tensor(codes(dtype).astype(dtype.compute.numpy))
            np.testing.assert_array_equal(result, number.cast(wide).numpy())


@each_dtype
def test_casts_agree_with_onnx(dtype: DType) -> None:
    onnx = pytest.importorskip("onnx")
    reference = pytest.importorskip("onnx.reference.ops.op_cast")
    ways = [(True, "up"), (False, "up")]
    if dtype == "float8_e8m0fnu":
        ways = [(s, mode) for s in (True, False) for mode in ("up", "down", "nearest")]
    inputs = {name: Tensor.input(name, data.shape, name) for name, data in SOURCES.items()}
    cases = [(name, way) for name in SOURCES for way in ways]
    results = semel.prepare([inputs[name].cast(dtype, *way) for name, way in cases])(**SOURCES)
    to = onnx.helper.np_dtype_to_tensor_dtype(dtype.numpy)
    for (name, way), result in zip(cases, results, strict=True):
        with np.errstate(all="ignore"):
            want = reference.cast_to(_as_onnx_casts(SOURCES[name], dtype), to, *way)
        check_same(result, want, (name, way))


def _as_onnx_casts(data: Array, dtype: DType) -> Array:
    """As NumPy can clip it, and where ml_dtypes says what it gives."""
    if dtype == "float8_e8m0fnu" and data.dtype.kind not in "biu":
        size = np.abs(data.astype(np.float64))
        return np.where((size > 0) & (size <= 2.0**-127), data.dtype.type(0), data)
    if dtype.is_float:
        return data.astype(np.float32) if data.dtype.kind in "iu" else data
    if data.dtype == np.float64:
        return np.where(np.abs(data) < 2**31, data, 0)
    return data


def test_the_smallest_power_of_two_stays_itself() -> None:
    """Where onnx's reference says 2**-126: against its own table, and no cast could be undone."""
    tiny = np.array([0.0, 1e-45, 2.0**-128, 2.0**-127, 1.5 * 2.0**-127, 2.0**-126], np.float32)
    for saturate in (True, False):
        made = Tensor(tiny).cast("float8_e8m0fnu", saturate).numpy()
        assert made.view(np.uint8).tolist() == [0, 0, 0, 0, 1, 1]
    every = codes(as_dtype("float8_e8m0fnu"))
    check_same(Tensor(every).cast("float32").cast("float8_e8m0fnu").numpy(), every)


@each_dtype
def test_kernels_and_numpy_say_the_same(dtype: DType) -> None:
    for source, data in SOURCES.items():
        element = load(Buffer("x", as_dtype(source), data.size, "r"), 0)
        found = evaluate_value(expand_math(cast(element, dtype)), {element: data})
        check_same(found, to_narrow(data, dtype), source)
    element = load(Buffer("x", dtype, 256, "r"), 0)
    for target in (d for d in DTYPES if d != dtype):
        # The bits that a narrow element does not use may be anything.
        everything = np.arange(256, dtype=np.uint8).view(dtype.numpy)
        want = evaluate_value(cast(element, target), {element: everything})
        found = evaluate_value(expand_math(cast(element, target)), {element: everything})
        check_same(found.reshape(-1), want.reshape(-1), target)


def test_narrow_casts_of_each_other_go_by_the_number() -> None:
    inputs = {d: Tensor.input(d.name, (1 << d.bits,), d) for d in NARROW}
    pairs = [(a, b) for a in NARROW for b in NARROW if a != b]
    given = {d.name: codes(d) for d in NARROW}
    results = semel.prepare([inputs[a].cast(b) for a, b in pairs])(**given)
    for (a, b), result in zip(pairs, results, strict=True):
        check_same(result, to_narrow(from_narrow(codes(a), a), b), (a, b))


def test_only_casts_that_lose_nothing_are_skipped() -> None:
    """Where every number of one dtype is said to be one of another, it comes back."""
    for source in NARROW:
        for target in DTYPES:
            if is_lossless(source, target):
                x = from_narrow(codes(source), source)
                with np.errstate(all="ignore"):
                    there = x.astype(target.numpy)
                np.testing.assert_array_equal(there.astype(x.dtype), x)
    assert not is_lossless(as_dtype("float8_e8m0fnu"), as_dtype("float16"))
    assert not any(is_lossless(a, b) for a in WIDE for b in NARROW if a != "bool")


def test_a_cast_refuses_what_it_does_not_know() -> None:
    with pytest.raises(GraphError, match="round_mode must be one of 'up', 'down', 'nearest'"):
        Tensor([1.0]).cast("float8_e8m0fnu", round_mode="even")
    with pytest.raises(GraphError, match="16 bits or more, got float4_e2m1fn"):
        semel.rand(3, dtype="float4_e2m1fn")
    with pytest.raises(GraphError, match=r"dtype must be one of .*float8_e4m3fn.*, got 'float8'"):
        Tensor([1.0]).cast("float8")


# ---------------------------------------------------------------- names and arrays


@each_dtype
def test_a_narrow_dtype_has_names_and_arrays(dtype: DType) -> None:
    public, numpy = getattr(semel, dtype.name), np.dtype(getattr(ml_dtypes, dtype.name))
    for name in (dtype.name, numpy, numpy.type, public, dtype.short):
        assert as_dtype(name) is dtype
    data = codes(dtype).reshape(2, -1)
    t = Tensor(data)
    assert t.dtype == public == numpy and t.numpy().dtype == numpy == np.asarray(t).dtype
    check_same(t.numpy(), data)
    np.testing.assert_array_equal(t.tolist(), from_narrow(data, dtype))
    one = Tensor(data[0, 1])  # a scalar of ml_dtypes is weak, as one of NumPy's is
    assert one.item() == from_narrow(data, dtype)[0, 1] and one.ndim == 0
    made = Tensor([[1.0, 2.0], [4.0, 0.75]], dtype=dtype).numpy()
    check_same(made, to_narrow([[1.0, 2.0], [4.0, 0.75]], dtype))


def test_names_of_numpy_are_numpys() -> None:
    names = {"i4": "int32", "i2": "int16", "u4": "uint32", "u2": "uint16", "f4": "float32"}
    assert {name: as_dtype(name).name for name in names} == names


@pytest.mark.parametrize("dtype", FLOATS8[:5], ids=ids)
def test_float8_goes_through_dlpack(dtype: DType) -> None:
    check_same(Tensor.from_dlpack(Tensor(codes(dtype))).numpy(), codes(dtype))
    torch = pytest.importorskip("torch")
    theirs = torch.from_dlpack(Tensor(codes(dtype)))
    assert str(theirs.dtype) == f"torch.{dtype.name}"
    check_same(Tensor.from_dlpack(theirs).numpy(), codes(dtype))


def test_less_than_a_byte_goes_through_no_protocol() -> None:
    t = Tensor(codes(as_dtype("int4")))
    with pytest.raises(BufferError, match="int4 has no form of a byte an element"):
        t.__dlpack__()
    with pytest.raises(AttributeError, match="int4 has no array interface"):
        _ = t.__array_interface__


@each_dtype
def test_inputs_take_arrays_of_their_dtype_and_numbers_that_fit(dtype: DType) -> None:
    plan = (Tensor.input("x", (3,), dtype).cast("float32") * 2).prepare()
    data = to_narrow([1.0, 1.0, 0.5], dtype)
    np.testing.assert_array_equal(plan(x=data), from_narrow(data, dtype).astype(np.float32) * 2)
    assert plan(x=[1, 1, 1]).tolist() == [2, 2, 2]
    for wrong in (np.ones(3, np.float32), np.ones(3, np.uint8)):
        with pytest.raises(InputError, match=f"dtype must be {dtype.name}, got"):
            plan(x=wrong)
    if not dtype.name.startswith("float8_e8"):
        with pytest.raises(InputError, match="needs numbers that fit"):
            plan(x=[1, 10**9, 1])


@few_dtypes
def test_plans_and_texts_come_back(dtype: DType, tmp_path: Path) -> None:
    x = Tensor.input("x", (4,), dtype)
    y = semel.where(Tensor([True, False, True, False]), x, Tensor(codes(dtype)[:4]))
    y = y.pad([(1, 1)], codes(dtype)[1])
    graph = build_graph(y)
    assert format_graph(parse_graph(format_graph(graph))) == format_graph(graph)
    plan = y.prepare()
    plan.save(tmp_path / "x.plan")
    data = codes(dtype)[-4:]
    check_same(semel.load_plan(tmp_path / "x.plan")(x=data), plan(x=data))
    check_same(
        plan(x=data)[[0, 1, 3, 5]], np.stack([codes(dtype)[1], *data[[0, 2]], codes(dtype)[1]])
    )


# ---------------------------------------------------------------- moving


def _assigned(t: Tensor) -> Tensor:
    made = t[:]
    made[1] = t[-1]
    return made


MOVES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "transpose": (lambda t: t.T, lambda a: a.T),
    "reshape": (lambda t: t.reshape(35, 20), lambda a: a.reshape(35, 20)),
    "slice": (lambda t: t[2:19:3, ::-1], lambda a: a[2:19:3, ::-1]),
    "concat": (lambda t: semel.concat([t, t.flip(0)]), lambda a: np.concatenate([a, a[::-1]])),
    "gather": (lambda t: t[[3, 0, 3, -1]], lambda a: a[[3, 0, 3, -1]]),
    "expand": (lambda t: t.unsqueeze(1).expand(20, 3, 35), lambda a: np.repeat(a[:, None], 3, 1)),
    "where": (
        lambda t: semel.where(Tensor(np.eye(20, 35) == 1), t, t.flip(1)),
        lambda a: np.where(np.eye(20, 35) == 1, a, a[:, ::-1]),
    ),
    "mask": (lambda t: t[Tensor(np.arange(20) % 3 == 1)], lambda a: a[np.arange(20) % 3 == 1]),
    "assign": (_assigned, lambda a: np.concatenate([a[:1], a[-1:], a[2:]])),
}


@few_dtypes
def test_narrow_elements_move_as_they_are(dtype: DType) -> None:
    data = np.resize(codes(dtype), (20, 35))
    x = Tensor.input("x", data.shape, dtype)
    results = semel.prepare([move(x) for move, _ in MOVES.values()])(x=data)
    for (name, (_, want)), result in zip(MOVES.items(), results, strict=True):
        np.testing.assert_array_equal(result.view(np.uint8), want(data).view(np.uint8), name)


# ---------------------------------------------------------------- computing


@each_dtype
def test_numbers_are_computed_wide_and_cast_back(dtype: DType) -> None:
    a, b = (np.resize(np.roll(codes(dtype), k), 600) for k in (0, 77))
    x, y = Tensor.input("x", (600,), dtype), Tensor.input("y", (600,), dtype)
    wide = [from_narrow(v, dtype) for v in (a, b)]
    sums, equal, less, most = semel.prepare([x + y, x.eq(y), x < y, x.max()])(x=a, y=b)
    with np.errstate(all="ignore"):
        check_same(sums, to_narrow(wide[0] + wide[1], dtype))
    np.testing.assert_array_equal(equal, wide[0] == wide[1])
    np.testing.assert_array_equal(less, wide[0] < wide[1])
    check_same(most.reshape(1), to_narrow(wide[0].max(), dtype).reshape(1))


def test_no_node_computes_with_a_narrow_operand() -> None:
    x = Tensor.input("x", (3,), "float8_e5m2")
    with pytest.raises(GraphError, match=r"nothing is computed with float8_e5m2.*float32 first"):
        make_node("add", (x._node, x._node))


def test_promotion_loses_no_number() -> None:
    def both(a: str, b: str) -> str:
        assert promote(as_dtype(a), as_dtype(b)) == promote(as_dtype(b), as_dtype(a))
        return promote(as_dtype(a), as_dtype(b)).name

    assert both("float8_e4m3fn", "float16") == "float16"
    assert both("float8_e8m0fnu", "float16") == "float32"
    assert both("float8_e8m0fnu", "bfloat16") == "bfloat16"
    assert both("float8_e4m3fn", "float8_e5m2") == both("float4_e2m1fn", "int64") == "float32"
    assert both("int4", "uint8") == both("int2", "uint4") == "int16"
    assert both("int4", "float16") == "float16" and both("uint2", "int64") == "int64"
    assert (Tensor.zeros(2, dtype="int4") + 1).dtype == "int4"
    assert (Tensor.zeros(2, dtype="int4") * 0.5).dtype == "float32"


def test_attention_reads_float8_keys_and_values() -> None:
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((2, 70, 32)).astype(np.float32) for _ in range(3))
    keys, values = (to_narrow(t, as_dtype("float8_e4m3fn")) for t in (k, v))
    inputs = [Tensor.input(n, (2, 70, 32), "float8_e4m3fn").cast("float32") for n in "kv"]
    x = Tensor.input("q", (2, 70, 32))
    plan = x.scaled_dot_product_attention(*inputs).prepare()
    wide = [Tensor(t.astype(np.float32)) for t in (keys, values)]
    want = x.scaled_dot_product_attention(*wide).prepare()(q=q)
    np.testing.assert_array_equal(plan(q=q, k=keys, v=values), want)
    assert len(plan.steps) == 1


def test_a_state_is_kept_in_float8() -> None:
    g = semel.Graph("cache")
    x, cache = g.input("x", ("t", 8)), g.state("rows", (20, 8), "float8_e4m3fn")
    g.output("sum", cache.append(x.cast(cache.dtype)).cast("float32").sum(0))
    plan = g.prepare(dims={"t": (1, 6)})
    data = np.linspace(-500, 9, 6 * 8, dtype=np.float32).reshape(6, 8)
    kept = to_narrow(data, cache.dtype)
    for start, end in ((0, 3), (3, 4), (4, 6)):
        total = plan(x=data[start:end])
        np.testing.assert_array_equal(total, kept[:end].astype(np.float32).sum(0))
    check_same(np.asarray(plan.states.read("rows"))[:6], kept)


# ---------------------------------------------------------------- quantised


def onnx_run(op: str, opset: int, arrays: list[Array | None], **attributes: Any) -> Array:
    """One node by onnx's reference."""
    onnx = pytest.importorskip("onnx")
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
    given = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
    node = onnx.helper.make_node(op, names, ["y"], **attributes)
    kinds = {n: onnx.helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in given.items()}
    infos = [onnx.helper.make_tensor_value_info(n, kinds[n], given[n].shape) for n in given]
    result = onnx.helper.make_tensor_value_info("y", 0, None)
    graph = onnx.helper.make_graph([node], "g", infos, [result])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    with np.errstate(all="ignore"):
        return np.asarray(evaluator(model).run(None, given)[0])


PLACES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "one": ((), 1, 0),
    "axis": ((12,), 1, 0),
    "first": ((5,), 0, 0),
    "blocks": ((5, 3), 1, 4),
    "short": ((5, 3), -1, 5),
}


@pytest.mark.parametrize("dtype", [d for d in NARROW if d != "float8_e8m0fnu"], ids=ids)
def test_quantised_numbers_agree_with_onnx(dtype: DType) -> None:
    """With scales for all, along axes and for blocks, the last of them shorter."""
    rng = np.random.default_rng(4)
    data = (rng.standard_normal((5, 12)) * 9).astype(np.float32)
    data[0, :3] = [0.0, 500.0, -70_000.0]
    x = Tensor.input("x", data.shape)
    quantised: list[Tensor] = []
    want: list[Array] = []
    for shape, axis, block in PLACES.values():
        scale = np.asarray(rng.random(shape) + 0.25, np.float32)
        zero = rng.integers(0, 2, shape) if dtype.is_integer else np.zeros(shape)
        zero_point = to_narrow(zero, dtype)
        for saturate in (True, False):
            quantised.append(x.quantize_linear(scale, zero_point, axis, block, saturate=saturate))
            want.append(
                onnx_run("QuantizeLinear", 25, [data, scale, zero_point], axis=axis,
                         block_size=block, saturate=int(saturate))
            )  # fmt: skip
        back = want[-2]
        quantised.append(Tensor(back).dequantize_linear(scale, zero_point, axis, block))
        want.append(
            onnx_run("DequantizeLinear", 25, [back, scale, zero_point], axis=axis, block_size=block)
        )
    for result, expected in zip(semel.prepare(quantised)(x=data), want, strict=True):
        check_same(result, expected)


def test_quantising_tells_dtypes_as_onnx_does() -> None:
    onnx = pytest.importorskip("onnx")
    rng = np.random.default_rng(5)
    data = (rng.standard_normal((4, 6)) * 20).astype(np.float16)
    scale = np.float16(0.3)
    to = onnx.TensorProto.FLOAT8E5M2
    got = Tensor(data).quantize_linear(scale, dtype="float8_e5m2", precision="float32")
    want = onnx_run("QuantizeLinear", 25, [data, np.asarray(scale), None], output_dtype=to,
                    precision=onnx.TensorProto.FLOAT)  # fmt: skip
    check_same(got.numpy(), want)
    wide = np.array([[60_000, 3, 40_001]], np.uint16)
    back = Tensor(wide).dequantize_linear(np.array(0.01, np.float16), np.uint16(7))
    steps = [np.array(0.01, np.float16), np.array(7, np.uint16)]
    want = onnx_run("DequantizeLinear", 25, [wide, *steps])
    assert back.dtype == "float16"
    np.testing.assert_array_equal(back.numpy(), want)
    powers = to_narrow(np.array([0.5, 4.0, 0.125]), as_dtype("float8_e8m0fnu"))
    fours = to_narrow(rng.standard_normal((3, 32)) * 3, as_dtype("float4_e2m1fn"))
    mx = Tensor(fours).dequantize_linear(powers, axis=0, dtype="bfloat16")
    exact = fours.astype(np.float32) * powers.astype(np.float32)[:, None]
    np.testing.assert_array_equal(mx.numpy().astype(np.float32), exact)


def test_what_cannot_be_quantised_is_refused() -> None:
    x = Tensor.input("x", (4,))
    with pytest.raises(
        GraphError, match="must be an integer or a narrow float, got float8_e8m0fnu"
    ):
        x.quantize_linear(1.0, dtype="float8_e8m0fnu")
    with pytest.raises(GraphError, match="the zero point of narrow floats must be 0"):
        x.quantize_linear(1.0, to_narrow(1.0, as_dtype("float8_e4m3fn"))[()])
    with pytest.raises(GraphError, match="needs integers or narrow floats"):
        x.dequantize_linear(1.0)
