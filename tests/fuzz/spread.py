"""Random graphs over two and three devices, against all of them on one: the bits must be the same.

    seed  --draw-->  tensors  --check-->  nothing, or an AssertionError

`test_spread.py` looks at a thousand of them. Many more, in several processes and without pytest:

    PYTHONPATH=src python -m tests.fuzz.spread --graphs 100000 --processes 16 --seed 1
    PYTHONPATH=src python -m tests.fuzz.spread --graphs 1 --processes 1 --seed 30000017  # one again

Each process has seeds of its own, far from those of the others, and two CPUs, so that lanes run
side by side; with as many processes as CPUs, two processes share two.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import semel
from semel import ExecutionPlan, Tensor, Variable, config

DEVICES = ("cpu", "cpu:0", "cpu:1")
N = Variable("n", 1, 12)
RNG = np.random.default_rng(0)
W = [RNG.standard_normal((8, 8), dtype=np.float32) / 3 for _ in range(3)]
ARRAYS = [RNG.standard_normal((12, 8), dtype=np.float32) for _ in range(4)]

#: Between the first seeds of two processes.
_APART = 10_000_000
#: How often a process says which seed it is at: if it dies, that one is near.
_TOLD = 25
_CPUS_EACH = 2
_MOST_SHOWN = 20


def draw(seed: int, is_spread: bool) -> list[Tensor]:
    """The tensors of a seed, on several devices or with every move to one."""
    rng = Random(seed)
    used = rng.sample(DEVICES, rng.choice((2, 2, 3)))

    def name(device: str) -> str:
        return device if is_spread else "cpu"

    def at(value: tuple[Tensor, str], device: str) -> Tensor:
        return value[0] if value[1] == device else value[0].to(name(device))

    values: list[tuple[Tensor, str]] = []
    for i in range(rng.choice((1, 2))):
        home = rng.choice(used)
        values.append((Tensor.input(f"x{i}", (N, 8), device=name(home)), home))
    for _ in range(rng.randint(2, 9)):
        device = rng.choice(used)
        x = at(rng.choice(values[-4:]), device)
        match rng.randrange(8):
            case 0 | 1:
                y = x @ Tensor(W[rng.randrange(3)])
            case 2:
                y = x + at(rng.choice(values), device)
            case 3:
                y = x * at(rng.choice(values), device)
            case 4:
                y = x.relu()
            case 5:
                y = x.softmax(-1)
            case 6:
                y = x - x.sum(-1, keepdims=True)
            case _:
                y = x * semel.arange(8).cast("float32")
        values.append((y, device))
    tensors = [y for y, _ in values]
    return list(dict.fromkeys([tensors[-1], rng.choice(tensors), rng.choice(tensors)]))


def prepare(tensors: list[Tensor], seed: int, **options: Any) -> ExecutionPlan:
    return semel.prepare(tensors, fusion=seed % 16 == 0, **options)


def results(plan: ExecutionPlan, seed: int, turn: int) -> list[Any]:
    rows = 1 + (seed + 5 * turn) % 12
    found = plan(**{name: ARRAYS[i + turn][:rows] for i, name in enumerate(plan.inputs)})
    return list(found) if isinstance(found, tuple) else [found]


def num_fused_softmax(plan: ExecutionPlan) -> int:
    """How many softmaxes are one kernel with the matmul that reads them."""
    return sum("attention" in kernel.kernel.name for kernel in plan.prepared_kernels)


def check(seed: int) -> None:
    one = prepare(draw(seed, is_spread=False), seed)
    with config.override(debug=frozenset({"jitter"})):
        several = prepare(draw(seed, is_spread=True), seed)
        # A softmax that others read too is not fused with its matmul. On several devices each may
        # compute one of its own: another graph, whose last bits are others (1 of 40,000 seeds).
        rtol = 0 if num_fused_softmax(one) == num_fused_softmax(several) else 1e-5
        for turn in range(2):
            for a, b in zip(results(one, seed, turn), results(several, seed, turn), strict=True):
                np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=f"seed {seed}")


# ---------------------------------------------------------------- many of them


def main(argv: Sequence[str]) -> int:
    """The command: 0 if all was well."""
    parser = argparse.ArgumentParser(prog="tests.fuzz.spread", description=__doc__)
    parser.add_argument("--graphs", type=int, default=1000, help="of all processes together")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=1, help="of the first graph")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most so long")
    parser.add_argument("--cpus", help=argparse.SUPPRESS)  # of this process, which looks itself
    given = parser.parse_args(argv)
    if given.cpus is not None:
        return _look(given.seed, given.graphs, given.seconds, given.cpus)
    return _share(given.seed, given.graphs, given.seconds, given.processes)


def _look(first: int, graphs: int, seconds: float, cpus: str) -> int:
    """One process: seeds from `first` on."""
    faulthandler.enable()
    os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    until, failed, count = time.monotonic() + seconds, 0, 0
    while count < graphs and time.monotonic() < until:
        seed = first + count
        if count % _TOLD == 0:
            _say(f"at {seed}")
        try:
            check(seed)
        except Exception as error:
            failed += 1
            if failed <= _MOST_SHOWN:
                words = " ".join(f"{type(error).__name__}: {error}".split())
                _say(f"failed {seed}: {words[:500]}")
        count += 1
    _say(f"over {count} {failed}")
    return int(failed > 0)


def _share(first: int, graphs: int, seconds: float, processes: int) -> int:
    """Several processes, each with its part of the seeds."""
    start, cpus = time.monotonic(), sorted(os.sched_getaffinity(0))
    counted, bad, running = 0, [], []
    with tempfile.TemporaryDirectory() as folder:
        for k in range(processes):
            own = [str(cpus[(_CPUS_EACH * k + i) % len(cpus)]) for i in range(_CPUS_EACH)]
            part = graphs // processes + (k < graphs % processes)
            options = {"seed": first + k * _APART, "graphs": part, "seconds": seconds}
            words = [f"--{name}={value}" for name, value in options.items()]
            command = [sys.executable, "-m", __spec__.name, *words, f"--cpus={','.join(own)}"]
            path = Path(folder, str(k))
            with path.open("w") as told_to:  # a pipe would fill up, and hold its writer up
                running.append((subprocess.Popen(command, stdout=told_to), path))
        ended = [(process.wait(), path.read_text().splitlines()) for process, path in running]
    for status, told in ended:
        bad += [line for line in told if line.startswith("failed ")]
        if told and told[-1].startswith("over "):
            counted += int(told[-1].split()[1])
        else:
            near = next((line for line in reversed(told) if line.startswith("at ")), "at no seed")
            bad.append(f"a process ended with {status}, {near} or soon after")
    took = time.monotonic() - start
    _say("\n".join(bad))
    _say(f"{counted} graphs in {took:.0f} s, {len(bad)} failures, seed {first}")
    is_short = counted < graphs and seconds == float("inf")
    return int(bool(bad) or is_short or not counted)


def _say(text: str) -> None:
    if text:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
