"""Run a kernel as machine code, on arrays, without a plan: here, or under an emulator.

Kernel x Target --Native--> arrays written in place, the failed check if any
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.codegen.emulate import Emulated, can_emulate, emulator

from semel.codegen.emit import emit_kernel, scratch_bytes
from semel.devices import choose_target
from semel.devices.cpu.elf import load_object
from semel.devices.cpu.toolchain import compile_ir, host_target
from semel.ir.expr import Variable, evaluate
from semel.ir.target import Target, target_for
from semel.kernel.ir import Kernel

Array = np.ndarray[Any, Any]

#: (lane's record, bytes of scratch, buffers, vals, first and last tile)
Call = Callable[[Array, int, Sequence[Array], Array, tuple[int, int]], None]

#: Kernel, target and name of the function to LLVM IR.
Emit = Callable[[Kernel, Target, str], str]

_AVX = ("avx", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf", "sse3", "sse4.1",
        "sse4.2", "ssse3", "xsave")  # fmt: skip
_AVX2 = (*_AVX, "avx2", "bmi", "bmi2")
_LANE_BYTES = 256
_SCRATCH_AT, _CODE_AT, _VALUE_AT = 1, 3, 5  # words of the lane's record


@cache
def runnable_targets() -> dict[str, Target]:
    """What is compiled for, and every vector width that the host can run besides."""
    host, chosen = host_target(), choose_target("cpu")
    found = {f"host{chosen.vector_bits}": chosen}
    for features in (_AVX, _AVX2):
        if host.arch == "x86_64" and set(features) <= set(host.features):
            target = target_for("x86_64", features)
            found.setdefault(f"width{target.vector_bits}", target)
    return found


@cache
def every_target() -> dict[str, Target]:
    """What this host can run, and another machine, which takes an emulator."""
    return {**runnable_targets(), "neon128": target_for("aarch64", ("fp-armv8", "neon"))}


def runs_here(target: Target) -> bool:
    host = host_target()
    return target.arch == host.arch and set(target.features) <= set(host.features)


class Native:
    """The machine code of one kernel; skips the test where nothing runs it."""

    def __init__(self, kernel: Kernel, target: Target, emit: Emit = emit_kernel) -> None:
        self.kernel, self._emit = kernel, emit
        self._call = self._here(target) if runs_here(target) else self._emulated(target)

    def _emulated(self, target: Target) -> Call:
        if not can_emulate(target):
            pytest.skip(emulator(target))
        return Emulated(self.kernel, target, self._emit).call

    def _here(self, target: Target) -> Call:
        loaded = load_object(
            compile_ir(self._emit(self.kernel, target, "kernel_under_test"), target)
        )
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64)
        function = kind(loaded.address("kernel_under_test"))

        def call(
            lane: Array, size: int, buffers: Sequence[Array], vals: Array, tiles: tuple[int, int]
        ) -> None:
            scratch = np.full(size + 64, 0xFF, np.uint8)
            lane[_SCRATCH_AT] = (scratch.ctypes.data + 63) // 64 * 64
            pointers = np.array([b.ctypes.data for b in buffers], np.uint64)
            function(lane.ctypes.data, pointers.ctypes.data, vals.ctypes.data, *tiles)
            assert loaded.symbols  # the code is there until now

        return call

    def run(
        self,
        buffers: Sequence[Array],
        variables: Mapping[str, int] | None = None,
        *,
        last_tiles: int | None = None,
    ) -> tuple[int, int] | None:
        """All tiles, or some last ones, in one call; (code, value) of the first failed check."""
        values = dict(variables or {})
        words: dict[Any, int] = {v: values[v.name] for v in self.kernel.variables}
        env: dict[str, int] = {v.name: n for v, n in words.items() if isinstance(v, Variable)}
        lane = np.zeros(_LANE_BYTES // 8, np.int64)
        vals = np.array([words[v] for v in self.kernel.variables] or [0], np.int64)
        tiles = evaluate(self.kernel.tiles, env)
        first = 0 if last_tiles is None else max(tiles - last_tiles, 0)
        size = evaluate(scratch_bytes(self.kernel), env)
        self._call(lane, size, buffers, vals, (first, tiles))
        return (int(lane[_CODE_AT]), int(lane[_VALUE_AT])) if lane[_CODE_AT] else None
