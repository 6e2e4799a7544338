"""Plan files, the reading side: from a file to a plan that is ready to run.

    file  --load_plan-->  ExecutionPlan

A plan file is a program: loading one and executing it runs the machine code in it with the
rights of this process. Load only what you trust. `trust=False` runs none of that code: kernels
are read from their stored form, confined to their buffers and compiled here, and the plan around
them is checked. Nothing is ever unpickled or evaluated. What that protects from, and what not:
docs/decisions/0026-files-of-strangers.md.

A load maps the file, checks it, copies the code to executable pages and makes a plan: some
milliseconds, and no compiler is imported. Constants stay in the file's pages, read-only,
and are shared with every process that has it open; so replace a plan file, as `save` does, and
never write into one. A plan built by hand may write what it does not declare: its pages
are shared until then, and its own from then on.

Plans and programs pickle by the same format: `pickle` carries its bytes and calls
`plan_from_bytes` or `program_from_bytes`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from semel.compiler.recompiles import check_may_compile
from semel.devices import KernelCompiler, check_runs_here, choose_target, find_backend
from semel.errors import CompileError, GraphError, InternalError
from semel.ir.encode import as_int, as_list, as_text, decode_signature
from semel.ir.fields import MemoryLimit, take_memory_limits, take_path, take_threads
from semel.ir.signature import ABI_VERSION
from semel.ir.target import Target
from semel.locks import importing
from semel.plan.check import check_plan
from semel.plan.distrust import check_calls, check_lives, check_names
from semel.plan.file.machines import Machines, find_machines
from semel.plan.file.read import (
    MALFORMED,
    PlanFile,
    check_limit,
    map_file,
    missing_functions,
    parse_file,
    read_memory,
    read_program,
    reading,
    storage_devices,
    whole,
)
from semel.plan.instantiate import instantiate
from semel.plan.plan import ExecutionPlan
from semel.plan.program import Program
from semel.plan.saving import resume
from semel.plan.tree import walk
from semel.plan.weights import fixed_rows
from semel.runtime.allocator import allocate
from semel.runtime.collector import fewer_collections
from semel.runtime.device import DeviceCode, check_device, find_device
from semel.runtime.free import HOST_DEVICE
from semel.runtime.kernel import CachedKernel
from semel.runtime.spec import kind_of
from semel.topics import Topic

if TYPE_CHECKING:
    from semel.kernel.ir import Kernel

#: What looks at kernels before they are compiled here; None: the code in the file is used.
_Rebuild: TypeAlias = "Callable[[Kernel], Kernel] | None"
#: Another program in the place of the one in a file.
_Change: TypeAlias = "Callable[[Program, PlanFile], Program]"
_REBUILD = "Load it with recompile=True."
_PLAN = Topic("plan")


def load_plan(
    path: str | os.PathLike[str],
    *,
    recompile: bool = False,
    trust: bool = True,
    verify: bool = True,
    threads: int | None = None,
    memory_limit: MemoryLimit = None,
) -> ExecutionPlan:
    """The plan that `plan.save(path)` wrote, with fresh buffers and unbound variables.

    A plan built by hand has the contents and values that it was saved with. The custom
    functions that it calls must be registered here under the same names.

    A plan file is code: load only what you trust. `recompile=True` compiles the kernels for
    this CPU, for a file made on another one. `trust=False` does the same for a file from a
    stranger: it runs no code from the file, and kernels that could touch anything but their
    buffers are refused, or fail when they try. `verify=False` skips the checksum of the
    constants, and with it the reading of them. Raises PlanFileError for a file that is damaged
    or does not fit here.

    >>> (Tensor.input("x", (2,)) + 1).prepare().save("plus_one.plan")
    >>> semel.load_plan("plus_one.plan")(x=np.zeros(2, np.float32)).tolist()
    [1.0, 1.0]
    """
    how = LoadOptions(recompile, trust, verify, threads, memory_limit)
    return open_plan(path, how)[0]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a file is loaded: see `load_plan`."""

    recompile: bool = False
    trust: bool = True
    verify: bool = True
    threads: int | None = None
    memory_limit: MemoryLimit = None

    def __post_init__(self) -> None:
        take_threads("load_plan", self.threads)
        take_memory_limits("load_plan", self.memory_limit)


