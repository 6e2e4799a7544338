"""Interleaves the peers: short blocks of all of them in random order, over several rounds.

    rows, thread counts, rounds  --measure-->  Measurement per row, thread count and peer

Machines drift by more than runtimes differ, so a comparison counts only between samples of
one rotation. The first round warms up and is dropped. The machine's own limits are measured
in the same rotation.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.peers import NAMES
from benchmarks.rows import Row

_BLOCK_S = (0.06, 0.15)
#: Lets the spinning workers of the peer before go to sleep: those of ONNX Runtime spin for 26 ms.
SETTLE_S = 0.05
_SETTLE_ALONE_S = 0.004  # nobody has workers
_LIMITS = "limits"
_TREE = Path(__file__).resolve().parent.parent
#: Between the name of a runtime and what is different about it.
VARIANT = "@"


def is_tree(variant: str) -> bool:
    """Whether a variant is a tree with benchmarks of its own, and not a target's name."""
    return bool(variant) and (Path(variant) / "benchmarks" / "worker.py").is_file()


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call of one peer on one row; `error` if it could not run it."""

    median: float = 0.0
    p10: float = 0.0
    samples: int = 0
    max_error: float = 0.0
    error: str = ""


@dataclass(slots=True)
class RowResult:
    """A row with one thread count: timings by peer, and the machine's rates meanwhile."""

    row: str
    threads: int
    timings: dict[str, Timing] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)


class Worker:
    """A peer's process, as the driver sees it.

    `semel@x86-64-v3` is Semel as it is on a lesser machine, `semel@../before` that of another
    tree, with that tree's own rows.
    """

    def __init__(self, peer: str, threads: int) -> None:
        self.peer = peer
        runtime, _, variant = peer.partition(VARIANT)
        tree, environment = _TREE, _environment(threads)
        if is_tree(variant):
            tree = Path(variant).resolve()
            environment["PYTHONPATH"] = str(tree / "src")
        elif variant:
            environment["SEMEL_TARGET"] = variant
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", runtime, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=tree,
            env=environment,
        )
        self.version = str(self._answer().get("version", ""))

    def ask(self, command: str, argument: str | float) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({command: argument}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._dead()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else self._dead()
        return answer

    def _dead(self) -> dict[str, Any]:
        return {"error": f"its process ended with code {self._process.wait()}"}

    def stop(self) -> None:
        """End the process."""
        with self._process as process:  # closes the pipes, which ends the worker, and waits
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it crashed; what the others measured counts
                process.stdin.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()


def _environment(threads: int) -> dict[str, str]:
    limits = {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "OPENBLAS", "MKL")}
    return {**os.environ, **limits, "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore"}


def installed_peers(wanted: Sequence[str] = NAMES) -> list[str]:
    """The peers among `wanted` that can be imported here."""
    return [name for name in wanted if find_spec(name) is not None]


def measure(
    rows: Sequence[Row],
    threads: int,
    *,
    peers: Sequence[str],
    rounds: int,
    progress: Callable[[str], None],
) -> tuple[list[RowResult], dict[str, str]]:
    """Results by row, and the versions of the peers that took part."""
    workers = [Worker(peer, threads) for peer in (*peers, _LIMITS)]
    try:
        results = []
        for row in rows:
            progress(f"{row.title}, {threads} thread{'s' if threads > 1 else ''}")
            results.append(_measure_row(row, threads, workers, rounds))
    finally:
        for worker in workers:
            worker.stop()
    return results, {w.peer: w.version for w in workers if w.version}


def _measure_row(row: Row, threads: int, workers: Sequence[Worker], rounds: int) -> RowResult:
    result = RowResult(row.name, threads)
    loaded = {worker: worker.ask("load", row.name) for worker in workers}
    for worker, answer in loaded.items():
        if "error" in answer:
            result.timings[worker.peer] = Timing(error=answer["error"])
    running = [w for w, answer in loaded.items() if not {"error", "absent"} & set(answer)]
    samples: dict[str, list[dict[str, Any]]] = {worker.peer: [] for worker in running}
    for number in range(rounds + 1):
        for worker in random.sample(running, len(running)):
            time.sleep(SETTLE_S if threads > 1 else _SETTLE_ALONE_S)
            answer = worker.ask("run", random.uniform(*_BLOCK_S))
            if number > 0:
                samples[worker.peer].append(answer)
    for worker in workers:
        worker.ask("unload", "")
    for worker in running:
        answers = samples[worker.peer]
        if worker.peer == _LIMITS:
            result.limits = _limits(answers)
        else:
            result.timings[worker.peer] = _timing(answers, loaded[worker]["max_error"])
    return result


def _limits(answers: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The best rates; of samples of reading, the one that the p10 of a peer's times is held to."""
    rates = {key: max(a["rates"][key] for a in answers) for key in answers[0]["rates"]}
    reads = sorted((r for a in answers for r in a["reads"]), reverse=True)
    return rates | ({"read": reads[len(reads) // 10]} if reads else {})


def _timing(answers: Sequence[dict[str, Any]], max_error: float) -> Timing:
    broken = [a["error"] for a in answers if "error" in a]
    if broken:
        return Timing(error=broken[0])
    samples = sorted(s for a in answers for s in a["samples"])
    p10 = samples[len(samples) // 10]
    return Timing(statistics.median(samples), p10, len(samples), max_error)
