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

import json
import mmap
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from semel.compiler.artefacts import compile_kernel
from semel.compiler.recompiles import check_may_compile
from semel.devices import KernelCompiler, find_backend
from semel.errors import CompileError, GraphError, InternalError, PlanFileError
from semel.ir.encode import (
    DimReader,
    as_index,
    as_int,
    as_list,
    as_text,
    decode_signature,
    decode_type,
)
from semel.ir.fields import take_memory_limit, take_path, take_threads
from semel.ir.signature import ABI_VERSION
from semel.ir.target import Target
from semel.kernel.bounds import confine_kernel
from semel.kernel.encode import decode_kernel
from semel.kernel.ir import Kernel
from semel.kernel.limits import MAX_UNBOUNDED
from semel.kernel.verify import verify_kernel
from semel.plan.distrust import check_calls, check_program
from semel.plan.plan import ExecutionPlan
from semel.plan.program import (
    Program,
    ProgramLoop,
    ProgramOp,
    ProgramValue,
    adopt_constants,
    instantiate,
)
from semel.plan.restore import Source, missing_functions, read_snapshot
from semel.plan.save import CHECKSUMS, FORMAT, MAGIC, PAGE_BYTES, Prefix
from semel.runtime.allocator import ALIGNMENT_BYTES, SLACK_BYTES, Bytes, Memory, allocate
from semel.runtime.device import DeviceCode, find_device
from semel.runtime.free import HOST_DEVICE
from semel.runtime.kernel import CachedKernel

#: What looks at kernels before they are compiled here; None: the code in the file is used.
_Rebuild: TypeAlias = "Callable[[Kernel], Kernel] | None"
_REBUILD = "Load it with recompile=True."
#: Constants are summed up twice, so in pieces that stay in the cache; whole pages.
_CHECKED_BYTES = 256 << 10


