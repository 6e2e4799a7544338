"""Run a kernel, or the plan runner, for another machine under an emulator, on arrays.

    Kernel x Target --Emulated--> arrays written in place, the failed check if any
    op table x Target --EmulatedRunner--> the same, and the code of the run

The kernel becomes a program of its own: a static ELF file with the code, and with one block
of memory that holds the arguments and all arrays. It calls the kernel, writes the block to
its output and exits. `qemu-user` runs it; AArch64 has all we emit, x86-64 up to AVX2.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from semel.codegen.emit import emit_kernel
from semel.codegen.runner import emit_runner
from semel.devices.cpu.elf import link_image
from semel.devices.cpu.toolchain import compile_ir
from semel.ir.target import Target
from semel.kernel.ir import Kernel

Array = np.ndarray[Any, Any]

_SYSTEM_AT, _CODE_AT, _BLOCK_AT = 0x30_0000, 0x40_0000, 0x4000_0000
_PAGE = 0x1000
_MACHINE = {"x86_64": 62, "aarch64": 183}
_GUARD = 64  # bytes on both sides of every array that must stay as they are
#: What qemu 7.2 emulates on x86-64, of what we may use.
_X86_FEATURES = frozenset(
    ("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf",
     "sse3", "sse4.1", "sse4.2", "ssse3", "xsave")
)  # fmt: skip

_RUN = f"""
define void @_start() #77 {{
  %call = inttoptr i64 {_BLOCK_AT} to ptr
  %header = load ptr, ptr %call
  %code = call i64 @run(ptr %header)
  %at1 = getelementptr i8, ptr %call, i64 8
  %size = load i64, ptr %at1
  %at2 = getelementptr i8, ptr %call, i64 16
  store i64 %code, ptr %at2
  SYSTEM
  unreachable
}}
define ptr @memmove(ptr %to, ptr %from, i64 %count) #77 {{
  call void @llvm.trap()
  unreachable
}}
declare void @llvm.trap()
attributes #77 = {{ nounwind noinline alignstack=16 "no-builtins" }}
"""
_CALL = f"""
define void @_start() #77 {{
  %call = inttoptr i64 {_BLOCK_AT} to ptr
  %lane = load ptr, ptr %call
  %at1 = getelementptr i8, ptr %call, i64 8
  %buffers = load ptr, ptr %at1
  %at2 = getelementptr i8, ptr %call, i64 16
  %vals = load ptr, ptr %at2
  %at3 = getelementptr i8, ptr %call, i64 24
  %first = load i64, ptr %at3
  %at4 = getelementptr i8, ptr %call, i64 32
  %last = load i64, ptr %at4
  %at5 = getelementptr i8, ptr %call, i64 40
  %size = load i64, ptr %at5
  call void @kernel_under_test(ptr %lane, ptr %buffers, ptr %vals, i64 %first, i64 %last)
  SYSTEM
  unreachable
}}
define ptr @memcpy(ptr %to, ptr %from, i64 %count) #77 {{
entry:
  %empty = icmp eq i64 %count, 0
  br i1 %empty, label %done, label %next
next:
  %i = phi i64 [ 0, %entry ], [ %j, %next ]
  %source = getelementptr i8, ptr %from, i64 %i
  %target = getelementptr i8, ptr %to, i64 %i
  %byte = load volatile i8, ptr %source
  store volatile i8 %byte, ptr %target
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, %count
  br i1 %more, label %next, label %done
done:
  ret ptr %to
}}
define ptr @memset(ptr %to, i32 %value, i64 %count) #77 {{
entry:
  %byte = trunc i32 %value to i8
  %empty = icmp eq i64 %count, 0
  br i1 %empty, label %done, label %next
next:
  %i = phi i64 [ 0, %entry ], [ %j, %next ]
  %target = getelementptr i8, ptr %to, i64 %i
  store volatile i8 %byte, ptr %target
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, %count
  br i1 %more, label %next, label %done
