"""What a tensor is made of: data, dtypes, promotion, identity, origins."""

from __future__ import annotations

import copy
import inspect
import operator
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import semel
from semel import Tensor, Variable
from semel.ir.graph import Graph
from semel.ir.types import DTYPES, DType
from semel.ops.evaluate import evaluate


def reference(tensor: Tensor, **inputs: Any) -> np.ndarray:
    return evaluate(Graph((tensor.node,)), inputs)[0]


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        ([1.0], "float32"),
        ([1], "int64"),
        ([True], "bool"),
        (1.5, "float32"),
        (3, "int64"),
        ([], "float32"),
        ([np.float64(1)], "float64"),
        (np.float64(1), "float64"),
        (np.arange(3, dtype=np.int16), "int16"),
        (np.ones(2), "float64"),
        (np.ones(2, ml_dtypes.bfloat16), "bfloat16"),
        (memoryview(b"abc"), "uint8"),
        (range(3), "int64"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, memoryview) else repr(value),
)
def test_dtype_of_data(data: Any, dtype: str) -> None:
    assert Tensor(data).dtype.name == dtype


def test_dtype_argument_converts() -> None:
    assert Tensor([1, 2], "bfloat16").dtype is semel.bfloat16
    assert reference(Tensor([1.9, -1.9], "int32")).tolist() == [1, -1]


def test_zero_dimensional_data_stays_so() -> None:
    assert Tensor(np.array(2.0)).shape == ()
    assert reference(Tensor(2.0)).shape == ()


def test_data_is_copied() -> None:
    array = np.zeros(3, np.float32)
    tensor = Tensor(array)
    array[:] = 7
    assert reference(tensor).tolist() == [0, 0, 0]


def test_strided_and_big_endian_arrays_are_read_right() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)[::-1, ::2]
    np.testing.assert_array_equal(reference(Tensor(array)), array)
    swapped = np.arange(3, dtype=">i4")
    assert reference(Tensor(swapped, "int32")).tolist() == [0, 1, 2]


def test_equal_computations_are_one_node() -> None:
    x = Tensor.input("x", (3,), "float32")
    assert (x + 1).id == (x + 1).id
    assert (x + 1).id != (x + 2).id
    assert (x * 0.0).id != (x * -0.0).id


def test_every_node_knows_the_line_that_made_it() -> None:
    x = Tensor.input("x", (3,), "float32")
    frame = inspect.currentframe()
    assert frame is not None
    y = x.softmax()
    line = f"{__file__}:{frame.f_lineno - 1}"
    made = {node.op.name: node.origins for node in Graph((y.node,)).nodes}
    assert line in made["exp"] and line in made["reduce_sum"]


def test_origins_name_this_file_through_composed_methods() -> None:
    tensor = Tensor.input("q", (2, 4), "float32").layer_norm()
    assert all(o.startswith(__file__) for o in tensor.node.origins)


def test_weak_scalars_do_not_widen() -> None:
    half = Tensor.input("h", (2,), "float16")
    byte = Tensor.input("b", (2,), "int8")
    assert (half + 1.5).dtype is semel.float16
    assert (half * np.float64(2)).dtype is semel.float16
    assert (byte + 1).dtype is semel.int8
    assert (byte + 1.0).dtype is semel.float32
    assert (byte / 2).dtype is semel.float32
    assert (byte == 300 - 299).dtype is semel.bool_
    n = Variable("n", 1, 8)
    assert (half * n).dtype is semel.float16


def test_sums_widen_and_means_are_float32() -> None:
    for name in ("bool", "int8", "uint8", "int32", "uint32"):
        x = Tensor.input("x", (2,), name)
        assert x.sum().dtype is semel.int64
        assert x.mean().dtype is semel.float32
        assert x.cumsum(0).dtype is semel.int64
    assert Tensor.input("x", (2,), "float16").sum().dtype is semel.float16
    assert Tensor.input("x", (2,), "uint64").sum().dtype is semel.uint64


def test_shape_attributes() -> None:
    n = Variable("n", 1, 8)
    x = Tensor.input("x", (n, 4), "float32")
    assert x.shape == (n, 4)
    assert x.ndim == 2
    assert x.size == n * 4
    assert x.T.shape == (4, n)
    assert len(Tensor([1, 2, 3])) == 3


def test_a_dim_of_one_stretches_whoever_says_it() -> None:
    n, m = Variable("n", 1, 8), Variable("m", 1, 8)
    x, y = Tensor.input("x", (n,), "float32"), Tensor.input("y", (m,), "float32")
    assert (x + Tensor.ones(1)).shape == (n,)
    ones = np.ones(3, np.float32)
    assert reference(x + y, x=ones, y=ones).tolist() == [2, 2, 2]
    assert reference(x + y, x=ones, y=np.ones(1, np.float32)).tolist() == [2, 2, 2]
    with pytest.raises(semel.VariableError, match="Found m=2, n=3"):
        reference(x + y, x=ones, y=np.ones(2, np.float32))


