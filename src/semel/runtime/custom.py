"""Custom functions: named operations of a plan that are not kernels of ours.

    @custom_function("scale", reads=(0,), writes=(1,))  -->  PreparedCustomFunction(kind="scale")

A function is Python, `f(attrs, buffers, variables)`, or native, in one of two conventions:

    kernel  void f(void* lane, void** buffers, int64_t* vals, int64_t tile_begin, int64_t tile_end)
    c       void f(void** buffers, int64_t* sizes, int64_t* vars)

A `kernel` is a row of the native runner, called once, on one participant, with the range
[0, 1). A `c` function and a Python function run on the calling thread between two native
stretches, with the workers released. `sizes` are in bytes, at the current variables; `vals` and
`vars` are the values of the operation's `runtime_vars`, in order.

Positions that a function reads and writes are declared: from them follow the hazards. What
is not declared counts as both. Buffers that are not in `writes` cannot be written, and none
can be used after the call. Why this way: docs/decisions/0007-custom-functions.md.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol, TypeAlias

import numpy as np

from semel.errors import CustomFunctionError, PlanError
from semel.ir.fields import take, take_int, take_ints
from semel.ir.types import TensorType
from semel.locks import make_lock
from semel.runtime.allocator import HostMemory
from semel.runtime.buffer import Array, Buffer, ConcreteShape
from semel.runtime.staging import Staging

PythonFunction: TypeAlias = "Callable[[Any, Sequence[Buffer], Mapping[str, int]], None]"
CheckFunction: TypeAlias = "Callable[[Any, Sequence[TensorType], Sequence[str]], None]"
Positions: TypeAlias = "tuple[int, ...] | Callable[[Any], tuple[int, ...]] | None"

_C_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class FunctionOwner(Protocol):
    """What is called by rows of one plan in the place of a function. For the package's own use."""

    def call(
        self,
        attrs: Any,
        buffers: Sequence[Buffer],
        version: int,
        values: Callable[[], Mapping[str, int]],
    ) -> None:
        """The row was reached; the buffers are the plan's own, and must not be kept.

        While `version` is the same, so are all variables that callers bind, and all memory.
        `values` has all variables as they are here.
        """

    def give_up(self) -> None:
        """A run has not ended well."""

    def take_weights(self) -> None:
        """Weights were replaced; nothing runs."""


@dataclass(frozen=True, slots=True)
class CustomFunction:
    """A registered function. `reads` and `writes` are positions; None means all of them.

    They may depend on the attributes: then they are functions of these. Negative positions
    count from the end. `check(attrs, types, variable_names)` raises at
    build what can be known then. Nothing of a plan moves across a function that `is_fence`. If a
    plan has an `owner` for it, that is called instead.
    """

    name: str
    convention: str  # python, kernel or c
    function: PythonFunction | None
    address: int
    reads: Positions
    writes: Positions
    check: CheckFunction | None = None
    is_fence: bool = False
    owner: FunctionOwner | None = None

    def access(self, num_buffers: int, attrs: Any) -> list[str]:
        """r, w, rw or nothing for each of so many buffers; raises if a position is not there."""
        found = [""] * num_buffers
        for letter, declared in (("r", self.reads), ("w", self.writes)):
            positions = declared(attrs) if callable(declared) else declared
            for position in range(num_buffers) if positions is None else positions:
                if not -num_buffers <= position < num_buffers:
                    raise CustomFunctionError(
                        f"custom function '{self.name}'",
                        f"position {position} is declared, so it must have such a buffer, "
                        f"got {num_buffers}.",
                        kind=self.name,
                    )
                if letter not in found[position]:
                    found[position] += letter
        return found


#: By name: a function, or the module whose table `FUNCTIONS` has it. Modules are named as
#: text, so that a process imports those of the functions it uses, wherever they lie.
_registered: dict[str, CustomFunction | str] = {
    "all_reduce": "semel.runtime.functions",
    "encode": "semel.runtime.functions",
    "decode": "semel.runtime.functions",
    "top_k": "semel.runtime.functions",
    "random_fill": "semel.runtime.functions",
    "graph": "semel.plan.nested",
    "experts": "semel.plan.experts",
}
_lock = make_lock()


def find_custom_function(name: str) -> CustomFunction | None:
    """The function of that name, or None."""
    found = _registered.get(name)
    if isinstance(found, str):
        function: CustomFunction = import_module(found).FUNCTIONS[name]
        return function
    return found


def without_owner(known: CustomFunction) -> CustomFunction:
    """The function for another plan."""
    return known if known.owner is None else replace(known, owner=None)


def custom_function_names() -> list[str]:
    """All names, sorted."""
    return sorted(_registered)


def custom_function(
    name: str,
    *,
    reads: Sequence[int] | Callable[[Any], tuple[int, ...]] | None = None,
    writes: Sequence[int] | Callable[[Any], tuple[int, ...]] | None = None,
    check: CheckFunction | None = None,
) -> Callable[[PythonFunction], PythonFunction]:
    """Register the decorated function under `name`; it stays callable as it is.

    It is called with what the row says (`attrs`), its buffers, and the values of all variables of
    the plan. `reads` and `writes` are positions among the buffers; without them it may do both
    to all of them.

    >>> @semel.custom_function("scale", reads=(0,), writes=(1,))
    ... def scale(attrs, buffers, variables):
    ...     buffers[1].copyin(buffers[0].numpy() * attrs["by"])
    >>> semel.unregister_custom_function("scale")
    """
    take("custom_function", "name", str, name)
    read, written = _positions(name, "reads", reads), _positions(name, "writes", writes)

    def register(function: PythonFunction) -> PythonFunction:
        if not callable(function):
            raise PlanError(f"custom function '{name}'", f"must be callable, got {function!r}.")
        _add(CustomFunction(name, "python", function, 0, read, written, check))
        return function

    return register


