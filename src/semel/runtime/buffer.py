"""Buffers: typed windows of memory, with copies in and out.

    array --copyin--> Buffer --numpy(), copyout--> array

A buffer is a range of bytes of one `Memory`. Several buffers may share bytes (`view`); whether
two of them overlap is a matter of (storage, start, end) and never of identity. A buffer
that belongs to a plan asks its *keeper* before it is read or written: the keeper knows the
shape at the current variables, whether the contents are valid, and whether the plan is
released. A view of such a buffer asks the same keeper.

Invariant: reads and writes copy; no array handed out aliases a buffer, except what is asked
of `borrow()` in so many words.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import prod
from os import PathLike
from typing import Any, Protocol, TypeVar

import numpy as np

from semel.errors import InputError, PlanError, ReleasedError, StaleError
from semel.ir.fields import take_arrays, take_int
from semel.ir.listed import public_names
from semel.ir.narrow import to_narrow
from semel.ir.types import DType, TensorType, as_dtype, as_shape
from semel.runtime.device import check_device, choose_device, find_device
from semel.runtime.free import HOST_DEVICE
from semel.runtime.hold import Hold
from semel.runtime.interop import NUMPY_PROTOCOLS, check_unmasked, read_array
from semel.runtime.memory import Memory
from semel.runtime.spec import DeviceSpec

Array = np.ndarray[Any, Any]
ConcreteShape = tuple[int, ...]
ByteSpan = tuple[int, int]  #: from and to, counted from a buffer's first byte
R = TypeVar("R")


class Keeper(Protocol):
    """The plan's side of a buffer that it owns; `hold` keeps a run from changing it meanwhile."""

    @property
    def hold(self) -> Hold: ...

    def shape_now(self) -> ConcreteShape:
        """The shape at the current variables; raises if one is not bound."""

    def begin_write(self, shape: ConcreteShape) -> None:
        """Refuse a shape that the buffer's type does not allow; contents of another are void."""

    def end_write(self, shape: ConcreteShape) -> None:
        """Remember the shape that was written. Never called if a signal handler interrupts."""

    def begin_part_write(self) -> None:
        """Refuse to have part of the contents written if the rest is not valid."""

    def begin_read(self, part: ByteSpan | None = None) -> ConcreteShape:
        """The shape of what may be read now; raises if it, or this part of it, is not valid."""

    def generation(self) -> int:
        """Changes whenever the contents may have changed."""


#: Members that the package uses, and people need not be offered.
_OURS = frozenset(
    {
        "keep",
        "keeper",
        "move",
        "peek",
        "put",
        "put_part",
        "set_whole",
        "whole",
        "memory",
    }
)