done:
  ret ptr %to
}}
attributes #77 = {{ nounwind noinline alignstack=16 "no-builtins" }}
"""
#: A system call, `f(number, a, b, c)`, and the numbers of write and exit.
_SYSTEM = {
    "aarch64": (
        "e80300aa e00301aa e10302aa e20303aa 010000d4 c0035fd6",  # mov x4, svc, ret
        (64, 93),
    ),
    "x86_64": ("4889f8 4889f7 4889d6 4889ca 0f05 c3", (1, 60)),  # mov x4, syscall, ret
}


def emulator(target: Target) -> str:
    """The command that runs code for `target`, or why there is none, as a reason to skip."""
    if target.arch == "x86_64" and not set(target.features) <= _X86_FEATURES:
        missing = ", ".join(sorted(set(target.features) - _X86_FEATURES))
        return f"no emulator runs {missing}"
    name = f"qemu-{target.arch}"
    return shutil.which(name) or f"{name} is not installed"


def can_emulate(target: Target) -> bool:
    return emulator(target).startswith("/")


class _Program:
    """Machine code that starts at `_start`, run by an emulator on one block of memory."""

    def __init__(self, text: str, target: Target) -> None:
        self._command = emulator(target)
        self._machine = _MACHINE[target.arch]
        self._system = bytes.fromhex(_SYSTEM[target.arch][0])
        self._image, self.symbols = link_image(compile_ir(text, target), _CODE_AT)
        self._entry = self.symbols["_start"]

    def _run(self, block: bytes) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            program, output = Path(folder, "program"), Path(folder, "output")
            segments = {_SYSTEM_AT: self._system, _CODE_AT: self._image, _BLOCK_AT: block}
            program.write_bytes(_executable(self._machine, self._entry, segments))
            program.chmod(0o700)
            with output.open("wb") as file:
                command = [self._command, "-cpu", "max", str(program)]
                done = subprocess.run(
                    command, stdout=file, stderr=subprocess.PIPE, timeout=240, check=False
                )
            assert done.returncode == 0, done.stderr.decode()
            return output.read_bytes()


class Emulated(_Program):
    """A kernel's machine code, run by an emulator."""

    def __init__(self, kernel: Kernel, target: Target, emit: Any = emit_kernel) -> None:
        text = emit(kernel, target, "kernel_under_test") + _start(target.arch, _CALL)
        super().__init__(text, target)

    def call(
        self,
        lane: Array,
        scratch_bytes: int,
        buffers: Sequence[Array],
        vals: Array,
        tiles: tuple[int, int],
    ) -> None:
        """One call; `lane` and `buffers` are written in place. The lane's word 1 is scratch."""
        block = _Block()
        call_at = block.put(bytes(48))
        lane_at = block.put(lane.tobytes())
        scratch_at = block.put(b"\xff" * scratch_bytes)
        places = [block.put(buffer.tobytes()) for buffer in buffers]
        pointers_at = block.put(struct.pack(f"<{len(places)}Q", *places))
        vals_at = block.put(vals.tobytes())
        block.set(lane_at + 8, scratch_at)
        size = block.close()
        for i, word in enumerate((lane_at, pointers_at, vals_at, *tiles, size)):
            block.set(call_at + 8 * i, word)
        after = self._run(bytes(block.memory))
        block.check_guards(after)
        for array, at in zip([lane, *buffers], [lane_at, *places], strict=True):
            start = at - _BLOCK_AT
            flat = np.frombuffer(after[start : start + array.nbytes], array.dtype)
            array[...] = flat.reshape(array.shape)


