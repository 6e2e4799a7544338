"""NumPy's functions on tensors: `np.sin(t)`, `np.add(array, t)`, `np.concatenate([t, u])`.

    np.f(tensor, ...)  --__array_ufunc__ | __array_function__-->  our f  -->  Tensor

A function of NumPy's is ours of the same name, so that what it says of a tensor is a tensor; the
tables here say only where names or arguments differ. What asks for values (comparing, printing,
saving) computes them. Everything else is refused, and names the way to write it: nothing is
computed silently. Functions and their arguments are looked up when one is first called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from semel.errors import GraphError, UnsupportedError
from semel.ir.types import as_dtype
from semel.tensor import (
    contract,
    creation,
    dtypes,
    elementwise,
    late,
    movement,
    pieces,
    reduce,
    unary,
)
from semel.tensor.elementwise import BINARY, binary
from semel.tensor.handle import convert, lift, promote, tensor_class, weak_kind, wrap
from semel.tensor.realize import value_of

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

Function = Callable[..., Any]
_NOTHING = (None, np._NoValue)

# ------------------------------------------------------------ ufuncs

#: Ufuncs that are an op of two operands, by the op.
_OPS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "floor_divide": "idiv",
    "remainder": "imod", "fmod": "fmod", "maximum": "max", "minimum": "min", "arctan2": "atan2",
    "equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt",
    "greater_equal": "ge", "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor",
    "left_shift": "shl", "right_shift": "shr",
}  # fmt: skip
#: Other ufuncs that have another name here.
_UFUNC_NAMES = {
    "power": "pow", "negative": "neg", "absolute": "abs", "fabs": "abs", "rint": "round",
    "invert": "bitwise_not", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "conjugate": "conj",
    "positive": "__pos__", "divmod": "__divmod__",
}  # fmt: skip
_REDUCED = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all",
    "logical_or": "any", "logaddexp": "logsumexp",
}  # fmt: skip
_ACCUMULATED = {"add": "cumsum", "multiply": "cumprod", "maximum": "cummax", "minimum": "cummin"}
_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
#: Options of ufuncs that say what is so anyway.
_USUAL = {"casting": ("same_kind",), "order": ("K",), "subok": (True,), "where": (True,)}


def array_ufunc(x: Tensor, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
    """NumPy's `__array_ufunc__`: the ufunc as a node, whatever side the tensor stands on."""
    function = _ufunc(ufunc)
    if method == "__call__" and not options and function is not None:
        return function(*inputs)
    where = f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
    if function is None:
        raise _no_lazy_form(where)
    return _with_options(ufunc.__name__, where, method, function, inputs, options)


@cache
def _ufunc(ufunc: np.ufunc) -> Function | None:
    """What computes a ufunc: None for one that is not NumPy's own, or that we have not."""
    name = ufunc.__name__
    if getattr(np, name, None) is not ufunc:
        return None
    if name in _OPS:
        return partial(_binary, _OPS[name])
    return _ours(_UFUNC_NAMES.get(name, name))


def _binary(op: str, a: Any, b: Any) -> Tensor:
    """The op on what may be a tensor on either side; a number has no dtype on either."""
    if isinstance(a, tensor_class()):
        return binary(a, op, b)
    if isinstance(b, tensor_class()) and weak_kind(a):
        return binary(b, op, a, swap=True)
    return binary(lift(a), op, b)


def _with_options(
    name: str, where: str, method: str, function: Function, inputs: Any, options: dict[str, Any]
) -> Any:
    if options.pop("out", None) is not None:
        raise _no_out(where)
    if method not in ("__call__", "outer", "reduce", "accumulate"):
        raise UnsupportedError(
            where,
            "has no lazy form.",
            hint="Use t.index_add and t.scatter, or take the values: t.numpy().",
        )
    if method in ("reduce", "accumulate"):
        return _running(name, where, method, inputs, options)
    dtype, axis = options.pop("dtype", None), {}
    if name == "vecdot" and "axis" in options:
        axis["axis"] = options.pop("axis")
    _check_usual(where, options)
    if dtype is not None and name not in _COMPARISONS:
        inputs = [convert(x, as_dtype(dtype, where)) for x in promote(inputs)]
    if method == "outer":
        a, b = lift(inputs[0]), lift(inputs[1])
        return function(a.reshape(*a.shape, *(1,) * b.ndim), b)
    return function(*inputs, **axis)