class Buffer:
    """Typed memory. `Buffer(array)` copies the array; `Buffer.empty` is zeroed.

    >>> buffer = Buffer.empty((3,), "float32")
    >>> buffer.copyin(np.array([1, 2, 3], np.float32))
    >>> buffer.numpy().tolist(), buffer.nbytes
    ([1.0, 2.0, 3.0], 12)
    """

    __slots__ = (
        "__weakref__",
        "_keeper",
        "_whole",
        "capacity_bytes",
        "device",
        "memory",
        "offset",
        "type",
    )

    memory: Memory  #: the block that it lies in
    offset: int  #: of its first byte in that block
    capacity_bytes: int  #: room for the largest shape
    type: TensorType  #: dtype and shape, whose dims may be variables
    device: str  #: where the memory is, by name
    _keeper: Keeper | None
    _whole: Buffer | None

    def __init__(self, array: Any) -> None:
        given = read_array(array, lambda sentence: InputError("Buffer", f"array {sentence}"))
        source = np.ascontiguousarray(given).reshape(given.shape)
        kind = TensorType(as_shape(source.shape, "Buffer"), as_dtype(source.dtype, "Buffer"))
        name = choose_device("Buffer", None)
        self._set(find_device(name).allocate(source.nbytes), 0, source.nbytes, kind, name)
        self.put(source)

    def _set(
        self, memory: Memory, offset: int, capacity_bytes: int, type_: TensorType, device: str
    ) -> None:
        self.memory, self.offset, self.capacity_bytes = memory, offset, capacity_bytes
        self.type, self.device, self._keeper, self._whole = type_, device, None, None

    @staticmethod
    def empty(shape: Any, dtype: Any, device: str | DeviceSpec | None = None) -> Buffer:
        """A zeroed buffer; every dim must be an int, and the device one that is there."""
        name = choose_device("Buffer.empty", device)
        kind = TensorType(as_shape(shape, "Buffer.empty"), as_dtype(dtype, "Buffer.empty"))
        size = kind.num_bytes
        if not isinstance(size, int):
            raise PlanError("Buffer.empty", f"dims must be ints, got {kind}.")
        return Buffer.window(find_device(name).allocate(size), 0, size, kind, name)

    @staticmethod
    def from_file(
        path: str | PathLike[str], shape: Any, dtype: Any, *, byte_offset: int = 0
    ) -> Buffer:
        """What lies in a file from `byte_offset` on, as a buffer of the device `disk:path`.

        Nothing is read by asking. What is written to the buffer is written to the file.
        """
        where = "Buffer.from_file"
        name = check_device(where, f"disk:{os.fspath(path)}")
        kind = TensorType(as_shape(shape, where), as_dtype(dtype, where))
        offset, size = take_int(where, "byte_offset", byte_offset), kind.num_bytes
        if not isinstance(size, int):
            raise PlanError(where, f"dims must be ints, got {kind}.")
        if not os.path.exists(path):  # a device makes its file, which would be empty
            raise InputError(where, f"there is no file {os.fspath(path)}.")
        device: Any = find_device(name)
        return Buffer.window(device.window(offset, size), 0, size, kind, name)

    @staticmethod
    def window(
        memory: Memory,
        offset: int,
        capacity_bytes: int,
        type_: TensorType,
        device: str = HOST_DEVICE,
    ) -> Buffer:
        """A buffer over bytes [offset, offset + capacity_bytes) of existing memory."""
        buffer = Buffer.__new__(Buffer)
        buffer._set(memory, offset, capacity_bytes, type_, device)
        return buffer

    def keep(self, keeper: Keeper | None) -> None:
        """Let a plan answer for shape and validity from now on, or nobody."""
        self._keeper = keeper

    def move(self, memory: Memory, offset: int, capacity_bytes: int) -> None:
        """Point to other memory; the contents are the mover's business."""
        self.memory, self.offset, self.capacity_bytes = memory, offset, capacity_bytes

    # ------------------------------------------------------------ what it is

    @property
    def dtype(self) -> DType:
        """What an element is."""
        return self.type.dtype

    @property
    def shape(self) -> ConcreteShape:
        """The shape now: of a plan's buffer, at the current variables."""
        return self._static_shape() if self._keeper is None else self._keeper.shape_now()

    @property
    def whole(self) -> Buffer | None:
        """The buffer that this one was made a view of, which answers for the contents."""
        return self._whole

    def set_whole(self, whole: Buffer) -> None:
        """Let `whole`, whose bytes these are part of, answer for the contents."""
        self._whole = whole

    @property
    def keeper(self) -> Keeper | None:
        """Who answers for the contents: its own plan, or that of the buffer it is a view of."""
        if self._keeper is not None or self._whole is None:
            return self._keeper
        whole = self._whole.keeper
        return None if whole is None else _PartKeeper(whole, self._whole, self)

    @property
    def nbytes(self) -> int:
        """Bytes that the shape takes now."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.size_bytes

    @property
    def storage_id(self) -> int:
        """The number of the block of memory: buffers that share bytes have the same."""
        return self.memory.id

    @property
    def address(self) -> int:
        """Where its first byte lies now, as native code takes it."""
        return self._alive().address + self.offset

    @property
    def byte_range(self) -> tuple[int, int, int]:
        """(storage, start, end): what hazards are computed from."""
        return self.memory.id, self.offset, self.offset + self.capacity_bytes

    def __dir__(self) -> list[str]:
        return public_names(self, _OURS)

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.type.shape))
        place = f"{self.device}, storage {self.memory.id}+{self.offset}"
        return f"Buffer({self.dtype.name}[{shape}], {self.capacity_bytes:,} bytes, {place})"

    def _static_shape(self) -> ConcreteShape:
        return tuple(d for d in self.type.shape if isinstance(d, int))

    def _alive(self) -> Memory:
        if not self.memory.is_alive:
            raise ReleasedError("Buffer", "its memory was released.")
        return self.memory

    # ------------------------------------------------------------ data

    def view(self, byte_offset: int, byte_size: int) -> Buffer:
        """A flat buffer of the same dtype over part of these bytes.

        A view of a plan's buffer is valid when the whole is, and goes stale if the plan grows.
        """
        item = self.dtype.size_bytes
        byte_offset = take_int("Buffer.view", "byte_offset", byte_offset)
        byte_size = take_int("Buffer.view", "byte_size", byte_size)
        if byte_offset < 0 or byte_size < 0 or byte_offset + byte_size > self.capacity_bytes:
            raise PlanError(
                "Buffer.view",
                f"[{byte_offset}, {byte_offset + byte_size}) must lie within the buffer's "
                f"{self.capacity_bytes} bytes.",
            )
        if byte_offset % item or byte_size % item:
            raise PlanError(
                "Buffer.view",
                f"offset and size must be multiples of {item} bytes, "
                f"got {byte_offset} and {byte_size}.",
            )
        kind = TensorType((byte_size // item,), self.dtype)
        part = Buffer.window(self.memory, self.offset + byte_offset, byte_size, kind, self.device)
        part._whole = self
        return part

    def array(self, shape: ConcreteShape | None = None) -> Array:
        """The memory itself as an array. For the package's own use: it aliases the buffer.

        Only memory of the host can be looked at this way.
        """
        wanted = self.shape if shape is None else shape
        size = prod(wanted) * self.dtype.size_bytes
        data = self._alive().view(self.offset, size)
        return np.ndarray(wanted, self.dtype.numpy, data.data)

    def put(self, array: Array) -> None:
        """Write an array of this dtype, whatever its shape. For the package's own use."""
        self._alive().copy_in(self.offset, array)

    def put_part(self, shape: ConcreteShape, part: tuple[slice, ...], array: Array) -> None:
        """Write a part of what is here in this shape. For the package's own use."""
        if self._alive().is_host:
            self.array(shape)[part] = array
        else:
            whole = self.peek(shape).copy()
            whole[part] = array
            self.put(whole)

    def peek(self, shape: ConcreteShape) -> Array:
        """The contents to read from, in place or a copy. For the package's own use."""
        memory = self._alive()
        if memory.is_host:
            return self.array(shape)
        data = memory.copy_out(self.offset, prod(shape) * self.dtype.size_bytes)
        return data.view(self.dtype.numpy).reshape(shape)

    def copyin(self, array: Any) -> None:
        """Write an array of this dtype; a plan's input takes any shape its type allows."""
        source = as_array(array, self.dtype, "copyin")
        keeper = self.keeper
        if keeper is not None:
            keeper.hold.alone(self._write, keeper, source)
            return
        if source.shape != self.shape:
            raise InputError(
                "copyin", f"shape must be {self.shape}, got {source.shape}.", shape=source.shape
            )
        self.put(source)

    def _write(self, keeper: Keeper, source: Array) -> None:
        keeper.begin_write(source.shape)
        self.put(source)
        keeper.end_write(source.shape)

    def copyout(self, array: Array) -> None:
        """Read into an array of this shape and dtype."""
        if not isinstance(array, np.ndarray):
            raise InputError("copyout", f"needs a NumPy array, got {type(array).__name__}.")
        check_unmasked(array, lambda sentence: InputError("copyout", f"array {sentence}"))
        if not array.flags.writeable:
            raise InputError("copyout", "array must be writeable.")
        self.alone(self._read_into, array)

    def _read_into(self, array: Array) -> None:
        shape = self.readable_shape()
        if array.shape != shape or array.dtype != self.dtype.numpy:
            raise InputError(
                "copyout",
                f"array must be {self.dtype}{list(shape)}, got {array.dtype}{list(array.shape)}.",
            )
        array[...] = self.peek(shape)

    def numpy(self) -> Array:
        """A copy of the contents, compact, at the current shape."""
        return self.alone(self._copy)

    def _copy(self) -> Array:
        found = self.peek(self.readable_shape())
        return found.copy() if self.memory.is_host else found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """For NumPy: the same copy as `numpy()`, and the same refusals."""
        if copy is False:
            # What NumPy asks to be told in this case; its own words for it are no help.
            raise ValueError("[Buffer] a copy is made of a buffer; borrow() looks without one.")
        found = self.numpy()
        return found if dtype is None else found.astype(dtype, copy=False)

    def borrow(self) -> BorrowedArray:
        """A read-only look without a copy; it raises once the contents may have changed."""
        return self.alone(BorrowedArray, self)

    def generation(self) -> int:
        """Changes with every execute of the plan that owns this buffer; 0 without a plan."""
        keeper = self.keeper
        return 0 if keeper is None else keeper.generation()

    def alone(self, action: Callable[..., R], *args: Any) -> R:
        """`action(*args)`, with the plan that owns this buffer to ourselves if there is one."""
        keeper = self.keeper
        return action(*args) if keeper is None else keeper.hold.alone(action, *args)

    def readable_shape(self) -> ConcreteShape:
        """The shape of what may be read now; raises if there is nothing valid."""
        keeper = self.keeper
        return self.shape if keeper is None else keeper.begin_read()


