"""Every mistake with a Tensor: where, what must hold, what was found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import semel
from semel import GraphError, RecompileError, SemelError, Tensor, UnsupportedError, Variable

N = Variable("n", 1, 8)
A = Tensor(np.zeros((3, 4), np.float32))
I8 = Tensor(np.zeros(3, np.int8))
MASK = Tensor(np.zeros(3, np.bool_))
X = Tensor.input("x", (N, 4), "float32")

MISTAKES: list[tuple[str, Callable[[], Any], type[SemelError], str]] = [
    # data
    ("complex", lambda: Tensor(np.zeros(2, complex)), GraphError,
     "[Tensor] data must be bool, integer or real numbers, got complex128 elements."),
    ("object", lambda: Tensor(["a", None]), GraphError,
     "[Tensor] data must be bool, integer or real numbers, got object elements."),
    ("strings", lambda: Tensor(["ab"]), GraphError,
     "[Tensor] data must be bool, integer or real numbers, got str64 elements."),
    ("ragged", lambda: Tensor([[1, 2], [3]]), GraphError,
     "[Tensor] data must be an array or nested lists of one shape"),
    ("list of tensors", lambda: Tensor([A, A]), GraphError,
     "[Tensor] data must be plain numbers, got a list of tensors. Use semel.stack."),
    ("dtype name", lambda: Tensor([1.0], "float12"), GraphError,
     "[Tensor] dtype must be one of bool, int8,"),
    ("weak overflow", lambda: I8 + 300, GraphError,
     "[add] an int8 must lie in [-128, 127], got 300. Cast the tensor to a wider dtype first."),
    ("input name", lambda: Tensor.input("", (1,)), GraphError,
     "[input] name must be a non-empty string, got ''."),
    ("input shape", lambda: Tensor.input("x", (-1,)), GraphError,
     "[input] dims must be >= 0, got (-1,)."),
    # elementwise
    ("broadcast", lambda: A + np.zeros((2, 4), np.float32), GraphError,
     "[add] shapes must broadcast, got [3,4] and [2,4]."),
    ("neg bool", lambda: -MASK, GraphError, "[neg] needs a number dtype, got b1[3]."),
    ("sub bool", lambda: MASK - MASK, GraphError,
     "[sub] needs a number dtype, got b1[3] and b1[3]."),
    ("and float", lambda: A & A, GraphError,
     "[bitwise_and] needs integers or bool, got f32[3,4] and f32[3,4]."),
    ("shift bool", lambda: MASK << MASK, GraphError,
     "[bitwise_left_shift] needs integers, got b1[3] and b1[3]."),
    ("invert float", lambda: ~A, GraphError, "[bitwise_not] needs integers or bool, got f32[3,4]."),
    ("gelu", lambda: A.gelu("fast"), GraphError,
     "[gelu] approximate must be 'none' or 'tanh', got 'fast'."),
    ("softcap", lambda: A.softcap(0), GraphError, "[softcap] cap must be a number > 0, got 0."),
    ("fill", lambda: A.masked_fill(A > 0, [1.0, 2.0]), GraphError,
     "[masked_fill] the fill value must be one number, got f32[2]."),
    # movement
    ("reshape size", lambda: A.reshape(5, 2), GraphError, "[reshape]"),
    ("reshape -1", lambda: A.reshape(5, -1), GraphError,
     "[reshape] cannot turn [3,4] into [5,-1]."),
    ("reshape two -1", lambda: A.reshape(-1, -1), GraphError,
     "[reshape] cannot turn [3,4] into [-1,-1]."),
    ("reshape float", lambda: A.reshape(3.0, 4), GraphError,  # type: ignore[arg-type]
     "[reshape] dims must be ints or Variables, got 3.0 in (3.0, 4)."),
    ("permute repeats", lambda: A.permute(0, 0), GraphError,
     "[permute] axes must be distinct, got (0, 0)."),
    ("permute few", lambda: A.permute(0), GraphError,
     "[permute] needs 2 axes for f32[3,4], got (0,)."),
    ("axis", lambda: A.sum(2), GraphError,
     "[sum] axis must lie in [-2, 2), got axis=2."),
    ("axis type", lambda: A.sum("rows"), GraphError,  # type: ignore[arg-type]
     "[sum] axis must be an int, got 'rows'."),
    ("axes repeat", lambda: A.sum((0, -2)), GraphError,
     "[sum] axes must be distinct, got (0, -2)."),
    ("broadcast_to", lambda: A.broadcast_to(3, 5), GraphError,
     "[broadcast_to] only dims of size 1 broadcast, got f32[3,4] to [3,5]."),
    ("squeeze", lambda: A.squeeze(0), GraphError,
     "[squeeze] axes must have size 1, got axes=(0,) of f32[3,4]."),
    ("pad", lambda: A.pad(((1, 1),)), GraphError,
     "[pad] needs a (before, after) pair for each of 2 axes, got ((1, 1),)."),
    ("pad negative", lambda: A.pad(-1), GraphError, "[pad] dims must be >= 0, got (-1, -1)."),
    ("narrow", lambda: A.narrow(0, 2, 2), GraphError,
     "[narrow] [2, 4) must lie in axis 0 of f32[3,4]."),
    ("concat", lambda: Tensor.concat([A, A[:, :2]], 0), GraphError, "[concat]"),
    ("concat nothing", lambda: Tensor.concat([]), GraphError,
     "[concat] needs at least one tensor."),
    ("stack", lambda: Tensor.stack([A, A[0]]), GraphError,
     "[stack] shapes must agree, got f32[3,4], f32[4]."),
    ("split symbolic", lambda: X.split(split_size=2), GraphError,
     "[split] needs a fixed number of pieces, got ((n + 1) // 2) of f32[n,4]."),
    ("split sizes", lambda: A.split(split_size=[1, 1]), GraphError,
     "[split] sizes must add up to 3, got [1, 1]."),
    ("mT", lambda: A[0].mT, GraphError, "[mT] needs at least 2 axes, got f32[4]."),
    # shapes and dtypes
    ("no shape", lambda: Tensor.input("x", None), GraphError,  # type: ignore[arg-type]
     "[input] a shape must be ints or Variables, got None."),
    ("no dtype", lambda: Tensor.input("x", (2,), cast(Any, None)), GraphError,
     "[input] dtype must be one of"),
    ("cast to nothing", lambda: A.cast(cast(Any, None)), GraphError, "[cast] dtype must be one of"),
    ("ignore half a class", lambda: A.cross_entropy([0, 0, 0], ignore_index=cast(Any, 0.5)),
     GraphError, "[cross_entropy] ignore_index must be an int, got 0.5."),
    # variables
    ("no minimum", lambda: Variable("n", cast(Any, None), 4), GraphError,
     "[Variable] min of 'n' must be an int, got None."),
    ("half a maximum", lambda: Variable("n", 1, cast(Any, 4.5)), GraphError,
     "[Variable] max of 'n' must be an int, got 4.5."),
    # products
    ("matmul", lambda: A @ A, GraphError,
     "[matmul] inner dims must agree, got 4 and 3 in f32[3,4] @ f32[3,4]. Did you mean x @ y.mT?"),
    ("matmul 0-d", lambda: A @ Tensor(1.0), GraphError,
     "[matmul] needs at least 1 axis, got f32[3,4] @ f32[]. Use * instead."),
    ("matmul batch", lambda: Tensor.ones(2, 3, 4) @ Tensor.ones(5, 4, 2), GraphError,
     "[matmul] shapes must broadcast, got [2] and [5]."),
    ("einsum count", lambda: semel.einsum("ij,jk->ik", A), GraphError,
     "[einsum] 'ij,jk->ik' names 2 operands, got 1 tensors."),
    ("einsum rank", lambda: semel.einsum("ijk->i", A), GraphError,
     "[einsum] 'ijk' in 'ijk->i' names 3 axes, got 2."),
    ("einsum sizes", lambda: semel.einsum("ij,ij->i", A, A[:, :3]), GraphError,
     "[einsum] label 'j' of 'ij,ij->i' must have one size, got 4 and 3."),
    ("einsum output", lambda: semel.einsum("ij->ik", A), GraphError,
     "[einsum] output labels must be distinct and come from operands, got 'ij->ik'."),
    # reductions and order
    ("max of nothing", lambda: Tensor.zeros(0, 3).max(0), GraphError, "[max]"),
    ("norm", lambda: A.norm("nuclear"), GraphError,
     "[norm] order must be a number, got 'nuclear'."),
    ("topk", lambda: A.topk(5), GraphError, "[topk] k must lie in [0, 4] for f32[3,4], got 5."),
    # indexing
    ("index", lambda: A[3], GraphError,
     "[getitem] index must lie in [-3, 3) on axis 0, got 3."),
    ("too many", lambda: A[0, 0, 0], GraphError,
     "[getitem] got 3 indices for 2 axes of [3,4]."),
    ("float index", lambda: A[1.0], GraphError,
     "[getitem] an index must be an int, a slice, None, ... or an array, got 1.0."),
    ("float tensor", lambda: A[Tensor([0.0])], GraphError,
     "[getitem] indices must be integers, got f32[1]."),
    ("bool index", lambda: A[True], UnsupportedError,
     "[getitem] a bool is not an index, got True. Use None."),
    ("step 0", lambda: A[::0], GraphError,
     "[getitem] a slice's step must be a non-zero int, got 0."),
    ("slice bound", lambda: A[0.5:], GraphError,
     "[getitem] slice bounds must be ints or Variables, got 0.5."),
    ("two ellipses", lambda: A[..., ...], GraphError,
     "[getitem] a key may hold one ellipsis (...), got several."),
    ("computed mask shape", lambda: A[A[:, :1] > 0], GraphError,
     "[getitem] a mask must have the shape of its axes, got [3,1] of [3,4]."),
    ("late len", lambda: len(X[X > 0]), GraphError,
     "[len] a value must not depend on inputs or variables, got input 'x': f32[n,4], variable 'n'. "
     "Prepare it once, plan = t.prepare(), and call plan(name=array)."),
    ("late input", lambda: Tensor.input("y", X[X > 0].shape), GraphError,
     "[input] the shape of 'y' must be known before a run, got f32[late"),
    ("nonzero", lambda: Tensor(1.0).nonzero(), GraphError,
     "[nonzero] needs at least 1 axis, got f32[]."),
    ("argwhere", lambda: Tensor(1.0).argwhere(), GraphError,
     "[argwhere] needs at least 1 axis, got f32[]."),
    ("masked_select", lambda: A.masked_select(A), GraphError,
     "[masked_select] the mask must be bool, got f32[3,4]."),
    ("mask shape", lambda: A[np.array([True])], GraphError,
     "[getitem] a mask must have the shape of its axes, got [1] of [3,4]."),
    ("take", lambda: A.take([0.5], 0), GraphError, "[take] indices must be integers, got f32[1]."),
    ("gather rank", lambda: A.gather(0, [0]), GraphError,
     "[gather] index must have the rank of f32[3,4], got i64[1]."),
    ("gather size", lambda: A.gather(0, np.zeros((2, 5), int)), GraphError,
     "[gather] index i64[2,5] must not be larger than f32[3,4]."),
    ("index_select", lambda: A.index_select(0, [[0]]), GraphError,
     "[index_select] index must be 1-D, got i64[1,1]."),
    ("one_hot", lambda: A.one_hot(3), GraphError, "[one_hot] needs integers, got f32[3,4]."),
    ("scatter mode", lambda: A.scatter(0, np.zeros((1, 4), int), 1.0, "mean"), GraphError,
     "[scatter] reduce must be one of sum, prod, amax, amin, set, got 'mean'."),
    ("assign shape", lambda: Tensor(A).__setitem__(0, np.zeros(3, np.float32)), GraphError,
     "[setitem] only dims of size 1 broadcast, got f32[3] to [4]."),
    ("assign mask", lambda: Tensor(A).__setitem__(A > 0, A), GraphError,
     "[setitem] f32[3,4] has more axes than shape [late"),
    # networks, creation, random numbers
    ("group_norm", lambda: A.group_norm(3), GraphError,
     "[group_norm] 4 channels do not form 3 equal groups."),
    ("cross_entropy", lambda: A.cross_entropy([0, 0, 0], reduction="max"), GraphError,
     "[cross_entropy] reduction must be mean, sum or none, got 'max'."),
    ("arange", lambda: semel.arange(0, 5, 0), GraphError, "[arange] step must not be 0."),
    ("arange type", lambda: semel.arange("5"), GraphError,  # type: ignore[arg-type]
     "[arange] bounds must be numbers or Variables, got '5'."),
    ("linspace", lambda: semel.linspace(0, 1, -1), GraphError,
     "[linspace] num must be an int >= 0, got -1."),
    ("key", lambda: semel.rand(2, key=[1, 2]), GraphError,
     "[rand] a key must be u32[2], got i64[2]. Make one by semel.key(seed)."),
    ("seed", lambda: semel.key(-1), GraphError,
     "[key] seed must be an int in [0, 2**64), got -1."),
    ("randint", lambda: semel.randint(3, 3), GraphError,
     "[randint] needs low < high, less than 2**63 apart, got 3, 3."),
    ("randint dtype", lambda: semel.randint(0, 300, dtype="uint8"), GraphError,
     "[randint] [0, 300) must fit an integer dtype, got uint8."),
    ("rand dtype", lambda: semel.rand(2, dtype="int8"), GraphError,
     "[rand] dtype must be a float, got int8."),
    ("dropout", lambda: A.dropout(1.5), GraphError, "[dropout] p must lie in [0, 1], got 1.5."),
    # values
    ("numpy of input", X.numpy, GraphError,
     "[numpy] a value must not depend on inputs or variables, got input 'x': f32[n,4], "
     "variable 'n'. Prepare it once, plan = t.prepare(), and call plan(name=array)."),
    ("item", A.item, GraphError, "[item] needs exactly one element, got f32[3,4]."),
    ("truth", lambda: bool(A), GraphError,
     "[bool] the truth of a tensor needs exactly one element, got f32[3,4]. Use .any() or .all()."),
    ("len", lambda: len(X), GraphError, "[len] the first dim must be fixed, got f32[n,4]."),
    ("prepare", lambda: semel.prepare([A, 3]), GraphError,  # type: ignore[list-item]
     "[prepare] outputs must be Tensors, got int."),
    ("prepare nothing", lambda: semel.prepare([]), GraphError,
     "[prepare] needs at least one output."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mistake", "kind", "text"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_mistake(mistake: Callable[[], Any], kind: type[SemelError], text: str) -> None:
    with pytest.raises(kind) as caught:
        mistake()
    assert str(caught.value).startswith(text)
    assert type(caught.value) is kind


def test_compiling_inside_no_recompiles_is_an_error() -> None:
    with (
        semel.no_recompiles(),
        pytest.raises(RecompileError, match=r"inside no_recompiles\(\)") as caught,
    ):
        (A + 1).prepare()
    assert str(caught.value) == (
        "[prepare] output0 would be compiled inside no_recompiles(). "
        "Prepare it before, and execute the plan here."
    )


def test_zero_dimensional_tensors_have_no_length() -> None:
    with pytest.raises(TypeError, match="0-d tensor"):
        len(Tensor(1.0))
    with pytest.raises(TypeError, match="0-d tensor"):
        iter(Tensor(1.0))


NO_INTS: list[Any] = [1.5, "1", b"x", float("nan"), object(), Variable("k", 0, 3), np.float32(2)]


@pytest.mark.parametrize("value", NO_INTS, ids=lambda v: type(v).__name__)
def test_what_must_be_an_int_is_one(value: Any) -> None:
    for call, name in (
        (lambda: A.sum(value), "axis"),
        (lambda: A.softmax(value), "axis"),
        (lambda: A.flip(value), "axis"),
        (lambda: A.squeeze(value), "axis"),
        (lambda: A.unsqueeze(value), "axis"),
        (lambda: A.sum((0, value)), "axis"),
        (lambda: A.diagonal(value), "offset"),
        (lambda: A.diag(value), "offset"),
        (lambda: A[0].diag(value), "offset"),
        (lambda: A.chunk(value), "chunks"),
        (lambda: A.round(value), "decimals"),
        (lambda: A.roll(1, value), "axis"),
    ):
        with pytest.raises(GraphError, match=rf"^\[\w+\] {name} must be an int, got "):
            call()


@pytest.mark.parametrize("value", NO_INTS, ids=lambda v: type(v).__name__)
def test_what_must_be_an_int_or_a_variable_is_one(value: Any) -> None:
    if isinstance(value, Variable):
        return
    for call, name in (
        (lambda: A.topk(value), "k"),
        (lambda: A.roll(value), "shift"),
        (lambda: A.roll(value, 0), "shift"),
        (lambda: semel.linspace(0, 1, value), "num"),
        (lambda: A.split(split_size=(1, value)), "a size"),
    ):
        with pytest.raises(GraphError, match=rf"^\[\w+\] {name} must be an int, got "):
            call()


@pytest.mark.parametrize("value", [1.5, "1", None, [1], object()], ids=lambda v: type(v).__name__)
def test_the_diagonal_of_a_triangle_is_an_int_or_a_variable(value: Any) -> None:
    for call in (A.tril, A.triu):
        with pytest.raises(GraphError, match=r"^\[tri[lu]\] offset must be an int or a Variable, "):
            call(value)


@pytest.mark.parametrize("value", ["1", None, [1], object(), N], ids=lambda v: type(v).__name__)
def test_a_cap_is_a_number(value: Any) -> None:
    with pytest.raises(GraphError, match=r"^\[softcap\] cap must be a number > 0, got "):
        A.softcap(value)


@pytest.mark.parametrize("value", [1, None, b"ij->i", ["ij->i"]], ids=lambda v: type(v).__name__)
def test_an_equation_is_a_string(value: Any) -> None:
    with pytest.raises(GraphError, match=r"^\[einsum\] the equation must be a string, got "):
        semel.einsum(value, A)


def test_a_tensor_is_no_dtype() -> None:
    with pytest.raises(GraphError, match=r"^\[cast\] dtype must be one of"):
        A.cast(cast(Any, A))


@pytest.mark.parametrize("end", [float("nan"), float("inf"), -float("inf")])
def test_arange_ends_somewhere(end: float) -> None:
    with pytest.raises(GraphError, match=r"^\[arange\] bounds must be finite, got "):
        Tensor.arange(end)
    with pytest.raises(GraphError, match=r"^\[arange\] bounds must be finite, got "):
        Tensor.arange(0.0, 1.0, end)
