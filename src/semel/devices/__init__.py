"""One folder a device, each with a compiler half and a runtime half, and the table of them.

    find_backend("cpu:1")  -->  Backend(name, target, compiler, open)

The compiler half turns kernels into code for a `Target` and needs no hardware. The runtime half
is a `Device` (`semel.runtime.device`): memory, and programs linked to it. The table names the
module of each as text, so that a process pays only for those it uses; each has a `BACKEND`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from semel.config import settings
from semel.errors import UnsupportedError
from semel.ir.expr import Dim
from semel.ir.target import Target, named_target
from semel.kernel.ir import Kernel
from semel.runtime.device import Device, find_spec, import_backend
from semel.runtime.spec import DeviceSpec


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel in this process: what its device calls it by, good while `owner` is held."""

    address: int
    owner: object


class KernelCompiler(Protocol):
    """Kernel -> code for one target, as caches and plan files keep it, -> loaded kernel."""

    @property
    def target(self) -> Target: ...

    def key(self, text: str, extra: Iterable[str] = ()) -> str:
        """The hash of everything that the code of a kernel with this text depends on."""

    def compile(self, kernel: Kernel, entry: str) -> bytes:
        """Code in which the kernel goes by the name `entry`; the same bytes each time."""

    def compile_all(
        self, kernels: Iterable[tuple[Kernel, str]], count: int = 0
    ) -> Generator[bytes]:
        """The same for many, in their order, several at a time where that is faster.

        `count` is how many there may be, if somebody knows.
        """

    def scratch_bytes(self, kernel: Kernel) -> Dim:
        """Memory that each participant needs besides the kernel's buffers."""

    def missing(self, made_for: Target) -> tuple[str, ...]:
        """What code for that target needs and this one lacks, in words; empty: it runs here."""

    def load(self, code: bytes, entry: str) -> LoadedKernel:
        """The kernel that is called `entry` in the code; CompileError if there is none."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One row of the table: what it is called, what it compiles for, how it is opened.

    `target` is what this machine has, `named` what another one has by its name; `open` takes
    the spec of one device, and refuses one that is not there. `listed` names those that are; None:
    there is one, which goes by the kind's name. One that never `computes` stores and copies.
    """

    name: str
    target: Callable[[], Target]
    compiler: Callable[[Target], KernelCompiler]
    open: Callable[[DeviceSpec], Device]
    named: Callable[[str], Target] = named_target
    listed: Callable[[], Sequence[str]] | None = None
    computes: bool = True


def find_backend(device: str) -> Backend:
    """The backend of a device; nothing is opened."""
    backend: Backend = import_backend(find_spec("device", device).kind).BACKEND
    return backend


def choose_target(device: str, name: Any = None) -> Target:
    """What to compile for: the target of this name, else as the settings say.

    `native` is what this machine has.
    """
    backend = find_backend(device)
    wanted = settings().target if name is None else name
    if not isinstance(wanted, str):
        raise UnsupportedError("target", f"must be the name of a target, got {wanted!r}.")
    return backend.target() if wanted.strip().lower() == "native" else backend.named(wanted)


def lacking(device: str, target: Target) -> tuple[str, ...]:
    """What code for the target needs and this machine lacks, in words; empty: it runs here."""
    backend = find_backend(device)
    host = backend.target()
    return () if target == host else backend.compiler(host).missing(target)


def check_runs_here(where: str, device: str, target: Target) -> None:
    """Refuse to prepare what this machine cannot run."""
    missing = lacking(device, target)
    if missing:
        raise UnsupportedError(
            where,
            f"code for {target.name} must run on this machine, which lacks {', '.join(missing)}.",
            hint="plan.save(file, targets=[...]) writes code for other machines into a file.",
            missing=missing,
        )