def open_plan(
    path: str | os.PathLike[str], how: LoadOptions, change: _Change | None = None
) -> tuple[ExecutionPlan, PlanFile]:
    """The plan in a file, and the file, which may say more about it (`file.about`).

    A compiled one is made of what `change` makes of its program.
    """
    data, private = map_file(take_path("load_plan", path))
    file = parse_file(data, private, str(path), verify=how.verify)
    rebuild = _confined if not how.trust else _trusted if how.recompile else None
    return _make_plan(file, rebuild, how.threads, how.memory_limit, change), file


def machines_of(path: str | os.PathLike[str]) -> Machines:
    """The machines that a plan file has code for; nothing of it is run."""
    data, private = map_file(take_path("load_plan", path))
    file = parse_file(data, private, str(path), verify=False)
    with reading(file.name):
        return find_machines(file)


def plan_from_bytes(
    data: bytes,
    threads: int | None = None,
    memory_limit: MemoryLimit = None,
    change: _Change | None = None,
) -> ExecutionPlan:
    """The plan whose file has these contents; the constants are copied."""
    return _make_plan(_file_of_bytes(data, "bytes"), None, threads, memory_limit, change)


def _file_of_bytes(data: bytes, name: str) -> PlanFile:
    memory = allocate(len(data))
    memory.bytes[: len(data)] = np.frombuffer(data, np.uint8)
    private = memory.bytes[: len(data)]
    sealed = private.view()
    sealed.flags.writeable = False
    return parse_file(sealed, private, name, verify=True)


def _plan_inside(
    file: PlanFile, rebuild: _Rebuild, threads: int | None, memory_limit: MemoryLimit, data: Any
) -> ExecutionPlan:
    """A plan that is an operation of the one in the file; trusted as much as that one."""
    if not isinstance(data, bytes):
        raise file.refuse(f"a plan inside must be bytes, got {type(data).__name__}.")
    inner = _file_of_bytes(data, f"{file.name}: a plan inside")
    return _make_plan(inner, rebuild, threads, memory_limit)


def program_from_bytes(data: bytes) -> Program:
    """The program in a file with these contents."""
    file = _file_of_bytes(data, "bytes")
    with whole(file), reading(file.name):
        if _is_image(file):
            raise file.refuse("it must hold a program; it holds a plan built by hand.")
        file = _choose(file, None)
        inside = partial(_plan_inside, file, None, None, None)
        return read_program(file, _load_kernels(file), inside, compile_count=0)


def _make_plan(
    file: PlanFile,
    rebuild: _Rebuild,
    threads: int | None,
    memory_limit: MemoryLimit,
    change: _Change | None = None,
) -> ExecutionPlan:
    """The plan; with `rebuild`, from kernels that it has looked at and that are compiled here."""
    with fewer_collections(), whole(file), reading(file.name):
        machines = tuple(each.made_for.name for each in file.variants())
        file = _choose(file, rebuild)
        _check_functions(file)
        kernels = _load_kernels(file) if rebuild is None else _rebuild_kernels(file, rebuild)
        inside = partial(_plan_inside, file, rebuild, threads, memory_limit)
        program = read_program(file, kernels, inside, int(rebuild is not None))
        _check_kinds(file, program, kernels)
        if len(machines) > 1:
            program = replace(program, machines=machines)
        is_image = _is_image(file)
        if rebuild is _confined:
            check_names(program, storage_devices(file) if is_image else ())
            program = _checked_program(program, is_image)
        if is_image:
            return _resume(file, program, threads, memory_limit)
        if change is not None:
            program = change(program, file)
        return instantiate(program, threads=threads, memory_limit=memory_limit)