def test_repr_shows_known_values_and_never_computes() -> None:
    assert repr(Tensor([1.0, 2.0])) == "Tensor([1., 2.], dtype=float32)"
    x = Tensor.input("x", (Variable("n", 1, 8), 3), "float32")
    assert repr(x.exp()) == "<Tensor float32[n, 3] exp>"


def test_numpy_operators_step_back() -> None:
    x = Tensor.input("x", (3,), "float32")
    for made in (np.ones(3, np.float32) + x, np.float32(2) * x, [1.0, 2.0, 3.0] - x):
        assert isinstance(made, Tensor)


def test_tensors_hash_by_identity_and_copy_by_handle() -> None:
    x = Tensor([1.0])
    assert len({x, x, Tensor([1.0])}) == 2
    assert copy.deepcopy(x).id == x.id
    assert copy.copy(x) is not x


def test_functions_take_arrays_too() -> None:
    assert reference(semel.exp(np.zeros(2))).tolist() == [1, 1]
    assert reference(semel.where([True, False], [1, 2], 0)).tolist() == [1, 0]
    assert semel.exp.__name__ == "exp"


def test_params_are_nodes_of_their_own() -> None:
    p = Tensor.param("w", np.ones(3, np.float32))
    assert p.node.op.name == "param"
    assert p.node.attrs.name == "w"
    assert reference(p + 1).tolist() == [2, 2, 2]


def test_integer_powers_wrap_and_truncate() -> None:
    base = Tensor(np.array([2, -1, 1, 0, 3, -1], np.int8))
    exponent = Tensor(np.array([7, -3, -2, -1, -1, 100], np.int8))
    assert reference(base**exponent).tolist() == [-128, -1, 1, 0, 0, 1]
    assert reference(base**2).tolist() == [4, 1, 1, 0, 9, 1]


def test_division_of_integers_by_zero_is_zero() -> None:
    x, zero = Tensor([7, -7]), Tensor([0, 0])
    assert reference(x // zero).tolist() == [0, 0]
    assert reference(x % zero).tolist() == [0, 0]


def test_default_keys_follow_the_seed() -> None:
    semel.manual_seed(5)
    first, second = reference(semel.rand(4)), reference(semel.rand(4))
    semel.manual_seed(5)
    assert np.array_equal(first, reference(semel.rand(4)))
    assert not np.array_equal(first, second)


def test_half_uniforms_stay_below_one() -> None:
    for dtype in ("float16", "bfloat16"):
        drawn = reference(semel.rand(4000, key=semel.key(1), dtype=dtype)).astype(np.float32)
        assert drawn.min() >= 0 and drawn.max() < 1


def test_a_uniform_float64_has_all_its_digits() -> None:
    drawn = reference(semel.rand(64, key=semel.key(1), dtype="float64"))
    assert any((drawn * 2.0**40) % 1 != 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_dtype_equals_its_names(dtype: DType) -> None:
    x = Tensor.input("x", (2,), dtype)
    same = (dtype, dtype.name, dtype.numpy, dtype.numpy.type, pickle.loads(pickle.dumps(dtype)))
    for name in same:
        assert x.dtype == name and name == x.dtype
        assert not operator.ne(x.dtype, name) and not operator.ne(name, x.dtype)
    for other in DTYPES:
        if other is not dtype:
            names = (other, other.name, other.numpy, other.numpy.type)
            assert all(x.dtype != n and n != x.dtype for n in names), other
    assert {dtype: 1}[dtype.name] == {dtype.name: 1}[dtype] == 1  # type: ignore[index]
    assert hash(pickle.loads(pickle.dumps(dtype))) == hash(dtype)


def test_a_dtype_equals_what_it_is_made_from_and_nothing_else() -> None:
    for python in (bool, int, float):
        assert Tensor.zeros(2, dtype=python).dtype == python
    assert semel.float64 not in (float, "f64", np.float32)
    assert semel.float32 not in (None, 32, "f32", ">f4", np.dtype(">f4"), object)
    assert semel.int32 in (np.int8, np.int32)


@pytest.mark.parametrize("data", ["1.5", b"abc", 1j, np.array([1 + 1j]), ["a"], object(), None])
@pytest.mark.parametrize("dtype", [None, "float32", "int64"])
def test_what_is_no_real_number_is_refused_whatever_the_dtype(data: Any, dtype: Any) -> None:
    with pytest.raises(semel.GraphError, match="must be bool, integer or real numbers, got"):
        Tensor(data, dtype)
