"""Kernels to loaded machine code, each distinct one compiled once.

    Lowered, one after the other x KernelCompiler --compile_kernels--> list[Compiled]

The text of a kernel, without its name, is its identity: six identical layers
share one compilation, and the cache on disk knows it in the next process. A
warm start loads object code by our own loader and never imports llvmlite.

Loaded kernels are found again while somebody holds them; the latest are held here for a
while, so that a plan made, run once and dropped, again and again, loads its code once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias
from weakref import WeakValueDictionary

from semel.cache.kernels import find_cached, keep_cached
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

#: What runs, and its code; a copy has none.
Compiled: TypeAlias = tuple[Lowered, CachedKernel | None]

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


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A kernel to be had: what it is, its text, and its key.

    What a kernel says of itself beside its text, its name and how much it does, is believed only
    if it is ours: one that is not is not remembered for others. Code for a machine other than this
    one (`is_here` False) is not loaded.
    """

    kernel: Kernel
    text: str
    key: str
    compiler: KernelCompiler
    is_ours: bool = True
    is_here: bool = True

    @property
    def symbol(self) -> str:
        return f"k{self.key[:24]}"

    def find(self) -> CachedKernel | None:
        """The kernel, if it needs no compiler."""
        found = loaded_kernels.find(self.key)
        if found is not None:
            _CACHE("%s: loaded already", self.key)
            return found
        cached = find_cached(self.key, self._load)
        return None if cached is None else self._native(*cached)

    def made(self, code: bytes) -> CachedKernel:
        """The kernel, now that it is compiled."""
        return self._native(*keep_cached(self.key, code, self._load))

    def _load(self, code: bytes) -> LoadedKernel:
        return self.compiler.load(code, self.symbol) if self.is_here else _ELSEWHERE

    def _native(self, code: bytes, loaded: LoadedKernel) -> CachedKernel:
        native = CachedKernel(
            signature=signature_of(self.kernel, self.compiler),
            address=loaded.address,
            entry_point=self.symbol,
            code=code,
            text=self.text,
            form=partial(encode_kernel, self.kernel),
            target=self.compiler.target,
            owner=loaded.owner,
        )
        return loaded_kernels.add(self.key, native) if self.is_ours else native


def compile_kernels(
    kernels: Iterable[Lowered], compiler: KernelCompiler, *, is_here: bool = True, count: int = 0
) -> list[Compiled]:
    """Each of them with its native kernel, in their order.

    Who gives them one at a time has the compiler work on the first while the next is lowered.
    `count` is how many different ones there may be, if somebody knows.
    """
    wanted: dict[str, _Wanted] = {}
    native: dict[str, CachedKernel] = {}
    missing: deque[_Wanted] = deque()
    key_of: dict[int, str] = {}
    taken: list[Lowered] = []

    def look(lowered: Lowered) -> Iterator[tuple[Kernel, str]]:
        text = lowered.text or kernel_text(lowered.kernel)
        key = key_of[id(lowered.kernel)] = compiler.key(text)
        if key in wanted:
            return
        each = wanted[key] = _Wanted(lowered.kernel, text, key, compiler, is_here=is_here)
        found = each.find()
        if found is not None:
            native[key] = found
            return
        missing.append(each)
        yield each.kernel, each.symbol

    def asked() -> Iterator[tuple[Kernel, str]]:
        for lowered in kernels:
            taken.append(lowered)
            if not lowered.is_copy and id(lowered.kernel) not in key_of:
                yield from look(lowered)

    with closing(compiler.compile_all(asked(), count)) as codes:
        for code in codes:
            each = missing.popleft()
            native[each.key] = each.made(code)
    return [(it, None if it.is_copy else native[key_of[id(it.kernel)]]) for it in taken]


def compile_kernel(
    kernel: Kernel, compiler: KernelCompiler, *, is_ours: bool = True
) -> CachedKernel:
    """Native code for one kernel: from memory, from disk, or compiled."""
    text = kernel_text(kernel)
    wanted = _Wanted(kernel, text, compiler.key(text), compiler, is_ours)
    return wanted.find() or wanted.made(compiler.compile(kernel, wanted.symbol))


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
