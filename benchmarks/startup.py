"""Starting up: import time, and an encoder's prepare with a cold and with a warm cache.

    rounds  --measure_startup-->  seconds by name

Each number is the best of some new processes, since a start happens once in each.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.startup_worker import prepare_in_new_process
from semel.cli.encoder import EncoderSize

BARS = {"import semel": 0.25, "prepare, cold cache": 3.0, "prepare, warm cache": 0.5}
_IMPORT = "import time; t = time.perf_counter(); import semel; print(time.perf_counter() - t)"


def measure_startup(rounds: int = 5) -> dict[str, float]:
    """The best of `rounds` imports and warm prepares, and of two cold ones."""
    imports = [import_seconds() for _ in range(rounds)]
    cold, warm = [], []
    for _ in range(2):
        with tempfile.TemporaryDirectory(prefix="semel-bench-") as folder:
            cold.append(_prepare(Path(folder)))
            warm += [_prepare(Path(folder)) for _ in range(max(1, rounds // 2))]
    return dict(zip(BARS, (min(imports), min(cold), min(warm)), strict=True))


def import_seconds() -> float:
    """Seconds that `import semel` takes in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def _prepare(folder: Path) -> float:
    return sum(prepare_in_new_process(EncoderSize(), folder, None).values())


def startup_lines(seconds: dict[str, float]) -> list[list[str]]:
    """The numbers beside their bars, as rows of cells."""
    lines = [["startup", "seconds", "bar", "met"]]
    for name, value in seconds.items():
        met = "yes" if value <= BARS[name] else "no"
        lines.append([name, f"{value:.3f}", f"{BARS[name]:g}", met])
    return lines
