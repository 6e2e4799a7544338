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
    with _llvm_lock:
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


# llvmlite guards single calls; a compile is several, on a shared target machine. A fork waits
# for it, so that the child finds LLVM at rest. Signal handlers never see it: `run_apart`.
_llvm_lock = make_lock()
_PATIENCE_S = 60.0


def _wait_for_rest() -> None:
    """At exit: what LLVM compiles for nobody any more must be over before its memory goes."""
    if _llvm_lock.acquire(timeout=_PATIENCE_S):
        _llvm_lock.release()


@cache
def _llvm() -> Any:
    import llvmlite.binding as llvm  # heavy: a warm start does without

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # for inline assembly such as `pause`
    atexit.register(_wait_for_rest)
    return llvm


@cache
def _target_machine(target: Target) -> Any:
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


def _parse(ir_text: str, target: Target) -> Any:
    """A verified module with the target's data layout, which alignments depend on."""
    layout = _target_machine(target).target_data
    text = f'target datalayout = "{layout}"\ntarget triple = "{target.triple}"\n{ir_text}'
    module = None
    try:
        module = _llvm().parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        if module is not None:
            module.close()
        raise _refused(text, str(error)) from error
    return module


@contextmanager
def _optimised(ir_text: str, target: Target, passes: str) -> Iterator[tuple[Any, Any]]:
    """The target machine and the module of a text, with LLVM to ourselves.

    The module is gone before the lock is: freeing it later, wherever its last reference
    drops, would be a call of LLVM that a fork does not wait for.
    """
    with _llvm_lock:
        machine = _target_machine(target)
        module = _parse(ir_text, target)
        try:
            _optimise(module, machine, passes)
            yield machine, module
        finally:
            module.close()


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
    manager.run(module, llvm.create_pass_builder(machine, options))


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
    code = run_apart(lambda: _object_code(ir_text, target, passes))
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


def _object_code(ir_text: str, target: Target, passes: str) -> bytes:
    with _optimised(ir_text, target, passes) as (machine, module):
        code: bytes = machine.emit_object(module)
    return code


def assembly(ir_text: str, target: Target, *, passes: str = "none") -> str:
    """The machine code of `ir_text` as assembly text, for people and for tests."""
    return run_apart(lambda: _assembly(ir_text, target, passes))


def _assembly(ir_text: str, target: Target, passes: str) -> str:
    with _optimised(ir_text, target, passes) as (machine, module):
        text: str = machine.emit_assembly(module)
    return text