def register_native_function(
    name: str,
    address: int,
    *,
    convention: str = "c",
    reads: Sequence[int] | Callable[[Any], tuple[int, ...]] | None = None,
    writes: Sequence[int] | Callable[[Any], tuple[int, ...]] | None = None,
    check: CheckFunction | None = None,
) -> None:
    """Register a native function by address; it must stay loaded as long as plans call it."""
    take("register_native_function", "name", str, name)
    if convention not in ("c", "kernel"):
        raise PlanError(
            f"custom function '{name}'", f"convention must be c or kernel, got {convention!r}."
        )
    number = take_int(f"custom function '{name}'", "address", address)
    if number <= 0:
        raise PlanError(
            f"custom function '{name}'", f"address must be that of a function, got {number}."
        )
    read, written = _positions(name, "reads", reads), _positions(name, "writes", writes)
    _add(CustomFunction(name, convention, None, number, read, written, check))


def _positions(name: str, what: str, positions: Any) -> Positions:
    if positions is None or callable(positions):
        return positions  # type: ignore[no-any-return]
    return take_ints(f"custom function '{name}'", what, positions)


def _add(function: CustomFunction) -> None:
    with _lock:
        if function.name in _registered:
            raise PlanError(
                f"custom function '{function.name}'",
                "is already registered.",
                hint="unregister_custom_function() takes it away.",
            )
        _registered[function.name] = function


def unregister_custom_function(name: str) -> None:
    """Forget a function; plans that were built with it keep it."""
    take("unregister_custom_function", "name", str, name)
    with _lock:
        if _registered.pop(name, None) is None:
            raise PlanError(f"custom function '{name}'", "is not registered.")


# ---------------------------------------------------------------- calling


class HostBuffer(Buffer):
    """A buffer as a custom function sees it: writable or not, and void after the call.

    So are its views.
    """

    __slots__ = ("_access", "_views")

    def __init__(self, buffer: Buffer, shape: ConcreteShape, access: str) -> None:
        kind = TensorType(shape, buffer.dtype)
        size = min(_num_bytes(kind), buffer.capacity_bytes)
        self._set(buffer.memory, buffer.offset, size, kind, buffer.device)
        self._access = access
        self._views: list[HostBuffer] = []

    def view(self, byte_offset: int, byte_size: int) -> Buffer:
        part = Buffer.view(self, byte_offset, byte_size)
        made = HostBuffer(part, part.shape, self._access)
        self._views.append(made)
        return made

    def end(self, gone: HostMemory) -> None:
        """The call is over: there is nothing here any more."""
        self.move(gone, 0, 0)
        for view in self._views:
            view.end(gone)

    def array(self, shape: ConcreteShape | None = None) -> Array:
        """The memory itself; read-only unless the function declared that it writes here."""
        found = Buffer.array(self, shape)
        if "w" not in self._access:
            found.flags.writeable = False
        return found

    def copyin(self, array: Any) -> None:
        if "w" not in self._access:
            raise PlanError(
                "copyin", "this buffer must be among the declared writes of the function."
            )
        Buffer.copyin(self, array)


def _num_bytes(kind: TensorType) -> int:
    size = kind.num_bytes
    return size if isinstance(size, int) else 0


def call_on_host(
    function: CustomFunction,
    attrs: Any,
    buffers: Sequence[Buffer],
    shapes: Sequence[ConcreteShape],
    variables: Mapping[str, int],
    order: Sequence[str],
) -> None:
    """Call a Python or `c` function on this thread; `order` are the names behind `vars`.

    Buffers of another device are copied to the host and back.
    """
    access = function.access(len(buffers), attrs)
    staging = None
    if not all(buffer.memory.is_host for buffer in buffers):
        staging = Staging(buffers)
        buffers = staging.buffers
    windows = [HostBuffer(b, s, a) for b, s, a in zip(buffers, shapes, access, strict=True)]
    try:
        if function.function is not None:
            function.function(attrs, windows, variables)
        else:
            _call_c(function.address, windows, [variables[name] for name in order])
        if staging is not None:
            staging.copy_back(access)
    finally:
        gone = HostMemory.over(np.empty(0, np.uint8)) if windows else None
        for window in windows:
            if gone is not None:
                window.end(gone)


def _call_c(address: int, windows: Sequence[Buffer], values: Sequence[int]) -> None:
    count = len(windows)
    pointers = (ctypes.c_void_p * max(count, 1))(*(w.address for w in windows))
    sizes = (ctypes.c_int64 * max(count, 1))(*(w.capacity_bytes for w in windows))
    numbers = (ctypes.c_int64 * max(len(values), 1))(*values)
    _C_FUNCTION(address)(
        ctypes.addressof(pointers), ctypes.addressof(sizes), ctypes.addressof(numbers)
    )
