"""The CPU's compiler half: kernels, and the plan runner, to object code for one target.

    Kernel --emit_kernel--> LLVM IR --compile_ir--> object code --load--> address

Compiling works for any target that LLVM knows; loading only for code of this machine. Code that
several plans hold is in memory once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, cast
from weakref import WeakValueDictionary

from semel.cache.key import cache_key
from semel.devices import LoadedKernel
from semel.devices.cpu.apart import run_side_by_side
from semel.devices.cpu.elf import LoadedCode, load_object
from semel.devices.cpu.toolchain import (
    MOST_BENCHES,
    available_cores,
    compile_ir,
    toolchain_version,
)
from semel.ir.expr import Dim
from semel.ir.target import Target
from semel.locks import importing, make_lock
from semel.runtime.device import find_device
from semel.runtime.free import HOST_DEVICE

if TYPE_CHECKING:
    from semel.devices.cpu.runtime import CpuDevice
    from semel.kernel.ir import Kernel

#: Sources that the code depends on, besides those of every device.
SOURCES = (
    "devices/cpu",
    "runtime/cgroup.py",
    "runtime/freed.py",
    "runtime/job.py",
    "runtime/libc.py",
)

_loaded: WeakValueDictionary[bytes, LoadedCode] = WeakValueDictionary()
_lock = make_lock()


class CpuCompiler:
    """Object code for `target`."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def key(self, text: str, extra: Iterable[str] = ()) -> str:
        return cache_key(text, self.target, toolchain_version(), SOURCES, extra)

    def compile(self, kernel: Kernel, entry: str) -> bytes:
        return self.compile_text(_emitted(kernel, self.target, entry))

    def compile_all(
        self, kernels: Iterable[tuple[Kernel, str]], count: int = 0
    ) -> Generator[bytes]:
        """LLVM works on some of them while the text of the next one is written.

        Of many, other processes write and compile some. Where kernels are missing the plan runner
        may be, too: it is compiled beside them.
        """
        with importing:  # who only loads code needs no crew
            from semel.devices.cpu.crew import open_crew
        kernels = _with_runner(kernels)
        crew = open_crew(self.target, count, self.compile)
        if crew is not None:
            yield from crew.compile_all(kernels)
            return
        works = (
            partial(compile_ir, _emitted(kernel, self.target, entry), self.target)
            for kernel, entry in kernels
        )
        yield from run_side_by_side(works, min(available_cores(), MOST_BENCHES))

    def compile_text(self, text: str) -> bytes:
        """Object code for LLVM IR as it stands."""
        return compile_ir(text, self.target)

    def scratch_bytes(self, kernel: Kernel) -> Dim:
        with importing:
            from semel.codegen.emit import scratch_bytes
        return scratch_bytes(kernel)

    def missing(self, made_for: Target) -> tuple[str, ...]:
        if made_for.arch != self.target.arch:
            return (made_for.arch,)
        return tuple(name for name in made_for.features if name not in self.target.features)

    def load(self, code: bytes, entry: str) -> LoadedKernel:
        loaded = _load_once(code)
        return LoadedKernel(loaded.address(entry), loaded)


def _with_runner(kernels: Iterable[tuple[Kernel, str]]) -> Iterator[tuple[Kernel, str]]:
    """The same; the first one has the host get ready to run them."""
    for number, kernel in enumerate(kernels):
        if number == 0:
            cast("CpuDevice", find_device(HOST_DEVICE)).get_ready()
        yield kernel


def _emitted(kernel: Kernel, target: Target, entry: str) -> str:
    """The text of a kernel. Who only loads code needs no emitter."""
    with importing:
        from semel.codegen.emit import emit_kernel
    return emit_kernel(kernel, target, entry)


def _load_once(code: bytes) -> LoadedCode:
    """The code in memory, once for all that hold it now."""
    key = hashlib.blake2b(code).digest()
    found = _loaded.get(key) or load_object(code)
    with _lock:
        return _loaded.setdefault(key, found)