class EmulatedRunner(_Program):
    """The plan runner with some kernels, run by an emulator on the words of a table."""

    def __init__(self, kernels: str, target: Target) -> None:
        super().__init__(emit_runner(target.arch) + kernels + _start(target.arch, _RUN), target)

    def run(self, header: Array, arrays: Sequence[Array], functions: Mapping[int, str]) -> int:
        """One run of the plan with this header: its code. All arrays are written in place.

        They are int64. A word that is an address in one of them, or of one of the `functions`,
        is so there as well.
        """
        block = _Block()
        call_at = block.put(bytes(24))
        moves = [(a.ctypes.data, a.nbytes, block.put(a.tobytes())) for a in arrays]
        places = [place for _, _, place in moves]
        moves += [(address, 1, self.symbols[name]) for address, name in functions.items()]
        for array, place in zip(arrays, places, strict=True):
            block.fill(place, _moved(array, moves).tobytes())
        block.set(call_at, int(_moved(np.array(header.ctypes.data), moves)))
        block.set(call_at + 8, block.close())
        after = self._run(bytes(block.memory))
        block.check_guards(after)
        back = [(there, nbytes, here) for here, nbytes, there in moves]
        for array, place in zip(arrays, places, strict=True):
            words = np.frombuffer(after, np.int64, array.size, place - _BLOCK_AT)
            array[:] = _moved(words, back)
        return int(np.frombuffer(after, np.int64, 1, 16)[0])


def _moved(words: Array, moves: Sequence[tuple[int, int, int]]) -> Array:
    """The words, with addresses in what moved (from, size, to) as they are there."""
    result = words.copy()
    for start, nbytes, place in moves:
        result[(start <= words) & (words < start + nbytes)] += place - start
    return result


class _Block:
    """The memory of the program: pieces on cache lines, with guards between them."""

    def __init__(self) -> None:
        self.memory = bytearray()
        self._guards: list[int] = []

    def put(self, data: bytes) -> int:
        """The address at which a piece will lie."""
        if self.memory:
            self._guard()
        at = len(self.memory)
        self.memory += data
        return _BLOCK_AT + at

    def _guard(self) -> None:
        self.memory += bytes(-len(self.memory) % 64)
        self._guards.append(len(self.memory))
        self.memory += b"\xa5" * _GUARD

    def close(self) -> int:
        self._guard()
        return len(self.memory)

    def set(self, address: int, word: int) -> None:
        struct.pack_into("<q", self.memory, address - _BLOCK_AT, word)

    def fill(self, address: int, data: bytes) -> None:
        start = address - _BLOCK_AT
        self.memory[start : start + len(data)] = data

    def check_guards(self, after: bytes) -> None:
        assert len(after) == len(self.memory)
        for at in self._guards:
            assert after[at : at + _GUARD] == b"\xa5" * _GUARD, "the kernel wrote outside"


def _start(arch: str, text: str) -> str:
    _, (write, leave) = _SYSTEM[arch]
    return text.replace(
        "SYSTEM",
        f"%system = inttoptr i64 {_SYSTEM_AT} to ptr\n"
        f"  call i64 %system(i64 {write}, i64 1, i64 {_BLOCK_AT}, i64 %size)\n"
        f"  call i64 %system(i64 {leave}, i64 0, i64 0, i64 0)",
    )


def _executable(machine: int, entry: int, segments: Mapping[int, bytes]) -> bytes:
    """An ELF file that has these bytes at these addresses."""
    header = struct.Struct("<16sHHIQQQIHHHHHH")
    entries, contents = b"", b""
    for address, data in segments.items():
        at = _PAGE + len(contents)
        sizes = (len(data), len(data), _PAGE)
        entries += struct.pack("<IIQQQQQQ", 1, 7, at, address, address, *sizes)
        contents += bytes(data) + bytes(-len(data) % _PAGE)
    magic = b"\x7fELF\x02\x01\x01"
    count = len(segments)
    head = header.pack(magic, 2, machine, 1, entry, header.size, 0, 0, 64, 56, count, 0, 0, 0)
    return (head + entries).ljust(_PAGE, b"\0") + contents
