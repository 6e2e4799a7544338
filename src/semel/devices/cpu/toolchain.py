"""LLVM IR -> object code, and what this host is.

    LLVM IR text x Target  --compile_ir-->  relocatable ELF object (bytes)
    /proc, /sys            --host_target--> Target

The only file that imports llvmlite, and only when something really is compiled: the
host's features come from the operating system, so a start that finds its kernels in the
cache never pays for the import. Same text and target, same bytes. Code that would call
anything outside the allow-list is refused here, before it reaches a cache.

Features are a fixed list of those that kernels profit from. Left out on purpose:
avx512bf16, whose casts flush denormals, and avx512fp16, since float16 is a storage format.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import platform
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from semel.devices.cpu.apart import run_apart
from semel.devices.cpu.elf import ALLOWED_SYMBOLS, undefined_symbols
from semel.errors import CompileError, DeviceError, InternalError
from semel.ir.target import FEATURES, Target, target_for
from semel.locks import make_lock
from semel.runtime.cgroup import OWN, ROOT, cgroup_folders, read_text

__all__ = [
    "assembly",
    "available_cores",
    "compile_ir",
    "host_model",
    "host_target",
    "toolchain_version",
    "undefined_symbols",
]

# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) on x86_64.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_SYSCONF_CACHES = {
    "l1_bytes": "SC_LEVEL1_DCACHE_SIZE",
    "l2_bytes": "SC_LEVEL2_CACHE_SIZE",
    "l3_bytes": "SC_LEVEL3_CACHE_SIZE",
}

# ------------------------------------------------------------------------------- host


@cache
def host_target() -> Target:
    """The target for this process; reads /proc and /sys once, and LLVM only without them."""
    arch = _host_arch()
    features = features_from_cpuinfo(arch, read_text(_CPUINFO))
    if features is None:
        features = features_from_llvm(arch)
    if "amx-tile" in features and not _may_use_tiles():
        features = tuple(name for name in features if not name.startswith("amx-"))
    return target_for(arch, features, **_cache_sizes(_CACHES))


def _may_use_tiles() -> bool:
    """Ask the kernel for the tile registers, which a process may not touch unasked."""
    system_call = getattr(ctypes.CDLL(None), "syscall", None)
    if system_call is None:
        return False
    return int(system_call(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)) == 0


def _host_arch() -> str:
    machine = platform.machine().lower()
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    if arch not in FEATURES:
        raise DeviceError("cpu", f"processor must be x86_64 or aarch64, got {machine!r}.")
    return arch


def features_from_cpuinfo(arch: str, text: str) -> tuple[str, ...] | None:
    """LLVM feature names from /proc/cpuinfo; None when it lists no flags."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            flags = set(value.split())
            return tuple(ours for ours, theirs in FEATURES[arch].items() if theirs in flags)
    return None


def features_from_llvm(arch: str) -> tuple[str, ...]:
    """The same list from LLVM's own detection."""
    found = run_apart(_llvm_features)
    return tuple(name for name in FEATURES[arch] if found.get(name))


def _llvm_features() -> dict[str, bool]:
    with _free_bench():
        return dict(_llvm().get_host_cpu_features())


def _cache_sizes(root: Path) -> dict[str, int]:
    """`l1_bytes`, `l2_bytes`, `l3_bytes` as far as the system tells; Target has defaults.

    A container may hide the first source and a virtual machine the second; a level that
    neither knows, or knows to be 0, is left out.
    """
    sizes: dict[str, int] = {}
    for name, variable in _SYSCONF_CACHES.items():
        with suppress(ValueError, OSError):
            sizes[name] = os.sysconf(variable)
    for folder in sorted(root.glob("index*")):
        level, kind, size = (read_text(folder / n).strip() for n in ("level", "type", "size"))
        if kind != "Instruction" and level in ("1", "2", "3"):
            sizes[f"l{level}_bytes"] = _size_bytes(size) or sizes.get(f"l{level}_bytes", 0)
    return {name: size for name, size in sizes.items() if size > 0}


def _size_bytes(text: str) -> int:
    """`48K` or `260M` in bytes; 0 for anything else."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:])
    return int(text[:-1]) * unit if unit and text[:-1].isdecimal() else 0


@cache
def host_model() -> str:
    """The processor's name for people, as the system tells it; the architecture otherwise."""
    for line in read_text(_CPUINFO).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "CPU part"):
            return value.strip()
    return _host_arch()


