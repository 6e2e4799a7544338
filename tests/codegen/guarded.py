"""Run random programs with every buffer between two pages that must not be touched.

    python -m tests.codegen.guarded first last     exits 0, or dies at the first stray access

A read past the end of an ordinary array goes unnoticed; here it ends the process.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
from tests.codegen.lowering import lower_graph, run_kernels
from tests.codegen.machine import Array, Native, runnable_targets
from tests.fuzz.checking import _used
from tests.fuzz.programs import make_program

from semel.ir.graph import Graph
from semel.ir.target import Target
from semel.kernel.ir import Kernel

_libc = ctypes.CDLL(None, use_errno=True)
_PAGE = mmap.PAGESIZE


class Fence:
    """A copy of an array whose last (or first) byte lies next to a forbidden page."""

    def __init__(self, array: Array, *, at_end: bool) -> None:
        # An empty tensor has memory, too: plans give every buffer some.
        size_bytes = max(array.nbytes, array.itemsize)
        pages = -(-size_bytes // _PAGE)
        self._map = mmap.mmap(-1, (pages + 2) * _PAGE)
        whole = np.frombuffer(self._map, np.uint8)
        for page in (0, pages + 1):
            address = ctypes.c_void_p(whole.ctypes.data + page * _PAGE)
            assert _libc.mprotect(address, ctypes.c_size_t(_PAGE), 0) == 0
        start = (pages + 1) * _PAGE - size_bytes if at_end else _PAGE
        self.array = whole[start : start + array.nbytes].view(array.dtype)
        self.array[:] = array


def run_fenced(target: Target, *, at_end: bool) -> Any:
    def run(kernel: Kernel, buffers: list[Array], values: Mapping[str, int]) -> Any:
        fences = [Fence(b, at_end=at_end) for b in buffers]
        failed = Native(kernel, target).run([f.array for f in fences], values)
        for buffer, fence in zip(buffers, fences, strict=True):
            buffer[:] = fence.array
        return failed

    return run


def main(first: int, last: int) -> None:
    for seed in range(first, last):
        rng = Random(seed)
        program = make_program(rng, 8)
        asked = Graph(tuple(t.node for t in program.build()))
        target = rng.choice(list(runnable_targets().values()))
        graph, kernels = lower_graph(program.build(), target)
        for values in program.bindings(rng):
            data = _used(asked, program.data(values))
            bound = {v.name: values[v.name] for v in asked.variables}
            sys.stdout.write(f"seed {seed}, {bound}\n")
            sys.stdout.flush()
            for at_end in (True, False):
                run_kernels(graph, kernels, data, bound, run_fenced(target, at_end=at_end))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
