"""What this machine can do at best: the yardstick for every speed we report.

    threads  --measure_limits-->  Limits

Measured, not looked up: virtual machines rarely are what their name says, and a ratio to
a limit of the same run means something anywhere. Three generated kernels run on plain
threads: chains of vector FMAs in registers, a sum over memory larger than the caches
where that is affordable, and a copy. The best of a few runs counts, in some 0.3 s.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import repeat

from semel.devices.cpu.elf import LoadedCode, load_object
from semel.devices.cpu.toolchain import compile_ir, host_target
from semel.ir.target import Target
from semel.runtime.allocator import advise_huge_pages

_CHAINS = 12  # FMA latency x throughput on every core we know, within 16 registers
_STREAMS = 8  # vectors per turn of a memory loop
_FMA_TURNS = 2_000_000
_MIN_BYTES, _MAX_BYTES = 64 << 20, 128 << 20
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """Float32 operations and bytes per second with `threads` threads.

    `copy_bytes_per_s` counts bytes read plus bytes written.
    """

    threads: int
    flops_per_s: float
    read_bytes_per_s: float
    copy_bytes_per_s: float


@cache
def measure_limits(threads: int, nbytes: int = 0) -> Limits:
    """Measure now, once per process and arguments; over `nbytes` of memory if that is given."""
    target = host_target()
    loops = _Loops(threads, nbytes or min(max(2 * target.l3_bytes, _MIN_BYTES), _MAX_BYTES))
    flop_s, read_s, plain_s, streaming_s = (
        min(once() for _ in range(_REPEATS))
        for once in (loops.arithmetic, loops.read, loops.copy, loops.stream)
    )
    return Limits(
        threads,
        loops.flops / flop_s,
        loops.read_bytes / read_s,
        loops.read_bytes / min(plain_s, streaming_s),
    )


class ReadLoop:
    """A sum over so many bytes of memory by so many threads, as often as it is asked for."""

    def __init__(self, threads: int, nbytes: int) -> None:
        self._loops = _Loops(threads, nbytes)
        self.nbytes = self._loops.read_bytes

    def seconds(self, turns: int = 1) -> float:
        """How long one turn takes now, if each thread makes so many without waiting for others."""
        return self._loops.read(turns) / turns


class FmaLoop:
    """Chains of FMAs in the registers of so many threads, as often as they are asked for."""

    def __init__(self, threads: int) -> None:
        self._loops = _Loops(threads, 1 << 20)
        self.flops = self._loops.flops

    def seconds(self) -> float:
        """How long one turn takes now; every thread does all of it, together `flops`."""
        return self._loops.arithmetic()


class _Loops:
    """The kernels, and memory that they walk; every method is one run, in seconds."""

    def __init__(self, threads: int, nbytes: int) -> None:
        target = host_target()
        self._threads = threads
        self.flops = 2 * target.lanes(32) * _CHAINS * _FMA_TURNS * threads
        self._code = _code(target)
        self._memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        advise_huge_pages(self._memory)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        # Whole turns of the loop per thread; the halves of a share are source and destination.
        unit = 2 * _STREAMS * target.vector_bytes
        self._share = nbytes // threads // unit * unit
        self.read_bytes = self._share * threads
        self._sink = (ctypes.c_float * 64 * threads)()
        # Touching the pages first: unwritten memory all reads from one shared page of zeros.
        _run(threads, lambda i: ctypes.memset(self._part(i), 0, self._share))

    def arithmetic(self) -> float:
        return self._seconds("fma_chains", self._result, lambda _: _FMA_TURNS)

    def read(self, turns: int = 1) -> float:
        size = self._share
        return self._seconds("read_sum", self._part, lambda _: size, self._result, turns=turns)

    def copy(self) -> float:
        return self._copied("copy_plain")

    def stream(self) -> float:
        return self._copied("copy_streaming")

    def _copied(self, name: str) -> float:
        half = self._share // 2
        return self._seconds(name, self._part, lambda i: self._part(i) + half, lambda _: half)

    def _part(self, thread: int) -> int:
        return self._base + thread * self._share

    def _result(self, thread: int) -> int:
        return ctypes.addressof(self._sink[thread])

    def _seconds(self, name: str, *arguments: Callable[[int], int], turns: int = 1) -> float:
        words = [ctypes.c_int64] * len(arguments)
        kernel = ctypes.CFUNCTYPE(None, *words)(self._code.symbols[name])

        def work(thread: int) -> None:
            given = [argument(thread) for argument in arguments]
            for _ in repeat(None, turns):
                kernel(*given)

        return _run(self._threads, work)


def _run(threads: int, work: Callable[[int], object]) -> float:
    """Seconds from the first start to the last end; native calls release the interpreter.

    Each thread has a CPU of its own, if there are as many: a run is shorter than what schedulers
    take to part two threads that woke on one, and would then have half of the machine's speed.
    """
    gate = threading.Barrier(threads)
    times = [(0.0, 0.0)] * threads
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

    def body(index: int) -> None:
        if len(cpus) >= threads > 1:
            os.sched_setaffinity(0, {cpus[index]})
        gate.wait()
        begin = time.perf_counter()
        work(index)
        times[index] = begin, time.perf_counter()

    workers = [threading.Thread(target=body, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    begins, ends = zip(*times, strict=True)
    return float(max(ends) - min(begins))


# ---------------------------------------------------------------------------- kernels


@cache
def _code(target: Target) -> LoadedCode:
    """The kernels, compiled once: loops over other memory are the same code."""
    return load_object(compile_ir(_kernels(target), target))


def _kernels(target: Target) -> str:
    lanes = target.lanes(32)
    return "\n".join(
        [
            _fma_chains(f"<{lanes} x float>", lanes, fused=target.has_fma),
            _read_sum(f"<{lanes} x i32>", target.vector_bytes),
            _copy("copy_plain", f"<{lanes} x i32>", target.vector_bytes, ""),
            _copy("copy_streaming", f"<{lanes} x i32>", target.vector_bytes, ", !nontemporal !0"),
            "!0 = !{i32 1}",
        ]
    )


def _loop(name: str, parameters: str, end: str, step: int, phis: str, body: str, after: str) -> str:
    """A function that counts %i up to `end` by `step`, once at least."""
    return f"""