def available_cores() -> int:
    """Cores this process may keep busy: the affinity mask, cut by the cgroup's quota.

    A quota of 2.5 cores gives 2: a third participant would spend its time throttled while
    the others wait for it.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        cores = os.cpu_count() or 1
    quota = _quota_now()
    return max(1, cores if quota is None else min(cores, int(quota)))


#: How long a quota is believed: the files that say it are read for every plan otherwise.
_QUOTA_GOOD_S = 1.0
_quota_seen: tuple[float, float | None] = (-math.inf, None)


def _quota_now() -> float | None:
    """The CPU quota, in cores, as it was within the last second."""
    global _quota_seen  # noqa: PLW0603 - one assignment; of two threads, both are right
    now = time.monotonic()
    seen, quota = _quota_seen
    if now - seen > _QUOTA_GOOD_S:
        quota = _cgroup_quota(ROOT, read_text(OWN))
        _quota_seen = now, quota
    return quota


def _cgroup_quota(root: Path, own: str) -> float | None:
    """The tightest CPU quota, in cores, of our cgroup and its parents (v2 and v1)."""
    quotas = (quota for place in cgroup_folders(root, own, "cpu") for quota in _quota_of(place))
    return min(quotas, default=None)


def _quota_of(folder: Path) -> list[float]:
    words = read_text(folder / "cpu.max").split()
    if not words:
        words = [read_text(folder / f"cpu.cfs_{n}_us").strip() for n in ("quota", "period")]
    if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
        return [int(words[0]) / int(words[1])]
    return []


# ------------------------------------------------------------------------------- LLVM


@cache
def toolchain_version() -> str:
    """Which llvmlite and LLVM would compile, found without importing llvmlite.

    The hash of its version file, and the size of its library: that stands for LLVM's
    version, which may differ between builds of one llvmlite.
    """
    spec = find_spec("llvmlite")
    folders = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    files = [file for folder in folders for file in folder.glob("binding/*llvmlite.*")]
    sizes = sorted((file.name, file.stat().st_size) for file in files)
    versions = [file.read_text() for folder in folders for file in folder.glob("_version.py")]
    return f"{sha256(''.join(versions).encode()).hexdigest()} {sizes}"


_PATIENCE_S = 60.0
MOST_BENCHES = 4  #: more texts at a time need more memory, and few prepares have as many


class _Bench:
    """Where LLVM works on one text at a time, with target machines of its own.

    A fork waits for each bench, so that the child finds LLVM at rest. Signal handlers never see
    one: `run_apart`.
    """

    def __init__(self) -> None:
        self.lock = make_lock()
        self._machines: dict[Target, Any] = {}

    def machine(self, target: Target) -> Any:
        if target not in self._machines:
            self._machines[target] = _make_machine(target)
        return self._machines[target]


_benches = tuple(_Bench() for _ in range(MOST_BENCHES))


@contextmanager
def _free_bench() -> Iterator[_Bench]:
    """A bench to ourselves: a free one, if there is any."""
    taken = next((b for b in _benches if b.lock.acquire(blocking=False)), None)
    if taken is None:
        taken = _benches[0]
        taken.lock.acquire()
    try:
        yield taken
    finally:
        taken.lock.release()


def _wait_for_rest() -> None:
    """At exit: what LLVM compiles for nobody any more must be over before its memory goes."""
    for bench in _benches:
        if bench.lock.acquire(timeout=_PATIENCE_S):
            bench.lock.release()


@cache
def _llvm() -> Any:
    import llvmlite.binding as llvm  # heavy: a warm start does without

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # for inline assembly such as `pause`
    atexit.register(_wait_for_rest)
    return llvm


class _Functions:
    """LLVM's functions, without the lock that llvmlite holds around each of them.

    What works in a context of its own needs no lock. All but the one that takes long keep
    Python's lock: to let go of it means to wait for it again, behind all that others compute.
    """

    def __init__(self) -> None:
        known = _llvm().ffi.lib
        self._known = known
        short, long = ctypes.PyDLL(known._name), ctypes.CDLL(known._name)
        self.create_context = self._find("ContextCreate", short)
        self.dispose_context = self._find("ContextDispose", short)
        self.parse = self._find("ParseAssembly", short)
        self.verify = self._find("VerifyModule", short)
        self.dispose_module = self._find("DisposeModule", short)
        self.emit = self._find("TargetMachineEmitToMemory", long)
        self.buffer_start = self._find("GetBufferStart", short)
        self.buffer_size = self._find("GetBufferSize", short)
        self.dispose_buffer = self._find("DisposeMemoryBuffer", short)
        self.dispose_string = self._find("DisposeString", short)

    def _find(self, name: str, library: ctypes.CDLL) -> Any:
        function, known = (getattr(where, f"LLVMPY_{name}") for where in (library, self._known))
        function.argtypes, function.restype = known.argtypes, known.restype
        return function

    def said(self, text: ctypes.c_char_p) -> str:
        """What a function left as its message, which is ours to free."""
        if text.value is None:
            return ""
        message = text.value.decode(errors="replace")
        self.dispose_string(text)
        return message


@cache
def _functions() -> _Functions:
    return _Functions()


def _make_machine(target: Target) -> Any:
    features = [f"+{name}" for name in target.features]
    if target.vector_bits == 512:
        # The level's tuning would split 512-bit vectors into halves.
        features.append("-prefer-256-bit")
    return (
        _llvm()
        .Target.from_triple(target.triple)
        .create_target_machine(
            cpu=target.cpu, features=",".join(features), opt=3, codemodel="small", reloc="pic"
        )
    )


@cache
def _layout(target: Target) -> str:
    """The target's data layout, which alignments depend on."""
    return str(_make_machine(target).target_data)


