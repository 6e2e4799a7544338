"""A model whose weights stay in a file: each layer's come in while the one before is computed.

Run it: python examples/10_streaming.py
"""

import tempfile
import time
from pathlib import Path

import numpy as np

from semel import ExecutionPlan, Tensor

LAYERS, ROWS, WIDTH = 8, 256, 512


def network(where: str) -> Tensor:
    """Layers whose weights lie on the device `where`; all is computed on the CPU."""
    h = Tensor.input("x", (ROWS, WIDTH))
    for k in range(LAYERS):
        weight = Tensor.input(f"w{k}", (WIDTH, WIDTH), device=where)
        h = (h @ weight.to("cpu:0")).relu()
    return h


def seconds(plan: ExecutionPlan, runs: int = 20) -> float:
    """The least time of a run."""
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        plan.execute()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """The same layers with weights in memory and in a file."""
    rng = np.random.default_rng(0)
    scale = np.float32(WIDTH**-0.5)
    arrays = {f"w{k}": rng.standard_normal((WIDTH, WIDTH), np.float32) for k in range(LAYERS)}
    arrays = {name: array * scale for name, array in arrays.items()}
    arrays["x"] = rng.standard_normal((ROWS, WIDTH), np.float32)

    with tempfile.TemporaryDirectory() as folder:
        disk = f"disk:{Path(folder) / 'weights.bin'}"
        near = network("cpu:0").prepare(device="cpu:0")
        far = network(disk).prepare(device="cpu:0")
        same = np.array_equal(near(**arrays), far(**arrays))  # the weights are in the file now
        print("the same bits:", same)

        room = far.memory.devices
        print(f"in the file: {room[disk].io_bytes >> 10} KiB, ", end="")
        print(f"in memory, for two layers at a time: {room['cpu:0'].arena_bytes >> 10} KiB")
        print(f"weights in memory {seconds(near) * 1e3:.2f} ms, ", end="")
        print(f"in a file {seconds(far) * 1e3:.2f} ms")

        for lane in far.execute_profiled(runs=5).lanes:
            beside = lane.beside_ns / max(lane.busy_ns, 1)
            name = lane.name.replace(folder, "...")
            print(f"{name}: busy {lane.busy_ns / 1e6:.2f} ms, {beside:.0%} beside the other lane")


if __name__ == "__main__":
    main()
