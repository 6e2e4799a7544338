"""Python values become tensors, and ops become nodes with a tensor in front of them.

    array | list | number | Variable  --lift-->  Tensor        op, Tensors  --apply-->  Tensor

Promotion: strong operands (tensors, arrays, lists) decide the dtype, `ir.types.promote` in
pairs. Python and NumPy scalars and Variables are weak: they only ask for a kind, so that
`float32 + 1.0` stays float32 and `int8 + 1` int8, while `int8 + 1.0` is float32.

The modules of functions stand on this one, and the class `Tensor` is made of those functions:
so none of them can import the class, and `tensor_class` is where they find it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce
from math import copysign
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import semel.ops  # registers the op table
from semel.errors import GraphError
from semel.ir import questions
from semel.ir.expr import Dim, Expr, Fn, Index, Variable, as_number, bounds
from semel.ir.graph import Node, Storage, data_node, is_tracing, make_node
from semel.ir.narrow import as_dtype_array
from semel.ir.opdef import find_op
from semel.ir.types import (
    BOOL,
    FLOAT32,
    INT64,
    DType,
    Shape,
    TensorType,
    as_dtype,
    is_known,
    one_of,
)
from semel.ir.types import promote as promote_pair
from semel.ops.attrs import (
    CastAttrs,
    ConstantAttrs,
    IotaAttrs,
    ReshapeAttrs,
    ScalarAttrs,
)
from semel.runtime.interop import is_immutable, read_array
from semel.tensor.origin import call_origin

if TYPE_CHECKING:
    import semel.tensor.tensor  # noqa: TC004  (looked up when `tensor_class` is called)
    from semel.tensor.tensor import Tensor

Array: TypeAlias = "np.ndarray[Any, Any]"
TensorLike: TypeAlias = "Tensor | Array | np.generic | bool | int | float | Dim | Sequence[Any]"
#: A dim, or the dims of several axes at once: `f(2, 3)` and `f((2, 3))` are the same call.
Dims: TypeAlias = "Dim | np.integer[Any] | Sequence[Dim | np.integer[Any]]"
#: One number: a bound, or a factor.
Number: TypeAlias = "float | np.number[Any] | Dim"
DTypeLike: TypeAlias = "DType | str | type | np.dtype[Any]"
SYMBOLIC = (Variable, Expr, Fn, Index)
_WEAK_KINDS = {bool: "b", int: "i", float: "f"}
_INTEGERS = (int, np.integer, *SYMBOLIC)
_WEAK_DEFAULT = {"b": BOOL, "i": INT64, "f": FLOAT32}
_KIND_ORDER = "bif"
_TEXT = (str, bytes, dict)
_LARGEST_FLOAT = int(np.finfo(np.float64).max)

# ------------------------------------------------------------ nodes become tensors


def tensor_class() -> type[Tensor]:
    """The class, which is made after the functions: by the time one is called, it is there."""
    return semel.tensor.tensor.Tensor


def wrap(node: Node) -> Tensor:
    """A tensor in front of a node."""
    made = object.__new__(tensor_class())
    made._node = node
    made._value = None
    return made


def wrap_data(array: Array, kind: TensorType) -> Tensor:
    """A tensor over an array of this type that nobody else may hold: it is sealed."""
    storage = Storage(array)
    made = object.__new__(tensor_class())
    made._node = data_node(ConstantAttrs(storage, kind), kind)
    made._value = storage
    return made


def apply(op: str, *inputs: Tensor, attrs: Any = None) -> Tensor:
    """A tensor for `op(inputs, attrs)`, marked with the user's source line."""
    for x in inputs:
        if x._node.type.dtype.is_narrow and find_op(op).computes:
            return _apply_widened(op, inputs, attrs)
    line, function = call_origin()
    nodes = [x._node for x in inputs]
    return wrap(make_node(op, nodes, attrs, origin=line, made_by=function))