def load_plan(
    path: str | os.PathLike[str],
    *,
    recompile: bool = False,
    trust: bool = True,
    verify: bool = True,
    threads: int | None = None,
    memory_limit: int | None = None,
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
    """
    threads = take_threads("load_plan", threads)
    memory_limit = take_memory_limit("load_plan", memory_limit)
    data, private = _map(take_path("load_plan", path))
    file = _parse(data, private, str(path), verify=verify)
    rebuild = _confined if not trust else _trusted if recompile else None
    return _make_plan(file, rebuild, threads, memory_limit)


def plan_from_bytes(
    data: bytes, threads: int | None = None, memory_limit: int | None = None
) -> ExecutionPlan:
    """The plan whose file has these contents; the constants are copied."""
    return _make_plan(_file_of_bytes(data, "bytes"), None, threads, memory_limit)


def _file_of_bytes(data: bytes, name: str) -> _PlanFile:
    memory = allocate(len(data))
    memory.bytes[: len(data)] = np.frombuffer(data, np.uint8)
    private = memory.bytes[: len(data)]
    sealed = private.view()
    sealed.flags.writeable = False
    return _parse(sealed, private, name, verify=True)


def _plan_inside(
    file: _PlanFile, rebuild: _Rebuild, threads: int | None, memory_limit: int | None, data: Any
) -> ExecutionPlan:
    """A plan that is an operation of the one in the file; trusted as much as that one."""
    if not isinstance(data, bytes):
        raise file.refuse(f"a plan inside must be bytes, got {type(data).__name__}.")
    inner = _file_of_bytes(data, f"{file.name}: a plan inside")
    return _make_plan(inner, rebuild, threads, memory_limit)


def program_from_bytes(data: bytes) -> Program:
    """The program in a file with these contents."""
    file = _file_of_bytes(data, "bytes")
    with _reading(file.name):
        if _is_by_hand(file):
            raise file.refuse("it must hold a program; it holds a plan built by hand.")
        program, constants = _read_program(file, _load_kernels(file), compile_count=0)
    adopt_constants(program, constants)
    return program


def _make_plan(
    file: _PlanFile,
    rebuild: _Rebuild,
    threads: int | None,
    memory_limit: int | None,
) -> ExecutionPlan:
    """The plan; with `rebuild`, from kernels that it has looked at and that are compiled here."""
    is_trusted = rebuild is not _confined
    with _reading(file.name):
        is_by_hand = _is_by_hand(file)
        if is_by_hand:
            _check_functions(file)
        kernels = _load_kernels(file) if rebuild is None else _rebuild_kernels(file, rebuild)
        count = int(rebuild is not None)
        if is_by_hand:
            inside = partial(_plan_inside, file, rebuild, threads, memory_limit)
            source = Source(file.dim, file.blob, file.contents, inside)
            saved = read_snapshot(file.header, source, kernels, memory_limit)
            plan = saved.build(threads, memory_limit)
            if not is_trusted:
                check_calls(plan.prepared_ops)
            plan.compile_count = count
            return plan
        program, constants = _read_program(file, kernels, count)
        if not is_trusted:
            check_program(program)
            program = replace(program, max_capacity=MAX_UNBOUNDED)
        adopt_constants(program, constants)
        plan = instantiate(program, threads=threads, memory_limit=memory_limit)
        if not is_trusted:
            check_calls(plan.prepared_ops)
        return plan


def _is_by_hand(file: _PlanFile) -> bool:
    made_by = file.header["made_by"]
    if made_by not in ("compiler", "hand"):
        raise file.refuse(f"it must be made by compiler or hand, got {made_by!r:.40}.")
    return bool(made_by == "hand")


def _check_functions(file: _PlanFile) -> None:
    """Before any code is loaded: a name that means nothing here cannot be made up for."""
    missing = missing_functions(file.header)
    if missing:
        raise file.refuse(
            f"it calls custom functions that are not registered: {', '.join(missing)}.",
            "Register them under these names, then load it.",
            functions=missing,
        )


# ---------------------------------------------------------------- the file


@dataclass(frozen=True, slots=True)
class _PlanFile:
    """A file whose prefix and checksums are right; `name` is for messages.

    `private` are the bytes of `constants` once more: who writes there changes no file.
    """

    name: str
    prefix: Prefix
    header: Any
    dim: DimReader
    blobs: memoryview
    constants: Bytes
    private: Bytes

    def blob(self, place: Any) -> bytes:
        """The bytes at [offset, size]."""
        offset, size = (as_int(n) for n in as_list(place, 2))
        if offset < 0 or size < 0 or offset + size > len(self.blobs):
            raise self.refuse(f"bytes [{offset}, {offset + size}) must lie inside the file.")
        return bytes(self.blobs[offset : offset + size])

    def target(self, number: Any) -> Target:
        """The target that code was made for."""
        targets = as_list(self.header["targets"])
        record = dict(targets[as_index(number, len(targets), "target")])
        features = tuple(as_text(name) for name in as_list(record["features"]))
        return Target(**{**record, "features": features})

    def contents(self, offset: int, size: int) -> Memory:
        """The bytes of a storage, which may be written."""
        _constant(self, offset, size)
        return Memory.over(self.private[offset : offset + size])

    def refuse(self, message: str, hint: str = "", **fields: Any) -> PlanFileError:
        """The error for this file."""
        return _refuse(self.name, message, hint, **fields)


def _refuse(name: str, message: str, hint: str = "", **fields: Any) -> PlanFileError:
    return PlanFileError("load_plan", f"{name}: {message}", hint=hint, path=name, **fields)


_MALFORMED = (GraphError, LookupError, TypeError, ValueError, OverflowError, RecursionError)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turns whatever is wrong with the records into the error for this file."""
    try:
        yield
    except _MALFORMED as error:
        raise _refuse(name, f"its records must be those of a plan: {error!r:.200}.") from error


def _map(path: Path) -> tuple[Bytes, Bytes]:
    """The file's bytes, read-only and shared with all who map it, and once more, to write to.

    Both are of one open file, whatever is put in its place meanwhile.
    """
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return np.empty(0, np.uint8), np.empty(0, np.uint8)
            shared = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            private = mmap.mmap(file.fileno(), len(shared), access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise _refuse(str(path), f"must be readable: {error}.") from error
    return np.frombuffer(shared, np.uint8), np.frombuffer(private, np.uint8)


def _parse(data: Bytes, private: Bytes, name: str, *, verify: bool) -> _PlanFile:
    prefix = _read_prefix(data, name)
    front = memoryview(data)[Prefix.LAYOUT.size : prefix.constants_offset]  # type: ignore[arg-type]
    constants, private = data[prefix.constants_offset :], private[prefix.constants_offset :]
    if zlib.crc32(front) != prefix.front_checksum:
        raise _damaged(name, "code or header")
    if verify and _checksum(constants, prefix.format) != prefix.constants_checksum:
        raise _damaged(name, "constants")
    with _reading(name):
        header = json.loads(bytes(front[: prefix.header_bytes]))
        for version in range(prefix.format, FORMAT):
            _UPGRADES[version](header)
        dim = DimReader(header["dims"])
    blobs = front[prefix.header_bytes :]
    return _PlanFile(name, prefix, header, dim, blobs, constants, private)


def _upgrade_1(header: Any) -> None:
    """Format 2 says of each op which nodes it computes and why they are not fused further."""
    for op in as_list(header["ops"]):
        op |= {"nodes": [], "reason": ""}


def _upgrade_2(header: Any) -> None:
    """Format 3 says who made the plan: until then, only compiled ones could be saved."""
    header["made_by"] = "compiler"


def _upgrade_3(header: Any) -> None:
    """Format 4 has loops, of programs as ranges of ops, of plans built by hand as ops, and kept
    values.
    """
    if header["made_by"] == "compiler":
        header["loops"] = []
        header["kept"] = []


#: How the header of an earlier format becomes that of the next one.
_UPGRADES: dict[int, Callable[[Any], None]] = {1: _upgrade_1, 2: _upgrade_2, 3: _upgrade_3}


def _read_prefix(data: Bytes, name: str) -> Prefix:
    """The first bytes; what follows may be looked at only after this."""
    size = Prefix.LAYOUT.size
    start = data[:size].tobytes()
    if start[: len(MAGIC)] != MAGIC:
        raise _refuse(name, f"must start with {MAGIC!r}, as plan files do, got {start[:8]!r}.")
    if len(start) < size:
        raise _refuse(name, f"must have at least {size} bytes, got {len(start)}: it is cut off.")
    _, *fields, checksum = Prefix.LAYOUT.unpack(start)
    prefix = Prefix(*fields)
    if not 1 <= prefix.format <= FORMAT:
        raise _refuse(
            name,
            f"format must lie in [1, {FORMAT}], got {prefix.format}.",
            "It was written by a newer version; save the plan with this one.",
        )
    if checksum != zlib.crc32(start[:-4]):
        raise _damaged(name, "first bytes")
    if prefix.file_bytes != data.size:
        raise _refuse(name, f"must have {prefix.file_bytes} bytes, got {data.size}: it is cut off.")
    if prefix.constants_offset % PAGE_BYTES or data.size % PAGE_BYTES:
        raise _refuse(name, f"its constants must be whole pages of {PAGE_BYTES} bytes.")
    return prefix


def _damaged(name: str, what: str) -> PlanFileError:
    return _refuse(name, f"the file is damaged: the checksum of its {what} is wrong.")


def _checksum(constants: Bytes, version: int) -> int:
    checksum = CHECKSUMS[version]()
    for start in range(0, constants.size, _CHECKED_BYTES):
        checksum.update(constants[start : start + _CHECKED_BYTES])
    return checksum.value


# ---------------------------------------------------------------- kernels


def _load_kernels(file: _PlanFile) -> tuple[CachedKernel, ...]:
    """The kernels with the code in the file, which must be for a machine like this one."""
    if file.prefix.abi != ABI_VERSION:
        raise file.refuse(
            f"code must be for kernel ABI {ABI_VERSION}, got {file.prefix.abi}.", _REBUILD
        )
    compiler = _compiler()
    records = as_list(file.header["kernels"])
    for number in sorted({as_int(record["target"]) for record in records}):
        _check_target(file, file.target(number), compiler)
    find_device(HOST_DEVICE).offer_code(_device_code(file))
    return tuple(_load_kernel(file, record, compiler) for record in records)


def _compiler() -> KernelCompiler:
    """The compiler half of the device that plans of files run on."""
    backend = find_backend(HOST_DEVICE)
    return backend.compiler(backend.target())


def _device_code(file: _PlanFile) -> DeviceCode:
    runner = file.header["runner"]
    target = file.target(runner["target"])
    return DeviceCode(target, as_text(runner["key"]), file.blob(runner["code"]))


def _check_target(file: _PlanFile, target: Target, compiler: KernelCompiler) -> None:
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


def _load_kernel(file: _PlanFile, record: Any, compiler: KernelCompiler) -> CachedKernel:
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
        encoded=file.blob(record["form"]),
        target=file.target(record["target"]),
        owner=loaded.owner,
    )


def _rebuild_kernels(
    file: _PlanFile, rebuild: Callable[[Kernel], Kernel]
) -> tuple[CachedKernel, ...]:
    """The kernels compiled again for this machine; signatures follow from them too."""
    check_may_compile("load_plan", file.name)
    found, is_ours, compiler = [], rebuild is not _confined, _compiler()
    for record in as_list(file.header["kernels"]):
        kernel = decode_kernel(file.blob(record["form"]))
        try:
            found.append(compile_kernel(rebuild(kernel), compiler, is_ours=is_ours))
        except (*_MALFORMED, CompileError, InternalError, AssertionError) as error:
            message = f"kernel '{kernel.name}' must be one that can be compiled: {error!s:.300}"
            raise file.refuse(message) from error
    return tuple(found)


def _trusted(kernel: Kernel) -> Kernel:
    """A kernel of ours, unless it is certainly broken."""
    found = verify_kernel(kernel)
    if found:
        raise GraphError("kernel", f"it must be well formed: {found[0]}.")
    return kernel


def _confined(kernel: Kernel) -> Kernel:
    """A kernel of a stranger that touches nothing but its buffers."""
    confined = confine_kernel(_trusted(kernel))
    if confined.found:
        raise GraphError("kernel", f"it must stay inside its buffers: {confined.found[0]}.")
    return confined.kernel


# ---------------------------------------------------------------- program


def _read_program(
    file: _PlanFile, kernels: tuple[CachedKernel, ...], compile_count: int
) -> tuple[Program, dict[int, Memory]]:
    """The program, and where its constants lie."""
    header, dim = file.header, file.dim
    constants: dict[int, Memory] = {}
    values = tuple(
        _read_value(file, i, record, constants)
        for i, record in enumerate(as_list(header["values"]))
    )
    program = Program(
        kernels=kernels,
        values=values,
        ops=tuple(_read_op(file, r, len(kernels)) for r in as_list(header["ops"])),
        inputs=_read_names(header["inputs"], len(values)),
        outputs=_read_names(header["outputs"], len(values)),
        kept=_read_names(header["kept"], len(values)),
        guards=tuple(
            (dim(expr), as_text(message))
            for expr, message in (as_list(g, 2) for g in as_list(header["guards"]))
        ),
        variables=tuple(dim.variable(v) for v in as_list(header["variables"])),
        log=tuple(as_text(line) for line in as_list(header["log"])),
        compile_count=compile_count,
        loops=tuple(_read_loop(file, entry) for entry in as_list(header["loops"])),
    )
    return program, constants


def _read_value(file: _PlanFile, i: int, record: Any, constants: dict[int, Memory]) -> ProgramValue:
    kind = decode_type(record["type"], file.dim)
    first, last = (as_int(n) for n in as_list(record["life"], 2))
    array = None
    if record["place"] is not None:
        size = as_int(kind.num_bytes)
        data = _constant(file, as_int(record["place"]), size)
        constants[i] = Memory.over(data)
        shape = tuple(as_int(d) for d in kind.shape)
        array = np.ndarray(shape, kind.dtype.numpy, data.data)
    return ProgramValue(as_text(record["name"]), kind, as_text(record["kind"]), array, first, last)


def _constant(file: _PlanFile, offset: int, size: int) -> Bytes:
    """The bytes of a constant, which must be followed by a line that can be read."""
    end = offset + max(size, ALIGNMENT_BYTES)
    if offset < 0 or size < 0 or offset % ALIGNMENT_BYTES or end > file.constants.size:
        raise file.refuse(f"a constant must lie inside the file, got {size} bytes at {offset}.")
    if offset + size + SLACK_BYTES > file.constants.size:
        raise file.refuse(f"a constant must have {SLACK_BYTES} bytes after it, at {offset}.")
    return file.constants[offset:end]


def _read_op(file: _PlanFile, record: Any, num_kernels: int) -> ProgramOp:
    if record["kind"] != "kernel":
        raise file.refuse(f"an op must be a kernel call, got {record['kind']!r:.40}.")
    return ProgramOp(
        kernel=as_index(record["kernel"], num_kernels, "kernel"),
        args=tuple(as_int(a) for a in as_list(record["args"])),
        variables=tuple(file.dim.variable(v) for v in as_list(record["variables"])),
        origins=tuple(as_text(line) for line in as_list(record["origins"])),
        check_origins=tuple(as_text(line) for line in as_list(record.get("check_origins", []))),
        nodes=tuple(as_text(node) for node in as_list(record["nodes"])),
        reason=as_text(record["reason"]),
        choice=as_text(record.get("choice", "")),  # plans of format 3 may be without
    )


def _read_loop(file: _PlanFile, entry: Any) -> ProgramLoop:
    counter, trip, first, last = as_list(entry, 4)
    return ProgramLoop(file.dim.variable(counter), file.dim(trip), as_int(first), as_int(last))


def _read_names(entries: Any, count: int) -> tuple[tuple[str, int], ...]:
    pairs = (as_list(entry, 2) for entry in as_list(entries))
    return tuple((as_text(name), as_index(index, count, "value")) for name, index in pairs)