def _check_usual(where: str, options: Mapping[str, Any]) -> None:
    for option, value in options.items():
        usual = (None, *_USUAL.get(option, ()))
        if not any(value is each for each in usual) and not (
            isinstance(value, str) and value in usual
        ):
            raise _no_option(where, option)


def _running(
    name: str, where: str, method: str, inputs: Sequence[Any], options: dict[str, Any]
) -> Tensor:
    """`np.add.reduce` and `np.add.accumulate`: along the first axis, unless another is named."""
    ours = (_REDUCED if method == "reduce" else _ACCUMULATED).get(name)
    if ours is None:
        raise _no_lazy_form(where)
    names = ("array", "axis", "dtype", "out", "keepdims", "initial", "where")
    given = dict(zip(names, inputs, strict=False)) | options
    x, axis, dtype = lift(given.pop("array")), given.pop("axis", 0), given.pop("dtype", None)
    keepdims = given.pop("keepdims", False)
    for option, value in given.items():
        if not any(value is usual for usual in (*_NOTHING, *_USUAL.get(option, ()))):
            raise _no_out(where) if option == "out" else _no_option(where, option)
    x = x if dtype is None else x.cast(dtype)
    function: Function = getattr(tensor_class(), ours)
    made: Tensor = function(x, axis, keepdims) if method == "reduce" else function(x, axis)
    return made


# ------------------------------------------------------------ other functions


@dataclass(frozen=True, slots=True)
class _Call:
    """How a function of NumPy's becomes one of ours.

    `operands` of its parameters are passed in their places, all others by name: by those that
    `names` gives instead of NumPy's. What is in `dropped` changes nothing here. `first` is a dtype
    cast before what takes none.
    """

    ours: str = ""  #: the name here, if it is another one
    operands: int = 1
    names: Mapping[str, str] | None = None
    dropped: tuple[str, ...] = ()


_AXES = {"axis1": "a", "axis2": "b"}
_PAIR = _Call(operands=2)
#: Functions whose names or arguments differ; of all others both are the same.
_CALLS: dict[str, _Call] = {
    "amax": _Call("max"),
    "amin": _Call("min"),
    "around": _Call("round"),
    "broadcast_to": _Call(operands=2, dropped=("subok",)),
    "concatenate": _Call("concat"),
    "copy": _Call("__copy__", dropped=("order", "subok")),
    "clip": _Call(operands=3),
    "diag": _Call(operands=2),
    "diagonal": _Call(operands=4),
    "trace": _Call(operands=4),
    "empty_like": _Call(dropped=("order", "subok")),
    "zeros_like": _Call(dropped=("order", "subok")),
    "ones_like": _Call(dropped=("order", "subok")),
    "full_like": _Call(operands=2, dropped=("order", "subok")),
    "expand_dims": _Call("unsqueeze", operands=2),
    "moveaxis": _Call(operands=3),
    "repeat": _Call(operands=2),
    "pad": _Call(operands=2, names={"constant_values": "value"}),
    "reshape": _Call(operands=2, dropped=("copy",)),
    "roll": _Call(operands=2),
    "sort": _Call(dropped=("kind", "stable")),
    "argsort": _Call(dropped=("kind", "stable")),
    "split": _Call(operands=2),
    "swapaxes": _Call(operands=3),
    "take": _Call(operands=2),
    "take_along_axis": _Call(operands=3),
    "tile": _Call(operands=2),
    "transpose": _Call(operands=2),
    "permute_dims": _Call("transpose", operands=2),
    "tril": _Call(operands=2),
    "triu": _Call(operands=2),
    **dict.fromkeys(("array_split", "hsplit", "vsplit", "dsplit"), _PAIR),
    **dict.fromkeys(("dot", "inner", "vdot", "kron", "outer", "cross", "isclose", "isin"), _PAIR),
    **dict.fromkeys(("searchsorted", "digitize", "tensordot", "quantile", "percentile"), _PAIR),
    **dict.fromkeys(("nanquantile", "nanpercentile", "argpartition", "partition"), _PAIR),
    "interp": _Call(operands=3),
}
#: Functions about values: these are computed, and the answer is NumPy's.
_OF_VALUES = {
    "allclose", "array2string", "array_equal", "array_equiv", "array_repr", "array_str", "copyto",
    "iscomplexobj", "isrealobj", "may_share_memory", "save", "savetxt", "savez",
    "savez_compressed", "shares_memory",
}  # fmt: skip