def _apply_widened(op: str, inputs: Sequence[Tensor], attrs: Any) -> Tensor:
    """The op on what narrow operands hold, in the dtype that is computed with, and cast back."""
    narrow = next(x.dtype for x in inputs if x.dtype.is_narrow)
    wide = [convert(x, x.dtype.compute) if x.dtype.is_narrow else x for x in inputs]
    result = apply(op, *wide, attrs=attrs)
    return convert(result, narrow) if result.dtype == narrow.compute else result


# ------------------------------------------------------------ values become tensors


def constant(array: Array) -> Tensor:
    """A tensor over `array`, which nobody else may hold: it is sealed."""
    dtype = as_dtype(array.dtype, "Tensor")
    if array.ndim == 0:
        return scalar(array[()], dtype)
    storage = Storage(array)
    made = apply("constant", attrs=ConstantAttrs(storage, TensorType(array.shape, dtype)))
    made._value = storage
    return made


def scalar(value: Any, dtype: DType, shape: Shape = ()) -> Tensor:
    """A 0-d tensor, or one number for all elements of a shape of numbers.

    An integer that `dtype` cannot hold is an error, as in NumPy.
    """
    if is_tracing():  # a body's are its own
        return wrap(_scalar_node(value, dtype, shape))
    node = _kept_scalar(value, dtype, shape, not value and copysign(1, value) < 0)
    if node.origins:
        node.origins = ()  # of what became this number in another graph
    return wrap(node)


@lru_cache(maxsize=256, typed=True)  # graphs are written again with the same numbers
def _kept_scalar(value: Any, dtype: DType, shape: Any, is_minus_zero: bool) -> Node:
    """The node of a number; zeros are equal whatever their sign, so that it stands beside them."""
    return _scalar_node(value, dtype, shape)


def _scalar_node(value: Any, dtype: DType, shape: Shape) -> Node:
    integer = isinstance(value, (int, np.integer)) and dtype.is_integer
    if integer and not dtype.lowest <= int(value) <= dtype.highest:
        raise GraphError(
            "Tensor",
            f"{one_of(dtype)} must lie in [{dtype.lowest}, {dtype.highest}], got {int(value)}.",
            hint="Cast the tensor to a wider dtype first.",
        )
    if dtype.is_float and isinstance(value, int) and abs(value) > _LARGEST_FLOAT:
        raise GraphError(
            "Tensor", f"an integer must fit float64, got one of {value.bit_length()} bits."
        )
    # No origin, which takes time to find: that of the op that uses the number says it all.
    return make_node("scalar", (), ScalarAttrs(value, dtype, shape))


def dim_value(dim: Dim, dtype: DType = INT64) -> Tensor:
    """The value of a dim as a 0-d tensor, read at every run."""
    if isinstance(dim, int):
        return scalar(dim, dtype)
    # Counting from `dim` on: index arithmetic, no memory behind it.
    number = apply("iota", attrs=IotaAttrs((1,), 0, INT64, dim))
    return convert(apply("reshape", number, attrs=ReshapeAttrs(())), dtype)


def weak_scalar(value: Any, dtype: DType) -> Tensor:
    """A number or a Variable, which has no dtype of its own, as a 0-d tensor of `dtype`."""
    if isinstance(value, SYMBOLIC):
        _check_holds(value, dtype)
        return dim_value(value, dtype)
    if isinstance(value, tensor_class()):
        return convert(wrap(value._node), dtype)
    return scalar(value, dtype)


def _check_holds(value: Dim, dtype: DType) -> None:
    """Refuse an int that is traced if the dtype cannot hold it, like one that is written."""
    if not dtype.is_integer or questions.answers() is None or dtype.holds(*bounds(value)):
        return
    for relation, end in (("lt", dtype.lowest), ("gt", dtype.highest)):
        if questions.compare(relation, value, end):
            scalar(as_number(value), dtype)