def _checked_program(program: Program, is_image: bool) -> Program:
    """The program of a stranger, if its rows keep what kernels rely on."""
    check_calls(program.walk())
    for recipe in program.recipes:
        check_calls(walk(fixed_rows(recipe.formula, recipe.sizes)))
    if is_image:
        return program
    check_lives(program)
    with importing:
        from semel.kernel.limits import MAX_UNBOUNDED
    return replace(program, max_capacity=MAX_UNBOUNDED)


def _resume(
    file: PlanFile, program: Program, threads: int | None, memory_limit: MemoryLimit
) -> ExecutionPlan:
    """A plan built by hand, with the memory, variables and inputs that it was saved with."""
    memory, device = read_memory(file, program, memory_limit), find_device(program.device)
    count = device.default_threads() if threads is None else threads
    plan = ExecutionPlan(check_plan(program, memory.buffers, device, count))
    plan.memory_limit = memory_limit
    check_limit(plan.device, plan.memory.peak_bytes, memory_limit)
    resume(plan.engine, memory.values, memory.shapes, memory.marks)
    return plan


def _is_image(file: PlanFile) -> bool:
    return file.header["memory"] is not None


def _check_functions(file: PlanFile) -> None:
    """Before any code is loaded: a name that means nothing here cannot be made up for."""
    missing = missing_functions(file)
    if missing:
        raise file.refuse(
            f"it calls custom functions that are not registered: {', '.join(missing)}.",
            "Register them under these names, then load it.",
            functions=missing,
        )


def _choose(file: PlanFile, rebuild: _Rebuild) -> PlanFile:
    """Of a file for several machines, the program that fits this one best.

    What is compiled here anyhow is best laid out for a machine that is like this one.
    """
    found = file.variants()
    compiler = _compiler(_device(file))
    fits = [each for each in found if not compiler.missing(each.made_for)]
    if not fits and len(found) > 1 and rebuild is None:
        names = ", ".join(each.made_for.name for each in found)
        raise file.refuse(
            f"it has code for {names}, and this machine, {compiler.target.name}, runs none of it.",
            _REBUILD,
        )
    chosen = max(fits or found[:1], key=lambda each: _strength(each.made_for))
    if _PLAN.is_on and len(found) > 1:
        names = ", ".join(each.made_for.name for each in found)
        _PLAN("%s: code for %s, of %s", file.name, chosen.made_for.name, names)
    return chosen


def _strength(target: Target) -> tuple[int, int]:
    """What makes one machine's code faster than that of another which runs here too."""
    return target.vector_bits, len(target.features)


# ---------------------------------------------------------------- kernels


def _load_kernels(file: PlanFile) -> tuple[CachedKernel, ...]:
    """The kernels with the code in the file, which must be for a machine like this one."""
    if file.prefix.abi != ABI_VERSION:
        raise file.refuse(
            f"code must be for kernel ABI {ABI_VERSION}, got {file.prefix.abi}.", _REBUILD
        )
    records = as_list(file.header["kernels"])
    compilers = {kind: _compiler(kind) for kind in dict.fromkeys(map(_kind, records))}
    for kind, number in sorted({(_kind(r), as_int(r["target"])) for r in records}):
        _check_target(file, file.target(number), compilers[kind])
    find_device(_device(file)).offer_code(_device_code(file))
    return tuple(_load_kernel(file, record, compilers[_kind(record)]) for record in records)


def _kind(record: Any) -> str:
    """The kind of device that a kernel is for, which must be one that there is."""
    return check_device("load_plan", as_text(record["kind"]))


def _check_kinds(file: PlanFile, program: Program, kernels: Sequence[CachedKernel]) -> None:
    """A kernel is called where its code runs: by rows of its kind of device, or of an equal one."""
    kinds = dict(zip(kernels, map(_kind, as_list(file.header["kernels"])), strict=True))
    calls = [(placed.row, program.device) for placed in program.walk()]
    calls += [(row, HOST_DEVICE) for formula in program.formulas for row in formula.rows]
    for row, device in calls:
        for kernel in row.kernels:
            there, kind = kind_of(row.device or device), kinds[kernel]
            if there != kind and find_backend(there).target() != find_backend(kind).target():
                raise file.refuse(f"a kernel for '{kind}' must not be called on '{there}'.")


