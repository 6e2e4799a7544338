"""Which device a tensor lies on.

    x --to--> x, computed from there on where the device says

A device is part of what is written, not of a value: the numbers are the same everywhere. What is
computed from tensors of one device is computed there; constants and params are wherever
somebody reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from semel.config import settings
from semel.errors import GraphError
from semel.ir.types import DTYPES, DType, as_dtype
from semel.locks import importing
from semel.ops.attrs import MoveAttrs
from semel.runtime.free import HOST_DEVICE
from semel.tensor.handle import DTypeLike, TensorLike, apply, convert, lift

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

_DTYPES = frozenset(each.name for each in DTYPES)
_PLACED = frozenset({"input", "move", "state"})  #: ops whose attrs say where they are


def to(x: TensorLike, device: Any = None, dtype: DTypeLike | None = None) -> Tensor:
    """The same tensor on another device: what is computed from it is computed there.

    A copy in plans, beside whatever else they do. With `dtype` it is cast as well, and with that
    alone it is `astype`.
    """
    x = lift(x)
    if dtype is not None:
        x = convert(x, as_dtype(dtype, "to"))
        if device is None:
            return x
    made = apply("move", x, attrs=MoveAttrs(take_device("to", device)))
    made._value = x._value
    return made


def device_of(x: Tensor) -> str:
    """Where the tensor is computed: the device that it, or what it is made of, was put on."""
    waiting, seen = [x.node], {x.node}
    while waiting:
        node = waiting.pop()
        said: str = getattr(node.attrs, "device", "") if node.op.name in _PLACED else ""
        if said:
            return said
        fresh = [operand for operand in node.inputs if operand not in seen]
        seen.update(fresh)
        waiting += fresh
    return default_device()


def default_device() -> str:
    """Where tensors are computed that nobody put anywhere."""
    return take_device("device", settings().device or HOST_DEVICE)


def to_device(x: TensorLike, device: Any, /, *, stream: Any = None) -> Tensor:
    """`to`, by the name of the array API standard; there are no streams."""
    if stream is not None:
        raise GraphError("to_device", f"CPU memory has no streams, got stream={stream!r}.")
    x = lift(x)
    return x if take_device("to_device", device) == device_of(x) else to(x, device)


def take_device(where: str, device: Any) -> str:
    """The name that a device goes by; nothing is opened."""
    is_dtype = isinstance(device, (DType, np.dtype, type))
    if is_dtype or (isinstance(device, str) and device in _DTYPES):
        raise GraphError(
            where,
            f"takes a device, got the dtype {device!r}.",
            hint="Write x.astype(dtype), or name it: dtype=.",
        )
    with importing:
        from semel.runtime.device import check_device

    return check_device(where, device)