def array_function(x: Tensor, function: Function, types: Any, args: Any, options: Any) -> Any:
    """NumPy's `__array_function__`: ours of the same name; values only where they are asked for."""
    return _function(function)(args, options)


@cache
def _function(function: Function) -> Callable[[Any, Any], Any]:
    """What answers for a function of NumPy's, given its arguments."""
    module = getattr(function, "__module__", "") or ""
    name = f"{module}.{function.__name__}".removeprefix("numpy.")
    where = f"np.{name}"
    if name in _OF_VALUES:
        return lambda args, options: function(*_computed(args), **_computed(options))
    if name in _WRITTEN_HERE:
        return partial(_written_here, _WRITTEN_HERE[name], where)
    row = _CALLS.get(name, _Call())
    ours = _ours(row.ours or name)
    if name in _COMPLEX:
        return partial(_refuse_complex, where)
    if ours is None or name in _OTHERWISE:
        return partial(_refuse, where)
    return _Adapter(where, function, ours, row)


#: Functions that take or give complex numbers, which are pairs here: [.., 2].
_COMPLEX = frozenset(
    f"fft.{name}"
    for kind in ("", "2", "n")
    for name in (f"fft{kind}", f"ifft{kind}", f"rfft{kind}", f"irfft{kind}")
)
#: Functions whose name means something else here: images are resized.
_OTHERWISE = {"resize"}


class _Adapter:
    """One function of NumPy's with its arguments, on ours with its own."""

    def __init__(self, where: str, function: Function, ours: Function, row: _Call) -> None:
        parameters = inspect.signature(function).parameters.values()
        self.where, self.ours, self.row = where, ours, row
        self.names = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        self.takes_more = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self.usual = {p.name: p.default for p in parameters}
        self.known = {p.name for p in inspect.signature(ours).parameters.values()}

    def __call__(self, args: Any, options: Mapping[str, Any]) -> Any:
        row, more = self.row, args[self.row.operands :] if self.takes_more else ()
        given = dict(zip(self.names, args[: len(args) - len(more)], strict=False))
        given.update(options)
        operands = []
        for name in self.names[: row.operands]:
            if name not in given:
                break
            operands.append(given.pop(name))
        rest: dict[str, Any] = {}
        for name, value in given.items():
            own = (row.names or {}).get(name, name)
            if name in row.dropped or self._is_usual(name, value):
                continue
            if own in self.known:
                rest[own] = value
            elif name == "dtype":
                operands[0] = _cast(operands[0], value, self.where)
            else:
                raise _no_out(self.where) if name == "out" else _no_option(self.where, name)
        return self.ours(*operands, *more, **rest)

    def _is_usual(self, name: str, value: Any) -> bool:
        usual = self.usual.get(name, inspect.Parameter.empty)
        if value is usual or value is _NOTHING[1]:
            return True
        return (
            isinstance(usual, (str, int, float)) and type(value) is type(usual) and value == usual
        )


def _cast(given: Any, dtype: Any, where: str) -> Any:
    wanted = as_dtype(dtype, where)
    if isinstance(given, (list, tuple)):
        return [convert(lift(x), wanted) for x in given]
    return convert(lift(given), wanted)


def _ours(name: str) -> Function | None:
    """A public function of ours: of the package, or of a part of it (`linalg.inv`)."""
    part, _, last = name.rpartition(".")
    if not part:
        found = getattr(tensor_class(), name, None)
        return found if callable(found) else getattr(import_module("semel"), name, None)
    return getattr(getattr(import_module("semel"), part, None), last, None)


def _computed(value: Any) -> Any:
    """The arguments, with tensors as arrays."""
    if isinstance(value, tensor_class()):
        return value_of(value, "numpy")
    if isinstance(value, (list, tuple)):
        return type(value)(map(_computed, value))
    if isinstance(value, dict):
        return {key: _computed(each) for key, each in value.items()}
    return value


# ------------------------------------------------------------ functions that are written here


