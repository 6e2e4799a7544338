"""Kernels to loaded machine code, each distinct one compiled once.

    tuple[Lowered] x KernelCompiler --compile_kernels--> tuple[CachedKernel]

The text of a kernel, without its name, is its identity: six identical layers
share one compilation, and the cache on disk knows it in the next process. A
warm start loads object code by our own loader and never imports llvmlite.

Loaded kernels are found again while somebody holds them; the latest are held here for a
while, so that a plan made, run once and dropped, again and again, loads its code once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from weakref import WeakValueDictionary

from semel.cache.kernels import load_cached
from semel.devices import KernelCompiler, LoadedKernel
from semel.ir.signature import BufferSpec, KernelSignature
from semel.kernel.encode import encode_kernel
from semel.kernel.ir import Kernel
from semel.kernel.text import kernel_text
from semel.locks import make_lock
from semel.lower.lowered import Lowered
from semel.lower.tiles import tile_strides
from semel.runtime.kernel import NOT_LOADED, CachedKernel
from semel.topics import Topic

KEPT_KERNELS = 256
#: What stands for a loaded kernel whose code is for another machine.
_ELSEWHERE = LoadedKernel(NOT_LOADED, None)
_CACHE = Topic("cache")


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


def compile_kernels(
    kernels: Sequence[Lowered], compiler: KernelCompiler, *, is_here: bool = True
) -> tuple[CachedKernel | None, ...]:
    """The native kernel of each lowered group, parallel to `kernels`; None for copies."""
    distinct = {id(lowered.kernel): lowered for lowered in kernels if not lowered.is_copy}
    native = {
        key: compile_kernel(it.kernel, compiler, it.text, is_here=is_here)
        for key, it in distinct.items()
    }
    return tuple(native.get(id(lowered.kernel)) for lowered in kernels)


def compile_kernel(
    kernel: Kernel,
    compiler: KernelCompiler,
    text: str = "",
    *,
    is_ours: bool = True,
    is_here: bool = True,
) -> CachedKernel:
    """Native code for one kernel: from memory, from disk, or compiled.

    Code for a machine other than this one (`is_here` False) is not loaded.

    `text` is that of the kernel, if somebody has written it already. What a kernel says of itself
    beside its text, its name and how much it does, is believed only if it is ours: one that is
    not is not remembered for others.
    """
    text = text or kernel_text(kernel)
    key = compiler.key(text)
    found = loaded_kernels.find(key)
    if found is not None:
        _CACHE("%s: loaded already", key)
        return found
    symbol = f"k{key[:24]}"
    code, loaded = load_cached(
        key,
        lambda: compiler.compile(kernel, symbol),
        lambda code: compiler.load(code, symbol) if is_here else _ELSEWHERE,
    )
    native = CachedKernel(
        signature=signature_of(kernel, compiler),
        address=loaded.address,
        entry_point=symbol,
        code=code,
        text=text,
        form=partial(encode_kernel, kernel),
        target=compiler.target,
        owner=loaded.owner,
    )
    return loaded_kernels.add(key, native) if is_ours else native


def signature_of(kernel: Kernel, compiler: KernelCompiler) -> KernelSignature:
    """What the run side needs to know of a kernel."""
    strides = tile_strides(kernel)
    return KernelSignature(
        name=kernel.name,
        buffers=tuple(
            BufferSpec(b.name, b.dtype, b.access, b.size, strides[b.name]) for b in kernel.buffers
        ),
        variables=kernel.variables,
        tiles=kernel.tiles,
        scratch_bytes=compiler.scratch_bytes(kernel),
        checks=kernel.checks,
        flops=kernel.flops,
        bytes=kernel.bytes,
    )