class _PartKeeper:
    """Answers for a view: the whole must be valid, cover the view, and lie where it lay."""

    def __init__(self, keeper: Keeper, whole: Buffer, part: Buffer) -> None:
        self._keeper, self._whole, self._part = keeper, whole, part

    @property
    def hold(self) -> Hold:
        return self._keeper.hold

    def shape_now(self) -> ConcreteShape:
        return self._part._static_shape()

    def begin_write(self, shape: ConcreteShape) -> None:
        self._check_place()
        if shape != self.shape_now():
            raise InputError("copyin", f"shape must be {self.shape_now()}, got {shape}.")
        self._keeper.begin_part_write()
        self._check_covered(self._keeper.shape_now())

    def end_write(self, shape: ConcreteShape) -> None:
        """A part is written in the shape that it has."""

    def begin_part_write(self) -> None:
        self._check_place()
        self._keeper.begin_part_write()

    def begin_read(self, part: ByteSpan | None = None) -> ConcreteShape:
        self._check_place()
        first = self._part.offset - self._whole.offset
        start, end = (0, self._part.capacity_bytes) if part is None else part
        self._check_covered(self._keeper.begin_read((first + start, first + end)))
        return self.shape_now()

    def generation(self) -> int:
        return self._keeper.generation()

    def _check_place(self) -> None:
        if self._whole.memory is not self._part.memory:
            raise StaleError("Buffer.view", "the buffer it shows part of lies elsewhere now.")

    def _check_covered(self, shape: ConcreteShape) -> None:
        used = prod(shape) * self._whole.dtype.size_bytes
        end = self._part.offset + self._part.capacity_bytes - self._whole.offset
        if end > used:
            raise StaleError(
                "Buffer.view",
                f"must lie within the {used} bytes in use at the current variables, ends at {end}.",
            )


