"""What to write for a name that is not there.

    x.backward  -->  AttributeError: 'Tensor' has no attribute 'backward': there are no gradients

`INSTEAD` has the words of NumPy and PyTorch that mean nothing here, or go by another name; a name
that is nearly one of ours is pointed to that. All of it is text of an AttributeError, so that
`hasattr` and `getattr` with a default do what they always do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

_NO_GRADIENTS = "there are no gradients here"
_NO_STRIDES = "tensors have no memory of their own and no strides"
_NO_PYTHON = "of a compiled program: write it with functions of tensors"

#: name -> what to write, or why there is no such thing.
INSTEAD: dict[str, str] = {
    **dict.fromkeys(
        ("backward", "grad", "requires_grad", "requires_grad_", "retain_grad", "no_grad",
         "enable_grad", "inference_mode", "autograd", "grad_fn", "is_leaf"),
        _NO_GRADIENTS,
    ),
    **dict.fromkeys(("strides", "stride", "is_contiguous", "storage", "data_ptr", "untyped_storage",
                     "ascontiguousarray", "asfortranarray", "as_strided"), _NO_STRIDES),
    **dict.fromkeys(("cuda", "is_cuda", "get_device", "pin_memory", "mps"),
                    "a device is named: x.to(\"cpu:1\"), and x.device says where it is"),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"),
                    "use semel.zeros(shape, dtype=x.dtype) and its like"),
    **dict.fromkeys(("tensor", "array", "asanyarray", "as_tensor", "from_numpy", "ndarray",
                     "fromiter", "frombuffer"), "use Tensor(data) or semel.asarray(data)"),
    **dict.fromkeys(("itemsize", "element_size"), "use x.dtype.itemsize"),
    **dict.fromkeys(("nbytes", "tobytes", "dump", "byteswap"), "use x.numpy(), an array"),
    **dict.fromkeys(("vectorize", "frompyfunc", "apply_along_axis", "apply_over_axes",
                     "fromfunction", "apply_", "map_", "apply"),
                    f"a function of Python's is no part {_NO_PYTHON}"),
    **dict.fromkeys(("compile", "script"), "use semel.jit(function), or x.prepare()"),
    **dict.fromkeys(("save", "savez"), "use plan.save(file), or np.save(file, x.numpy())"),
    **dict.fromkeys(("trapz",), "use trapezoid"),
    **dict.fromkeys(("in1d",), "use isin"),
    **dict.fromkeys(("msort", "sort_complex"), "use sort(0)"),
    **dict.fromkeys(("lexsort",), "sort by the last key first: argsort is stable"),
    **dict.fromkeys(("ger",), "use outer"),
    **dict.fromkeys(("convolve", "correlate"), "use conv1d"),
    **dict.fromkeys(("kthvalue",), "use x.sort(axis).take(k - 1, axis)"),
    **dict.fromkeys(("aminmax",), "use x.min(axis), x.max(axis)"),
    **dict.fromkeys(("var_mean", "std_mean"), "use x.var(axis), x.mean(axis): they fuse"),
    **dict.fromkeys(("Parameter", "nn", "Module"), "weights are Tensor.param(name, data)"),
    **dict.fromkeys(("alltrue",), "use all"),
    **dict.fromkeys(("sometrue",), "use any"),
    **dict.fromkeys(("product",), "use prod"),
    **dict.fromkeys(("cumproduct",), "use cumprod"),
    **dict.fromkeys(("round_",), "use round"),
    **dict.fromkeys(("NaN", "NAN"), "use semel.nan"),
    **dict.fromkeys(("Inf", "Infinity"), "use semel.inf"),
    "H": "dtypes are real: use x.mT",
    "adjoint": "dtypes are real: use x.mT",
    "view_as_real": "dtypes are real",
    "data": "use x.numpy() for the values",
    "fill": "use x.full_like(value)",
    "put": "use x.index_put, or x[indices] = values",
    "compress": "use semel.compress(condition, x, axis), or x[mask]",
    "append": "use semel.append(x, values, axis), or semel.concat",
    "histogram2d": "digitize both axes, and bincount the flat index with length=",
    "histogramdd": "digitize all axes, and bincount the flat index with length=",
    **dict.fromkeys(("eig", "eigvals"),
                    "eigenvalues of such matrices are complex: use eigh and eigvalsh of symmetric "
                    "ones, or np.linalg.eig(x.numpy())"),
    "hfft": "use semel.fft.irfft of the conjugates, times n",
    "ihfft": "use the conjugates of semel.fft.rfft, divided by n",
    "diag_embed": "use x.unsqueeze(-1) * semel.eye(n)",
    "fill_diagonal": "use semel.where(semel.eye(n, dtype=bool), value, x)",
    "sum_to_size": "use x.sum(axis, keepdims=True)",
    "share_memory_": "plans are shared: plan.clone(), and plan files between processes",
    "is_floating_point": "use x.dtype.is_float",
    "ndim": "use x.ndim",
    "shape": "use x.shape",
    "size": "use x.size",
    "device": "use x.device",
    "dtype": "use x.dtype",
    "float": "use semel.float32, or x.float()",
    "double": "use semel.float64, or x.double()",
    "half": "use semel.float16, or x.half()",
    "int": "use semel.int32, or x.int()",
    "long": "use semel.int64, or x.long()",
    "short": "use semel.int16, or x.short()",
    "piecewise": "use semel.select(conditions, choices)",
    "block": "use semel.concat of rows that are semel.concat",
    "i0": "there are no Bessel functions",
    "polyval": "use Horner's rule: ((a * x) + b) * x + c",
    "einsum_path": "the compiler chooses the order; einsum is all there is to write",
    "renorm": "use x * (most / x.norm(2, axes, keepdims=True)).clip(max=1)",
    "rollaxis": "use moveaxis",
    "mode": "use semel.unique(x, return_counts=True)",
    "nonzero_static": "use x.nonzero(): its size is a dim that the run finds out",
    "inner1d": "use vecdot",
    "contiguous": "tensors are contiguous",
    "detach": _NO_GRADIENTS,
}  # fmt: skip


def advice(name: str, ours: Callable[[], Iterable[str]]) -> str:
    """What to write for `name`, to be put behind a message; empty if nothing comes to mind.

    `ours` gives the names there are; it is not asked for what libraries look for (`__array__`).
    """
    if name.startswith("_"):
        return ""
    known = INSTEAD.get(name)
    if known is not None:
        return f": {known}."
    names = sorted(n for n in ours() if not n.startswith("_"))
    plain = name.rstrip("_")
    if plain != name and plain in names:
        return f": tensors are not changed in place; write x = x.{plain}(...)."
    near = get_close_matches(name, names, 3, 0.75)
    return f". Did you mean {' or '.join(map(repr, near))}?" if near else ""


def of_module(
    module: str, names: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module of functions: what to write, and no internals."""

    def missing(name: str) -> Any:
        found = f"module {module!r} has no attribute {name!r}"
        raise AttributeError(found + advice(name, lambda: names), name=name)

    return missing, lambda: sorted(names)