def lift(value: TensorLike) -> Tensor:
    """A tensor for anything an operation takes; scalars get their default dtype."""
    if isinstance(value, tensor_class()) and not value._weak_kind:
        return value
    kind = weak_kind(value)
    if kind:
        return weak_scalar(value, _WEAK_DEFAULT[kind])
    return constant(as_array(value))


def promote(values: Sequence[Any], *, to_float: bool = False) -> list[Tensor]:
    """The values as tensors of one dtype; `to_float` sends integers to float32."""
    kinds = [weak_kind(v) for v in values]
    strong = [None if kind else lift(v) for v, kind in zip(values, kinds, strict=True)]
    dtypes = [x.dtype for x in strong if x is not None]
    whole = to_float and "f" not in (*kinds, *(d.kind for d in dtypes))
    dtype = FLOAT32 if whole else common_dtype(dtypes, kinds)
    return [
        weak_scalar(v, dtype) if x is None else convert(x, dtype)
        for v, x in zip(values, strong, strict=True)
    ]


# ------------------------------------------------------------ dtypes


def convert(x: Tensor, dtype: DType) -> Tensor:
    """The op `cast`, which saturates, to what is a dtype already."""
    if dtype == x.dtype:
        return x
    return apply("cast", x, attrs=CastAttrs(dtype))


def bitcast(x: TensorLike, dtype: DTypeLike) -> Tensor:
    """Read the same bits as another dtype of the same width."""
    return apply("bitcast", lift(x), attrs=CastAttrs(as_dtype(dtype, "bitcast")))


def weak_kind(value: Any) -> str:
    """The kind (b, i, f) a scalar asks for; empty for what has a dtype of its own."""
    if isinstance(value, tensor_class()):
        return value._weak_kind
    known = _WEAK_KINDS.get(type(value))
    if known is not None:
        return known
    if isinstance(value, (bool, np.bool_)):
        return "b"
    if isinstance(value, _INTEGERS):
        return "i"
    if isinstance(value, (float, np.floating)):
        return "f"
    return _foreign_kind(value)


def _foreign_kind(value: Any) -> str:
    """ml_dtypes' scalars are NumPy generics outside NumPy's number classes."""
    if not isinstance(value, np.generic) or not is_known(value.dtype):
        return ""
    return "f" if as_dtype(value.dtype).is_float else "i"


def common_dtype(strong: Sequence[DType], kinds: Sequence[str]) -> DType:
    """The dtype of an operation on operands with these dtypes and weak kinds."""
    weak = max((k for k in kinds if k), key=_KIND_ORDER.index, default="")
    if not strong:
        return _WEAK_DEFAULT[weak]
    dtype = strong[0]
    if any(other is not dtype for other in strong):
        # Floats first: they take any integers along, also those with no dtype in common.
        dtype = reduce(promote_pair, sorted(strong, key=lambda d: not d.is_float))
    if weak == "f" and not dtype.is_float:
        return FLOAT32
    if weak == "i" and dtype == BOOL:
        return INT64
    return dtype


# ------------------------------------------------------------ values that are known


def known_value(x: Tensor) -> Storage | None:
    """The elements, where no later run can have others: those of constants and scalars."""
    attrs = x._node.attrs
    match x._node.op.name:
        case "constant":
            storage: Storage = attrs.storage
            return storage
        case "scalar" if not attrs.shape:
            return Storage(np.array(attrs.value, x.dtype.numpy))
    return None


def given_value(x: Tensor) -> Storage | None:
    """The elements a leaf was made with: those of params too, which may be replaced."""
    if x._node.op.name == "param":
        storage: Storage = x._node.attrs.storage
        return None if storage.is_missing else storage
    return known_value(x)


# ------------------------------------------------------------ data


def as_array(value: Any, dtype: DType | None = None) -> Array:
    """A C-contiguous array with one of our dtypes, from anything NumPy or DLPack reads.

    It is a fresh one, unless the data lies where nobody can write: in bytes, or in a file
    that is mapped for reading.
    """
    array = _read_array(value)
    if dtype is None:
        dtype = _default_dtype(value, array)
    if array.dtype == dtype.numpy and is_immutable(array):
        return array
    if array.dtype != dtype.numpy:
        return np.ascontiguousarray(_converted(array, dtype)).reshape(array.shape)
    return np.array(array, order="C", copy=True)