def _device(file: PlanFile) -> str:
    """The device that the plan in a file is for, which must be one that there is."""
    return check_device("load_plan", as_text(file.header["program"]["device"]))


def _compiler(device: str) -> KernelCompiler:
    """The compiler half of a device, for this machine."""
    backend = find_backend(device)
    return backend.compiler(backend.target())


def _rebuilder(device: str) -> KernelCompiler:
    """The compiler half of a device, for what the settings ask to compile for."""
    target = choose_target(device)
    check_runs_here("load_plan", device, target)
    return find_backend(device).compiler(target)


def _device_code(file: PlanFile) -> DeviceCode:
    runner = file.header["runner"]
    target = file.target(runner["target"])
    return DeviceCode(target, as_text(runner["key"]), file.blob(runner["code"]))


def _check_target(file: PlanFile, target: Target, compiler: KernelCompiler) -> None:
    host = compiler.target
    if target.arch != host.arch:
        raise file.refuse(f"code must be for {host.arch}, got {target.arch}.", _REBUILD)
    missing = compiler.missing(target)
    if missing:
        raise file.refuse(
            f"its code needs CPU features that this machine lacks: {', '.join(missing)}.",
            _REBUILD,
            missing=missing,
        )


def _load_kernel(file: PlanFile, record: Any, compiler: KernelCompiler) -> CachedKernel:
    code, entry = file.blob(record["code"]), as_text(record["entry"])
    signature = decode_signature(record["signature"], file.dim)
    try:
        loaded = compiler.load(code, entry)
    except CompileError as error:
        raise file.refuse(f"its code cannot be loaded: {error}", _REBUILD) from error
    return CachedKernel(
        signature=signature,
        address=loaded.address,
        entry_point=entry,
        code=code,
        text=file.blob(record["text"]).decode(),
        form=file.blob(record["form"]),
        target=file.target(record["target"]),
        owner=loaded.owner,
    )


def _rebuild_kernels(
    file: PlanFile, rebuild: Callable[[Kernel], Kernel]
) -> tuple[CachedKernel, ...]:
    """The kernels compiled again for this machine; signatures follow from them too."""
    # Files with code for this machine, which is most of them, need no compiler.
    with importing:
        from semel.compiler.artefacts import compile_kernel
        from semel.kernel.encode import decode_kernel

    check_may_compile("load_plan", file.name)
    found, is_ours = [], rebuild is not _confined
    records = as_list(file.header["kernels"])
    compilers = {kind: _rebuilder(kind) for kind in dict.fromkeys(map(_kind, records))}
    for record in records:
        compiler = compilers[_kind(record)]
        kernel = decode_kernel(file.blob(record["form"]))
        try:
            found.append(compile_kernel(rebuild(kernel), compiler, is_ours=is_ours))
        except (*MALFORMED, CompileError, InternalError, AssertionError) as error:
            message = f"kernel '{kernel.name}' must be one that can be compiled: {error!s:.300}"
            raise file.refuse(message) from error
    return tuple(found)


def _trusted(kernel: Kernel) -> Kernel:
    """A kernel of ours, unless it is certainly broken."""
    with importing:
        from semel.kernel.verify import verify_kernel
    found = verify_kernel(kernel)
    if found:
        raise GraphError("kernel", f"it must be well formed: {found[0]}.")
    return kernel


def _confined(kernel: Kernel) -> Kernel:
    """A kernel of a stranger that touches nothing but its buffers."""
    with importing:
        from semel.kernel.bounds import confine_kernel
    confined = confine_kernel(_trusted(kernel))
    if confined.found:
        raise GraphError("kernel", f"it must stay inside its buffers: {confined.found[0]}.")
    return confined.kernel
