"""Kernels to loaded machine code, each distinct one compiled once.

    tuple[Lowered] x Target --compile_kernels--> tuple[CachedKernel]

The text of a kernel, without its name, is its identity: six identical layers
share one compilation, and the cache on disk knows it in the next process. A
warm start loads object code by our own loader and never imports llvmlite.

Loaded kernels are found again while somebody holds them; the latest are held here for a
while, so that a plan made, run once and dropped, again and again, loads its code once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar
from weakref import WeakValueDictionary

from semel.codegen.emit import emit_kernel, scratch_bytes
from semel.compiler.cache import default_cache
from semel.compiler.key import cache_key
from semel.devices.cpu.elf import LoadedCode, load_object
from semel.devices.cpu.runtime import use_compiler
from semel.devices.cpu.toolchain import compile_ir
from semel.errors import CompileError
from semel.ir.signature import BufferSpec, KernelSignature
from semel.ir.target import Target
from semel.kernel.encode import encode_kernel
from semel.kernel.ir import Kernel
from semel.kernel.text import format_kernel
from semel.locks import make_lock
from semel.lower.lowered import Lowered
from semel.lower.tiles import tile_strides
from semel.runtime.kernel import CachedKernel

T = TypeVar("T")

KEPT_KERNELS = 256


class LoadedKernels:
    """Kernels by key, as long as somebody holds them, or they are among the latest used."""

    def __init__(self, kept: int = KEPT_KERNELS) -> None:
        self._known: WeakValueDictionary[str, CachedKernel] = WeakValueDictionary()
        self._latest: OrderedDict[str, CachedKernel] = OrderedDict()
        self._kept = kept
        self._lock = make_lock()

    def find(self, key: str) -> CachedKernel | None:
        """The kernel, if it is loaded."""
        with self._lock:
            found = self._known.get(key)
        return None if found is None else self.add(key, found)

    def add(self, key: str, kernel: CachedKernel) -> CachedKernel:
        """Remember a kernel; the one to use, which another thread may have added before."""
        evicted = None
        with self._lock:
            kernel = self._known.setdefault(key, kernel)
            self._latest[key] = kernel
            self._latest.move_to_end(key)
            if len(self._latest) > self._kept:
                evicted = self._latest.popitem(last=False)
        del evicted  # outside of the lock: it may be the last reference
        return kernel

    def forget(self) -> None:
        """Hold nothing any more: code that no plan needs goes."""
        with self._lock:
            latest, self._latest = self._latest, OrderedDict()
        latest.clear()


loaded_kernels = LoadedKernels()


def compile_kernels(kernels: Sequence[Lowered], target: Target) -> tuple[CachedKernel, ...]:
    """The native kernel of each lowered group, parallel to `kernels`."""
    distinct = {id(lowered.kernel): lowered for lowered in kernels}
    native = {key: compile_kernel(it.kernel, target, it.text) for key, it in distinct.items()}
    return tuple(native[id(lowered.kernel)] for lowered in kernels)


def compile_kernel(
    kernel: Kernel, target: Target, text: str = "", *, is_ours: bool = True
) -> CachedKernel:
    """Native code for one kernel: from memory, from disk, or from LLVM.

    `text` is that of the kernel, if somebody has written it already. What a kernel says of itself
    beside its text, its name and how much it does, is believed only if it is ours: one that is
    not is not remembered for others.
    """
    text = text or format_kernel(kernel)
    key = cache_key(text, target)
    found = loaded_kernels.find(key)
    if found is not None:
        return found
    symbol = f"k{key[:24]}"
    code, (loaded, address) = load_cached(
        key,
        lambda: compile_ir(emit_kernel(kernel, target, symbol), target),
        lambda code: _load(code, symbol),
    )
    native = CachedKernel(
        signature=signature_of(kernel),
        address=address,
        entry_point=symbol,
        code=code,
        text=text,
        encoded=encode_kernel(kernel),
        target=target,
        owner=loaded,
    )
    return loaded_kernels.add(key, native) if is_ours else native


def _load(code: bytes, symbol: str) -> tuple[LoadedCode, int]:
    loaded = load_object(code)
    return loaded, loaded.address(symbol)


def load_cached(
    key: str, compile_now: Callable[[], bytes], load: Callable[[bytes], T]
) -> tuple[bytes, T]:
    """Object code by its key, and what `load` makes of it: from the cache, or compiled.

    An entry that does not load is no better than none: it goes, and is compiled again.
    """
    cache = default_cache()
    code = cache.get(key)
    if code is not None:
        try:
            return code, load(code)
        except CompileError as error:
            cache.discard(key, str(error))
    code = compile_now()
    loaded = load(code)
    cache.put(key, code)
    return code, loaded


def load_text(
    ir_text: str, target: Target, load: Callable[[bytes], LoadedCode]
) -> tuple[bytes, LoadedCode]:
    """Object code for LLVM IR as it stands, loaded: for the plan runner."""
    return load_cached(cache_key(ir_text, target), lambda: compile_ir(ir_text, target), load)


# The plan runner comes from the same cache as the kernels.
use_compiler(load_text)


def signature_of(kernel: Kernel) -> KernelSignature:
    """What the run side needs to know of a kernel."""
    strides = tile_strides(kernel)
    return KernelSignature(
        name=kernel.name,
        buffers=tuple(
            BufferSpec(b.name, b.dtype, b.access, b.size, strides[b.name]) for b in kernel.buffers
        ),
        variables=kernel.variables,
        tiles=kernel.tiles,
        scratch_bytes=scratch_bytes(kernel),
        checks=kernel.checks,
        flops=kernel.flops,
        bytes=kernel.bytes,
    )
