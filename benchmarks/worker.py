"""One peer with one thread count in a process of its own: runs rows when it is told to.

    stdin: {"load": row} | {"run": seconds} | {"unload": ""}  -->  stdout: one JSON line each

A process per peer keeps pools, allocators and denormal modes of one runtime away from the
others. With one thread the process is pinned before its runtime is imported, so that every
library sees one core. Standard output belongs to the protocol: whatever a library prints
goes to standard error.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from benchmarks.rows import ROWS, make_inputs

_SAMPLE_S = 2e-4  # calls shorter than this are timed in batches
_LEAST_SAMPLES = 3


def main(peer: str, threads: int) -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    worker = _Limits(threads) if peer == "limits" else _Worker(peer, threads)
    print(json.dumps({"version": worker.version}), file=answers, flush=True)
    for line in sys.stdin:
        ((command, argument),) = json.loads(line).items()
        try:
            answer = getattr(worker, command)(argument)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


class _Worker:
    """A runtime and the row it holds now."""

    def __init__(self, peer: str, threads: int) -> None:
        self._peer = importlib.import_module(f"benchmarks.peers.{peer}")
        self._peer.setup(threads)
        self.version: str = self._peer.VERSION
        self._run: Callable[[], Any] | None = None
        self._ready: Callable[[], Any] = _nothing
        self._batch = 1

    def load(self, name: str) -> dict[str, Any]:
        """Build the row, compare its result with the reference, and size the batches."""
        if name not in self._peer.BUILD:
            return {"absent": True}
        row = ROWS[name]
        inputs = make_inputs(row)
        run, result, *before = self._peer.BUILD[name](inputs)
        ready = before[0] if before else _nothing
        ready()
        run()
        found, wanted = np.asarray(result(), np.float64), row.reference(inputs)
        if found.shape != wanted.shape:
            return {"error": f"result must have shape {wanted.shape}, got {found.shape}"}
        error = float(np.max(np.abs(found - wanted) / np.maximum(np.abs(wanted), 1)))
        if not error <= row.tolerance:
            return {"error": f"result must be within {row.tolerance} of the reference, got {error}"}
        self._run, self._ready = run, ready
        self._batch = 1 if before else max(1, int(_SAMPLE_S / _best_of(run, 5)))
        gc.collect()
        gc.freeze()
        return {"max_error": error}

    def run(self, seconds: float) -> dict[str, Any]:
        """Seconds per call, one sample per batch, for about `seconds`."""
        assert self._run is not None
        run, ready, batch, samples = self._run, self._ready, self._batch, []
        now = time.perf_counter
        end = now() + seconds
        while len(samples) < _LEAST_SAMPLES or now() < end:
            ready()
            start = now()
            for _ in repeat(None, batch):
                run()
            samples.append((now() - start) / batch)
        return {"samples": samples}

    def unload(self, _: str) -> dict[str, Any]:
        """Let go of the row and its memory."""
        self._run, self._ready = None, _nothing
        gc.unfreeze()
        gc.collect()
        return {}


class _Limits:
    """The machine itself as a peer: what it reaches in the same rotation.

    A row that is bound by reading is held against a loop over as many bytes as it reads, sample
    by sample like any peer; others against the best of a few loops.
    """

    version = ""

    def __init__(self, threads: int) -> None:
        from semel.devices.cpu.yardstick import ReadLoop, measure_limits

        self._measure = partial(measure_limits, threads)
        # It remembers its first answer; a state of the machine is wanted each time.
        self._measure_again = partial(measure_limits.__wrapped__, threads)
        self._make_loop = partial(ReadLoop, threads)
        self._loop: ReadLoop | None = None
        self._nbytes = 0

    def load(self, name: str) -> dict[str, Any]:
        """Get memory like the row's."""
        row = ROWS[name]
        self._nbytes = row.traffic if row.bound == "copy" else 0
        self._loop = self._make_loop(row.traffic) if row.bound == "read" else None
        return {}

    def run(self, seconds: float) -> dict[str, Any]:
        """One measurement of arithmetic, reading and copying, or samples of reading."""
        limits = self._measure() if self._loop else self._measure_again(self._nbytes)
        rates = {
            "fma": limits.flops_per_s,
            "read": limits.read_bytes_per_s,
            "copy": limits.copy_bytes_per_s,
        }
        return {"rates": rates, "reads": self._reads(seconds)}

    def _reads(self, seconds: float) -> list[float]:
        """Bytes per second of turns of the read loop, for about `seconds`."""
        loop, rates, end = self._loop, [], time.perf_counter() + seconds
        while loop is not None and (len(rates) < _LEAST_SAMPLES or time.perf_counter() < end):
            rates.append(loop.nbytes / loop.seconds())
        return rates

    def unload(self, _: str) -> dict[str, Any]:
        """Let go of the memory."""
        self._loop = None
        return {}


def _nothing() -> None:
    """What puts a row back between samples that stays as it is."""


def _best_of(run: Callable[[], Any], times: int) -> float:
    best = 1.0
    for _ in range(times):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return max(best, 1e-7)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