def _written_here(function: Function, where: str, args: Any, options: Mapping[str, Any]) -> Any:
    try:
        return function(*args, **options)
    except TypeError as error:
        found = str(error).partition("() ")[2]
        raise GraphError(where, f"takes other arguments for tensors: {found}.") from error


def _where(condition: Any, *choices: Any) -> Any:
    if not choices:
        return late.nonzero(condition)
    return elementwise.choose(condition, *choices)


def _einsum(*operands: Any, optimize: Any = False) -> Tensor:
    return contract.einsum(*operands)


def _meshgrid(
    *xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy"
) -> tuple[Tensor, ...]:
    if sparse:
        raise _no_option("np.meshgrid", "sparse")
    return creation.meshgrid(*xi, indexing=indexing)


def _each(function: Function, *arrays: Any) -> Any:
    made = tuple(function(x) for x in arrays)
    return made[0] if len(made) == 1 else made


def _append(arr: Any, values: Any, axis: int | None = None) -> Tensor:
    if axis is None:
        return movement.concat([movement.flatten(arr), movement.flatten(values)])
    return movement.concat([arr, values], axis)


def _ptp(a: Any, axis: Any = None, out: None = None, keepdims: Any = False) -> Tensor:
    keep = keepdims is True
    return reduce.max(a, axis, keep) - reduce.min(a, axis, keep)


def _size(a: Tensor, axis: Any = None) -> Any:
    axes = range(a.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    size: Any = 1
    for i in axes:
        size = size * a.shape[i]
    return size


def _flat_indices(a: Any) -> Tensor:
    (found,) = late.nonzero(movement.flatten(a))
    return found


def _select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """The first choice whose condition holds."""
    made = default
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        made = elementwise.choose(condition, choice, made)
    return made


_WRITTEN_HERE: dict[str, Function] = {
    "append": _append,
    "atleast_1d": partial(_each, pieces.atleast_1d),
    "atleast_2d": partial(_each, pieces.atleast_2d),
    "atleast_3d": partial(_each, pieces.atleast_3d),
    "broadcast_arrays": pieces.broadcast_arrays,
    "can_cast": dtypes.can_cast,
    "compress": lambda condition, a, axis=None: _compress(condition, a, axis),
    "copy": lambda a, order="K", subok=False: wrap(lift(a).node),
    "einsum": _einsum,
    "extract": lambda condition, arr: _compress(movement.flatten(condition), arr, None),
    "flatnonzero": _flat_indices,
    "fliplr": lambda m: movement.flip(m, 1),
    "flipud": lambda m: movement.flip(m, 0),
    "iscomplex": lambda x: unary.full_bool(lift(x), False),
    "meshgrid": _meshgrid,
    "ndim": lambda a: a.ndim,
    "ptp": _ptp,
    "result_type": dtypes.result_type,
    "select": _select,
    "shape": lambda a: a.shape,
    "size": _size,
    "where": _where,
}


def _compress(condition: Any, a: Any, axis: int | None) -> Tensor:
    """The slices where a condition along one axis holds."""
    x = lift(a).flatten() if axis is None else lift(a)
    (index,) = lift(condition).ne(0).nonzero()
    return x.take(index, 0 if axis is None else axis)


# ------------------------------------------------------------ what is refused


def _refuse(where: str, args: Any, options: Any) -> Any:
    raise _no_lazy_form(where)


def _refuse_complex(where: str, args: Any, options: Any) -> Any:
    ours = where.replace("np.", "semel.")
    raise UnsupportedError(
        where,
        "is about complex numbers, which are pairs [..., 2] of floats here.",
        hint=f"Write {ours}(t), or take the values: {where}(t.numpy()).",
    )


def _no_lazy_form(where: str) -> UnsupportedError:
    return UnsupportedError(
        where,
        "has no lazy form for tensors, and nothing is computed behind your back.",
        hint=f"Take the values: {where}(t.numpy()).",
    )


def _no_out(where: str) -> GraphError:
    return GraphError(
        where,
        "a tensor is not written into an array: out= and `array += tensor` have no lazy form.",
        hint="Write y = a + t, or array[...] = t.numpy().",
    )


def _no_option(where: str, option: str) -> GraphError:
    return GraphError(
        where,
        f"has no `{option}` for tensors.",
        hint="Write it with semel.where and casts, or take the values: t.numpy().",
    )


assert set(_OPS.values()) <= set(BINARY)
