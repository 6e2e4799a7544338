"""A prepare, timed stage by stage, and once more in a process of its own.

    EncoderSize  --prepare_encoder-->  Prepared (graph, program, plan, seconds by stage)
    EncoderSize, cache directory  --prepare_in_new_process-->  seconds by stage

A new process is the only honest warm start: in this one the kernels stay loaded, so that a
second prepare would not even look at the disk. `python -m benchmarks.startup_worker DIRECTORY` is
that process; it prints its seconds as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from semel.cli.encoder import EncoderSize, build_encoder
from semel.compiler.pipeline import compile_graph
from semel.config import override
from semel.devices import choose_target
from semel.ir.graph import Graph
from semel.plan.instantiate import instantiate
from semel.plan.plan import ExecutionPlan
from semel.plan.program import Program
from semel.runtime.device import find_device
from semel.runtime.free import HOST_DEVICE

_TIMEOUT_S = 120


@dataclass(frozen=True)
class Prepared:
    """An encoder ready to run, and the seconds that each stage of preparing it took."""

    graph: Graph
    program: Program
    plan: ExecutionPlan
    seconds: dict[str, float]


def prepare_encoder(size: EncoderSize, threads: int | None) -> Prepared:
    """Build, compile and link the encoder with the settings in force.

    Making the model, which mostly is drawing its weights, is not counted.
    """
    graph = build_encoder(size)
    times = [time.perf_counter()]
    program = compile_graph(graph, choose_target(HOST_DEVICE))
    times.append(time.perf_counter())
    find_device(HOST_DEVICE).ensure_ready()  # loads the native runner, once per process
    times.append(time.perf_counter())
    plan = instantiate(program, threads=threads)
    times.append(time.perf_counter())
    compiled, opened, planned = (b - a for a, b in pairwise(times))
    # What the stages leave over of the compile is linking: it ends after they are written down.
    linked = max(compiled - sum(program.stage_seconds.values()), 0.0)
    stages = {"program": linked, "runner": opened, "plan": planned}
    return Prepared(graph, program, plan, {**program.stage_seconds, **stages})


def prepare_in_new_process(
    size: EncoderSize, cache_dir: Path, threads: int | None
) -> dict[str, float]:
    """Seconds by stage of a prepare in a fresh interpreter that uses `cache_dir`."""
    command = [sys.executable, "-m", __name__, str(cache_dir), json.dumps(asdict(size))]
    command += [] if threads is None else [str(threads)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=_TIMEOUT_S
    )
    seconds: dict[str, float] = json.loads(done.stdout)
    return seconds


def main(argv: Sequence[str]) -> int:
    """Prepare in this process and print the seconds by stage."""
    cache_dir, size, *threads = argv
    with override(cache=True, cache_dir=Path(cache_dir)):
        prepared = prepare_encoder(
            EncoderSize(**json.loads(size)), int(threads[0]) if threads else None
        )
    print(json.dumps(prepared.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