define void @{name}({parameters}) nounwind {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
{phis}
{body}
  %next = add i64 %i, {step}
  %more = icmp slt i64 %next, {end}
  br i1 %more, label %loop, label %done
done:
{after}
  ret void
}}"""


def _fma_chains(vector: str, lanes: int, *, fused: bool) -> str:
    chains = range(_CHAINS)
    phis = [f"  %a{c} = phi {vector} [zeroinitializer, %entry], [%b{c}, %loop]" for c in chains]
    # %x and %y come from memory, so that nothing folds: a = a * x + y.
    loads = [
        f"  %x = load volatile {vector}, ptr %out, align 4",
        f"  %y = load volatile {vector}, ptr %out, align 4",
    ]
    intrinsic = f"llvm.fma.v{lanes}f32"
    if fused:
        steps = [
            f"  %b{c} = call {vector} @{intrinsic}({vector} %a{c}, {vector} %x, {vector} %y)"
            for c in chains
        ]
    else:
        steps = [
            f"  %m{c} = fmul {vector} %a{c}, %x\n  %b{c} = fadd {vector} %m{c}, %y" for c in chains
        ]
    stores = [f"  store volatile {vector} %b{c}, ptr %out, align 4" for c in chains]
    text = _loop(
        "fma_chains", "ptr %out, i64 %n", "%n", 1, _lines(phis), _lines(steps), _lines(stores)
    ).replace("entry:\n", "entry:\n" + _lines(loads) + "\n")
    declare = f"declare {vector} @{intrinsic}({vector}, {vector}, {vector})" if fused else ""
    return text + "\n" + declare


def _lines(lines: list[str]) -> str:
    return "\n".join(lines)


def _addresses(pointer: str, width: int) -> list[str]:
    """One address per stream: %<pointer><s> = %<pointer> + i + s * width."""
    lines = []
    for s in range(_STREAMS):
        lines.append(f"  %{pointer}o{s} = add i64 %i, {s * width}")
        lines.append(f"  %{pointer}{s} = getelementptr i8, ptr %{pointer}, i64 %{pointer}o{s}")
    return lines


def _read_sum(vector: str, width: int) -> str:
    streams = range(_STREAMS)
    phis = [f"  %a{s} = phi {vector} [zeroinitializer, %entry], [%b{s}, %loop]" for s in streams]
    body = _addresses("p", width)
    for s in streams:
        body.append(f"  %v{s} = load {vector}, ptr %p{s}, align {width}")
        body.append(f"  %b{s} = add {vector} %a{s}, %v{s}")
    stores = [f"  store volatile {vector} %b{s}, ptr %out, align 4" for s in streams]
    step = _STREAMS * width
    return _loop(
        "read_sum",
        "ptr %p, i64 %n, ptr %out",
        "%n",
        step,
        _lines(phis),
        _lines(body),
        _lines(stores),
    )


def _copy(name: str, vector: str, width: int, hint: str) -> str:
    body = [*_addresses("p", width), *_addresses("q", width)]
    streams = range(_STREAMS)
    body += [f"  %v{s} = load {vector}, ptr %p{s}, align {width}" for s in streams]
    body += [f"  store {vector} %v{s}, ptr %q{s}, align {width}{hint}" for s in streams]
    step = _STREAMS * width
    return _loop(name, "ptr noalias %p, ptr noalias %q, i64 %n", "%n", step, "", _lines(body), "")
