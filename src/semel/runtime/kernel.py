"""A compiled kernel that can be called: signature, code, address.

    CachedKernel  --PreparedKernel-->  a row of a plan

Kernels are shared: identical kernels of one model, and of several plans, are one object.

Code lives as long as a kernel holds it, and a kernel as long as a plan, a program or a report
holds that. No more is needed to free code safely: whoever runs a plan holds it, and a run ends
only after every worker has left it (`semel.codegen.runner`), so that no thread can be inside
code, or on its way there, that no kernel holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from semel.errors import PlanError, UnsupportedError
from semel.ir.expr import Dim, Expr, Fn, Variable, bounds
from semel.ir.fields import take, take_dim, take_int, take_items
from semel.ir.signature import BufferSpec, KernelSignature
from semel.ir.target import Target
from semel.ir.types import TensorType

#: The address of a kernel whose code is for another machine.
NOT_LOADED = 0


@dataclass(frozen=True, slots=True, weakref_slot=True, repr=False)
class CachedKernel:
    """A native function with our ABI.

    `code` is its object file for `target`, `text` what it was made from, and `form` the same in
    a form that can be compiled again, or what gives it: most kernels are never saved.
    Without them a plan runs but cannot be saved.
    `address` is what rows pass as their function: where it lies on the CPU, a handle of the
    driver elsewhere. It is good while the kernel, and with it the `owner`, is held. A kernel for
    another machine has code and is `NOT_LOADED`: it can be saved, and not be part of a plan.
    """

    signature: KernelSignature  #: its buffers, variables and tiles
    address: int  #: where its code lies, or a driver's handle
    entry_point: str  #: the name of the function in its object file
    #: its object file; None if it cannot be saved
    code: bytes | None = field(default=None, repr=False)
    text: str = field(default="", repr=False)  #: what it was made from, for people
    #: what it can be compiled from again, or what gives that
    form: bytes | Callable[[], bytes] = field(default=b"", repr=False, compare=False)
    target: Target | None = field(default=None, repr=False)  #: the machine that the code is for
    owner: object = field(default=None, repr=False, compare=False)  #: what keeps the code loaded

    def __post_init__(self) -> None:
        take("kernel", "signature", KernelSignature, self.signature)
        least = NOT_LOADED if self.code and self.target else NOT_LOADED + 1
        if take_int(self.name, "address", self.address) < least:
            raise PlanError(
                self.entry_point, f"address must be that of a function, got {self.address}."
            )

    def __repr__(self) -> str:
        return f"CachedKernel({self.name!r}, {len(self.signature.buffers)} buffers)"

    def check_loaded(self) -> None:
        """Refuse a kernel whose code is for another machine, where one is to run."""
        if self.address == NOT_LOADED and self.target is not None:
            raise UnsupportedError(
                self.name,
                f"its code is for {self.target.name}, which this machine cannot run.",
                hint="Save the program, and load the file there.",
            )

    @property
    def name(self) -> str:
        """What it computes, in a word: `matmul_gelu`."""
        return self.signature.name

    @property
    def encoded(self) -> bytes:
        """The form that can be compiled again; empty if there is none."""
        return self.form if isinstance(self.form, bytes) else self.form()

    @property
    def host_parallel_safe(self) -> bool:
        """Whether several threads may run it, or others beside it, at the same time."""
        return self.signature.host_parallel_safe

    @property
    def var_names(self) -> tuple[str, ...]:
        """Names of the variables in the order of `vals`."""
        return tuple(v.name for v in self.signature.variables)

    @staticmethod
    def from_pointer(
        address: int,
        inputs: Sequence[TensorType | BufferSpec],
        outputs: Sequence[TensorType | BufferSpec],
        variables: Sequence[Variable] = (),
        tiles: Dim = 1,
        *,
        flops: Dim = 0,
        bytes: Dim | None = None,
        host_parallel_safe: bool = True,
        owner: object = None,
    ) -> CachedKernel:
        """A kernel of any function with our ABI; its buffers are the inputs, then the outputs.

        `flops` and `bytes` say how much one call computes and moves, all tiles together;
        `bytes` is that of all buffers unless given. Work is shared among threads where it is
        worth it by these numbers: a kernel that does much with few bytes should say so. One
        that is not `host_parallel_safe` runs on the calling thread alone. `owner` is whatever
        must be held while the function may be called: loaded code, a library.
        """
        where, address = "from_pointer", take_int("from_pointer", "address", address)
        buffers = _specs("inputs", inputs, "in", "r") + _specs("outputs", outputs, "out", "w")
        traffic: Dim = 0
        for buffer in buffers:
            traffic = traffic + buffer.size * buffer.dtype.size_bytes
        signature = KernelSignature(
            f"pointer_{address:x}",
            buffers,
            take_items(where, "variables", Variable, variables),
            take_dim(where, "tiles", tiles),
            flops=_work("flops", flops),
            bytes=traffic if bytes is None else _work("bytes", bytes),
            host_parallel_safe=take(where, "host_parallel_safe", bool, host_parallel_safe),
        )
        return CachedKernel(signature, address, signature.name, owner=owner)


def _work(what: str, amount: Dim) -> Dim:
    """An amount of work as it is, if it can be one."""
    is_dim = isinstance(amount, (int, Variable, Fn, Expr)) and not isinstance(amount, bool)
    if not is_dim or (bounds(amount)[0] or 0) < 0:
        raise PlanError(
            "from_pointer", f"{what} must be an int or an expression >= 0, got {amount!r}."
        )
    return amount


def _specs(what: str, buffers: Any, prefix: str, access: str) -> tuple[BufferSpec, ...]:
    """The arguments of a function from what a caller says of them; types are named and numbered."""
    if not isinstance(buffers, Sequence):
        raise PlanError("from_pointer", f"{what} must be a list of types, got {buffers!r:.60}.")
    return tuple(_spec(what, b, f"{prefix}{i}", access) for i, b in enumerate(buffers))


def _spec(what: str, buffer: Any, name: str, access: str) -> BufferSpec:
    if isinstance(buffer, BufferSpec):
        return buffer
    kind = take("from_pointer", f"each of {what}", TensorType, buffer)
    return BufferSpec(name, kind.dtype, access, kind.num_elements)