def _converted(array: Array, dtype: DType) -> Array:
    """The numbers in another dtype; text is none, and an imaginary part is not dropped."""
    is_large = array.dtype.kind == "O" and all(isinstance(v, (int, float)) for v in array.flat)
    if array.dtype.kind in "OSUcmM" and not is_large:  # NumPy has objects for ints beyond a word
        raise _no_numbers(array)
    try:
        with np.errstate(all="ignore"):
            return as_dtype_array(array, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise _no_numbers(array) from error


def _no_numbers(array: Array) -> GraphError:
    found = f"{array.dtype.name} elements" if array.ndim else repr(array[()])
    message = f"data must be bool, integer or real numbers, got {found}."
    return GraphError("Tensor", message)


def _read_array(value: Any) -> Array:
    if isinstance(value, (list, tuple)) and any(isinstance(v, tensor_class()) for v in value):
        raise GraphError(
            "Tensor", "data must be plain numbers, got a list of tensors.", hint="Use semel.stack."
        )
    return read_array(value, lambda sentence: GraphError("Tensor", f"data {sentence}"))


def _default_dtype(value: Any, array: Array) -> DType:
    """Lists of Python numbers get float32 and int64; everything else keeps its dtype."""
    plain = isinstance(value, (list, tuple, float)) and not isinstance(value, np.generic)
    if array.dtype.kind == "f" and plain and not _holds_typed(value):
        return FLOAT32
    if array.dtype.kind in "OSUcmMV" and not is_known(array.dtype):
        raise _no_numbers(array)
    return as_dtype(array.dtype, "Tensor")


def _holds_typed(value: Any) -> bool:
    """Whether the first leaf of nested lists carries a dtype, like a NumPy scalar does."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return hasattr(value, "dtype")


# ------------------------------------------------------------ arguments


def is_integer(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy."""
    return isinstance(value, (int, np.integer))


def whole_number(value: Any, name: str, where: str) -> int:
    """An int, or a GraphError that names what must be one."""
    if isinstance(value, SYMBOLIC) and questions.answers() is not None:
        return as_number(value)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise GraphError(where, f"{name} must be an int, got {value!r}.")
    return int(value)


def whole_numbers(values: Any, name: str, where: str) -> tuple[int, ...]:
    """One int or several, as a tuple."""
    if isinstance(values, _TEXT) or not isinstance(values, Iterable):
        values = (values,)
    return tuple(whole_number(value, name, where) for value in values)


def whole_dims(values: Any, name: str, where: str) -> tuple[Dim, ...]:
    """One int or expression of either sign, or several, as a tuple."""
    if isinstance(values, (*_TEXT, *SYMBOLIC)) or not isinstance(values, Iterable):
        values = (values,)
    return tuple(v if isinstance(v, SYMBOLIC) else whole_number(v, name, where) for v in values)


def normalize_axis(axis: Any, ndim: int, where: str) -> int:
    """A non-negative axis, or a GraphError that names the range."""
    number = whole_number(axis, "axis", where)
    if not -ndim <= number < ndim:
        raise GraphError(where, f"axis must lie in [{-ndim}, {ndim}), got axis={axis}.", axis=axis)
    return number % ndim


def normalize_axes(axes: Any, ndim: int, where: str) -> tuple[int, ...]:
    """Distinct non-negative axes, in the order given; None means all of them."""
    if axes is None:
        return tuple(range(ndim))
    given = whole_numbers(axes, "axis", where)
    result = tuple(normalize_axis(axis, ndim, where) for axis in given)
    if len(set(result)) != len(result):
        raise GraphError(where, f"axes must be distinct, got {given}.")
    return result
