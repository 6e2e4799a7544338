"""What a prepare costs kernel by kernel, cold and warm, and how it grows with the graph.

    rounds  --measure_graphs-->  GraphRow per graph  --graph_lines-->  rows of cells
    python -m benchmarks.graphs GRAPH FOLDER  -->  [nodes, distinct kernels, seconds of a prepare]

Each prepare is a process of its own, which has its modules imported and the graph built when the
clock starts: cold with an empty folder for the kernel cache, warm with the one that a cold prepare
filled. Detectors (`benchmarks.detector`) have many kernels of many kinds. Chains of n steps, joints
of n parts and n outputs have the same few kernels and n times the nodes, so that their microseconds
per node show growth.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLD_MS, WARM_MS = 15.0, 3.0  #: most for a distinct kernel
COLD_S, WARM_S = 4.0, 0.5  #: most for a graph
GRAPHS = (
    "detector", "detector, symbolic", "detector x2",
    "chain of 200", "chain of 400", "chain of 1000",
    "concat of 300", "concat of 3000", "outputs, 1000", "outputs, 10000",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GraphRow:
    """One graph, and the least seconds of its prepares."""

    graph: str
    nodes: int
    kernels: int
    cold: float
    warm: float

    @property
    def shows_growth(self) -> bool:
        """Whether it is there for its size; kernels are few, and bars for each say nothing."""
        return self.graph.split()[0] in _GROWING

    @property
    def met(self) -> str:
        if self.shows_growth:
            return "-"
        cold, warm = (1e3 * seconds / self.kernels for seconds in (self.cold, self.warm))
        is_met = cold <= COLD_MS and warm <= WARM_MS and self.cold <= COLD_S and self.warm <= WARM_S
        return "yes" if is_met else "no"


def measure_graphs(rounds: int = 3, graphs: Sequence[str] = GRAPHS) -> list[GraphRow]:
    """Every graph, cold and warm in turns."""
    rows = []
    for graph in graphs:
        cold, warm = [], []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(prefix="semel-bench-") as folder:
                cold.append(_run(graph, folder))
                warm.append(_run(graph, folder))
        nodes, kernels, _ = cold[0]
        rows.append(
            GraphRow(graph, int(nodes), int(kernels), *(min(t[2] for t in w) for w in (cold, warm)))
        )
    return rows


def graph_lines(rows: Sequence[GraphRow]) -> list[list[str]]:
    """The numbers beside their bars, as rows of cells."""
    lines = [["graph", "nodes", "kernels", "cold s", f"ms/kernel ({COLD_MS:g})", "warm s",
              f"ms/kernel ({WARM_MS:g})", "warm us/node", "met"]]  # fmt: skip
    for row in rows:
        cells = [row.graph, str(row.nodes), str(row.kernels)]
        for seconds in (row.cold, row.warm):
            cells += [f"{seconds:.3f}", f"{1e3 * seconds / row.kernels:.1f}"]
        lines.append([*cells, f"{1e6 * row.warm / row.nodes:.0f}", row.met])
    return lines


def _run(graph: str, folder: str) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.graphs", graph, folder]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-800:]}")
    found: list[float] = json.loads(done.stdout)
    return found


# ---------------------------------------------------------------- in the process of its own


def main(argv: Sequence[str]) -> int:
    """Prepare a graph with the cache in a folder, and print the numbers."""
    import semel
    import semel.compiler.pipeline
    from semel.config import override

    outputs = _builder(argv[0])()
    with override(cache=True, cache_dir=Path(argv[1])):
        start = time.perf_counter()
        plan = semel.prepare(outputs)
        took = time.perf_counter() - start
    names = tuple(f"output{k}" for k in range(len(outputs)))
    count = len(semel.ir.graph.Graph(tuple(y.node for y in outputs), names).nodes)
    print(json.dumps([count, len(plan.kernels), took]))
    return 0


def _builder(graph: str) -> Callable[[], list[Any]]:
    from benchmarks.detector import build_detector
    from semel import Tensor, Variable

    def fixed(repeats: int) -> list[Tensor]:
        return [build_detector(Tensor.input("image", (1, 3, 320, 320)), repeats)]

    def symbolic() -> list[Tensor]:
        h, w = (Variable(name, 1, 40) for name in "hw")
        return [build_detector(Tensor.input("image", (1, 3, 32 * h, 32 * w)))]

    words = graph.split()
    if words[0] in _GROWING:
        return lambda: _GROWING[words[0]](int(words[-1]))
    known = {"detector": lambda: fixed(1), "detector x2": lambda: fixed(2)}
    return known.get(graph, symbolic)


def _chain(steps: int) -> list[Any]:
    """Attention-like steps, each with the same kernels as the one before."""
    import numpy as np

    from semel import Tensor

    x = y = Tensor.input("x", (16, 32))
    w = Tensor(np.random.default_rng(0).standard_normal((32, 32), dtype=np.float32))
    for _ in range(steps):
        y = ((y @ w).softmax(-1) + x).tanh()
    return [y]


def _concat(parts: int) -> list[Any]:
    """Many small inputs, one after another."""
    from semel import Tensor, concat

    return [concat([Tensor.input(f"x{k}", (2,)) for k in range(parts)])]


def _outputs(count: int) -> list[Any]:
    """As many outputs, each of an input of its own."""
    from semel import Tensor

    x = Tensor.input("x", (8,))
    return [x + Tensor.input(f"x{k}", (8,)) for k in range(count)]


#: By the first word of a graph's name; the last one is its size.
_GROWING: dict[str, Callable[[int], list[Any]]] = {
    "chain": _chain,
    "concat": _concat,
    "outputs,": _outputs,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