class BorrowedArray:
    """A look at a plan's buffer that is good until the plan runs again.

    Every access checks that. What it gives is a copy of what was asked for, except from
    `array()`, `__array__(copy=False)` and `__dlpack__(copy=False)`: those alias the buffer,
    and nobody can check what is done with them later.
    """

    __slots__ = ("_buffer", "_generation", "_memory", "_shape")

    def __init__(self, buffer: Buffer) -> None:
        self._buffer, self._memory = buffer, buffer.memory
        # The shape and not the array, so that a view does not hold memory that is released.
        self._shape = buffer.readable_shape()
        self._generation = buffer.generation()

    @property
    def is_stale(self) -> bool:
        """Whether the contents may have changed since this was taken."""
        buffer = self._buffer
        moved = buffer.memory is not self._memory or not buffer.memory.is_alive
        return moved or buffer.generation() != self._generation

    @property
    def shape(self) -> ConcreteShape:
        return self._shape

    @property
    def dtype(self) -> DType:
        return self._buffer.dtype

    def array(self) -> Array:
        """The memory itself, read-only, if its contents are still those that were borrowed."""
        if self.is_stale:
            self._buffer._alive()
            raise StaleError("borrow", "the plan ran again after this view was taken.")
        array = self._buffer.array(self._shape)
        array.flags.writeable = False
        return array

    def numpy(self) -> Array:
        """A copy of the contents."""
        return self._buffer.alone(self._copy, ...)

    def __getitem__(self, key: Any) -> Any:
        return self._buffer.alone(self._copy, key)

    def _copy(self, key: Any) -> Any:
        found = self.array()[key]
        return found.copy() if isinstance(found, np.ndarray) else found

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of a borrowed scalar")
        return self._shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            return np.array(self.array(), dtype=dtype, copy=False)
        return np.asarray(self.numpy(), dtype=dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array().__dlpack_device__()

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        options = {"stream": stream, "max_version": max_version, "dl_device": dl_device}
        source = self.array() if copy is False else self.numpy()
        return source.__dlpack__(**options, copy=copy or None)


def read_arrays(where: str, arrays: Any) -> dict[str, Any]:
    """Arrays by name for an operation on a plan, to be called before it is held.

    What lies in a plan's memory is copied: it may be that plan's, which cannot be asked inside.
    """
    return {
        name: value.numpy() if isinstance(value, (Buffer, BorrowedArray)) else value
        for name, value in take_arrays(where, arrays).items()
    }


def as_array(value: Any, dtype: DType, where: str) -> Array:
    """`value` as an array of `dtype`: Python numbers and lists are converted, arrays not."""

    def refuse(sentence: str) -> InputError:
        return InputError(where, sentence)

    if type(value) is np.ndarray:  # neither masked nor anything else
        array = value
    elif any(hasattr(value, protocol) for protocol in (*NUMPY_PROTOCOLS, "__dlpack__")):
        array = read_array(value, refuse)
    else:
        check_unmasked(value, refuse)
        return _convert(value, dtype, where)
    if array.dtype != dtype.numpy:
        raise InputError(where, f"dtype must be {dtype}, got {array.dtype}.", hint="Cast it first.")
    return array


def as_array_of(value: Any, dtype: DType, shape: tuple[Any, ...], where: str) -> Array:
    """The same, which must have this shape."""
    array = as_array(value, dtype, where)
    if array.shape != shape:
        raise InputError(where, f"shape must be {shape}, got {array.shape}.", shape=array.shape)
    return array


def _convert(value: Any, dtype: DType, where: str) -> Array:
    try:
        plain = np.asarray(value)
        if plain.dtype == object and plain.ndim == 0:
            raise TypeError(f"got {value!r}")
        if plain.size and not _fits(plain.dtype, dtype):
            raise TypeError(f"got {plain.dtype}")
        if dtype.is_narrow and plain.size:
            return _narrow_numbers(plain, dtype)
        with np.errstate(over="raise"):
            return np.asarray(value, dtype=dtype.numpy)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise InputError(where, f"needs numbers that fit {dtype}: {error}.") from error


def _narrow_numbers(plain: Array, dtype: DType) -> Array:
    """Numbers of a narrow dtype; one that is past them has no element, as with other dtypes."""
    finite = plain[np.isfinite(plain)]
    if finite.size and not dtype.lowest <= finite.min() <= finite.max() <= dtype.highest:
        raise OverflowError(f"must lie in [{dtype.lowest}, {dtype.highest}]")
    return to_narrow(plain, dtype)


def _fits(given: np.dtype[Any], wanted: DType) -> bool:
    """Whether Python numbers of a kind may become `wanted`: never from float to int."""
    order = {"b": 0, "u": 1, "i": 1, "f": 2}
    return given.kind in order and order[given.kind] <= order[wanted.kind]