def _machine_code(ir_text: str, target: Target, passes: str, *, is_object: bool) -> bytes:
    """Object code or assembly of a text, made at a bench of our own.

    The module and its context are gone before the bench is free: freeing them later would be
    calls of LLVM that a fork does not wait for.
    """
    with _free_bench() as bench:
        llvm, machine = _functions(), bench.machine(target)
        context = llvm.create_context()
        try:
            module = _parse(context, ir_text, target)
            try:
                _optimise(module, machine, passes)
                return _emit(machine, module, is_object)
            finally:
                llvm.dispose_module(module)
        finally:
            llvm.dispose_context(context)


def _parse(context: Any, ir_text: str, target: Target) -> Any:
    """A verified module."""
    llvm = _functions()
    head = f'target datalayout = "{_layout(target)}"\ntarget triple = "{target.triple}"\n'
    text, said = head + ir_text, ctypes.c_char_p()
    module = llvm.parse(context, text.encode(), ctypes.byref(said))
    if not module:
        raise _refused(text, f"LLVM IR parsing error\n{llvm.said(said)}")
    is_broken = llvm.verify(module, ctypes.byref(said))
    message = llvm.said(said)
    if is_broken:
        llvm.dispose_module(module)
        raise _refused(text, message)
    return module


def _emit(machine: Any, module: Any, is_object: bool) -> bytes:
    llvm, said = _functions(), ctypes.c_char_p()
    buffer = llvm.emit(machine, module, int(is_object), ctypes.byref(said))
    message = llvm.said(said)
    if not buffer:
        raise CompileError("llvm", f"code must be emitted, LLVM says: {message}")
    try:
        return ctypes.string_at(llvm.buffer_start(buffer), llvm.buffer_size(buffer))
    finally:
        llvm.dispose_buffer(buffer)


def _refused(ir_text: str, reason: str) -> CompileError:
    try:
        path = Path(tempfile.mkdtemp(prefix="semel-")) / "refused.ll"
        path.write_text(ir_text)
        hint, where = f"The code is in {path}.", str(path)
    except OSError as error:  # the error that we report is another one
        hint, where = f"The code could not be written to a file: {error}.", ""
    return CompileError(
        "llvm",
        f"generated code must be valid, LLVM says: {reason.strip()}",
        hint=hint,
        path=where,
    )


def _optimise(module: Any, machine: Any, passes: str) -> None:
    """`none`: kernels arrive tiled and unrolled, and the middle end adds only time.

    `light` inlines what asks for it and tidies the result: for code with allocas, calls
    and redundant scalars, such as the plan runner.
    """
    if passes == "none":
        return
    if passes != "light":
        raise InternalError("llvm", f"passes must be none or light, got {passes!r}.")
    llvm = _llvm()
    manager = llvm.create_new_module_pass_manager()
    manager.add_always_inliner_pass()
    manager.add_sroa_pass()
    manager.add_simplify_cfg_pass()
    manager.add_instruction_combine_pass()
    manager.add_new_gvn_pass()
    manager.add_simplify_cfg_pass()
    manager.add_dead_code_elimination_pass()
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    lent = llvm.ModuleRef(module, None)
    try:
        manager.run(lent, llvm.create_pass_builder(machine, options))
    finally:
        lent.detach()


def compile_ir(
    ir_text: str,
    target: Target,
    *,
    passes: str = "none",
    externals: Collection[str] = (),
) -> bytes:
    """Object code for `ir_text`; `externals` may be called besides the allow-list.

    Give functions `nounwind`, or each costs an unwind table that nobody reads.
    """
    code = run_apart(lambda: _machine_code(ir_text, target, passes, is_object=True))
    stray = [
        name
        for name in undefined_symbols(code)
        if name not in ALLOWED_SYMBOLS and name not in externals
    ]
    if stray:
        raise _refused(
            ir_text,
            f"it calls {', '.join(stray)}, and only {', '.join(ALLOWED_SYMBOLS)} may be called.",
        )
    return code


def assembly(ir_text: str, target: Target, *, passes: str = "none") -> str:
    """The machine code of `ir_text` as assembly text, for people and for tests."""
    text = run_apart(lambda: _machine_code(ir_text, target, passes, is_object=False))
    return text.decode()
