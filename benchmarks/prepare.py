"""From weights in a file to the first result: seconds and peak memory, in new processes.

    rounds  --measure_prepare-->  PrepareRow per model and way  --prepare_lines-->  rows of cells

Four ways to start: Semel with an empty kernel cache, with a full one, from a plan file, and ONNX
Runtime from an .onnx file. Each is a process of its own that has its libraries imported
when the clock starts, reads its weights from a file, prepares, runs once and tells its seconds and
the most memory it held. `python -m benchmarks.prepare WAY MODEL FOLDER` is that process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.checkpoints import bench_minilm_weights
from semel import Tensor, Variable, load_plan
from semel.config import override
from semel.frontends.safetensors import load_safetensors, save_safetensors
from semel.models.minilm import build_minilm
from semel.models.resnet import build_resnet, resnet_weights

Array = np.ndarray[Any, Any]
Inputs = dict[str, Array]
WAYS = ("onnxruntime", "cold", "warm", "file")
_TITLES = {
    "cold": "empty cache",
    "warm": "full cache",
    "file": "plan file",
    "onnxruntime": "onnxruntime",
}
#: Seconds by way; memory in MiB over what onnxruntime takes.
_SECONDS = {
    "minilm": {"cold": 3.0, "warm": 0.5, "file": 0.05},
    "resnet50": {"cold": 4.0, "warm": 0.6, "file": 0.05},
}
_MIB_OVER = {"cold": 150.0, "warm": 0.0, "file": 0.0}


@dataclass(frozen=True, slots=True)
class PrepareRow:
    """One model started in one way, with what it must not exceed; None where nothing must hold."""

    model: str
    way: str
    seconds: float
    peak_mib: float
    seconds_bar: float | None = None
    mib_bar: float | None = None


def measure_prepare(rounds: int = 3) -> list[PrepareRow]:
    """Every model in every way: the best time of some processes, the least of their peaks."""
    rows: list[PrepareRow] = []
    ways = [way for way in WAYS if way != "onnxruntime" or find_spec("onnxruntime")]
    for model in MODELS:
        with tempfile.TemporaryDirectory(prefix="semel-bench-") as name:
            folder = Path(name)
            _start("files", model, folder)
            peer: float | None = None
            for way in ways:
                found = [_start(way, model, folder) for _ in range(rounds)]
                seconds, peak = (min(f[i] for f in found) for i in (0, 1))
                if way == "onnxruntime":
                    peer = peak
                    rows.append(PrepareRow(model, way, seconds, peak))
                    continue
                limit = None if peer is None else peer + _MIB_OVER[way]
                rows.append(PrepareRow(model, way, seconds, peak, _SECONDS[model][way], limit))
    return rows


def prepare_lines(rows: Sequence[PrepareRow]) -> list[list[str]]:
    """The numbers beside their bars, as rows of cells."""
    lines = [["prepare and first run", "seconds", "bar", "MiB", "bar", "met"]]
    for row in rows:
        title = f"{row.model}, {_TITLES[row.way]}"
        bars = ["-" if b is None else f"{b:g}" for b in (row.seconds_bar, row.mib_bar)]
        pairs = ((row.seconds, row.seconds_bar), (row.peak_mib, row.mib_bar))
        judged = [value <= bar for value, bar in pairs if bar is not None]
        met = "-" if not judged else "yes" if all(judged) else "no"
        lines.append([title, f"{row.seconds:.3f}", bars[0], f"{row.peak_mib:.0f}", bars[1], met])
    return lines


def _start(way: str, model: str, folder: Path) -> tuple[float, float]:
    """Seconds and MiB of one process."""
    command = [sys.executable, "-m", __spec__.name, way, model, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-800:]}")
    seconds, peak = json.loads(done.stdout)
    return seconds, peak


# ---------------------------------------------------------------- the models


def _minilm(weights: Mapping[str, Array]) -> Tensor:
    length = Variable("length", 1, 512)
    ids, mask = (Tensor.input(name, (1, length), "int64") for name in ("ids", "mask"))
    return build_minilm(ids, mask, weights)


def _resnet(weights: Mapping[str, Array]) -> Tensor:
    return build_resnet(Tensor.input("x", (1, 3, 224, 224)), weights)


def _sentence() -> Inputs:
    ids = np.random.default_rng(5).integers(0, 30522, (1, 128))
    return {"ids": ids, "mask": np.ones_like(ids)}


def _image() -> Inputs:
    return {"x": np.random.default_rng(5).standard_normal((1, 3, 224, 224), dtype=np.float32)}


@dataclass(frozen=True, slots=True)
class _Model:
    weights: Callable[[], Mapping[str, Array]]
    build: Callable[[Mapping[str, Array]], Tensor]
    inputs: Callable[[], Inputs]
    onnx: str  # its function in peers.onnx_models


MODELS = {
    "minilm": _Model(bench_minilm_weights, _minilm, _sentence, "minilm_graph"),
    "resnet50": _Model(resnet_weights, _resnet, _image, "resnet_graph"),
}


# ---------------------------------------------------------------- one process


def _make_files(model: _Model, folder: Path) -> None:
    """What the ways start from: the weights, a plan, a full cache, and the model as ONNX."""
    save_safetensors(folder / "weights.safetensors", model.weights())
    with override(cache=True, cache_dir=folder / "cache"):
        plan = model.build(load_safetensors(folder / "weights.safetensors")).prepare()
    plan.save(folder / "model.plan")
    if find_spec("onnxruntime"):
        from benchmarks.peers import onnx_models

        graph = getattr(onnx_models, model.onnx)(model.inputs())
        (folder / "model.onnx").write_bytes(graph.bytes())


def _from_weights(model: _Model, folder: Path, cache: Path) -> Callable[[Inputs], Array]:
    with override(cache=True, cache_dir=cache):
        return _runner(model.build(load_safetensors(folder / "weights.safetensors")).prepare())


def _runner(plan: Any) -> Callable[[Inputs], Array]:
    return lambda inputs: plan(**inputs)


def _cold(model: _Model, folder: Path) -> Callable[[Inputs], Array]:
    with tempfile.TemporaryDirectory(prefix="semel-bench-") as empty:
        return _from_weights(model, folder, Path(empty))


def _warm(model: _Model, folder: Path) -> Callable[[Inputs], Array]:
    return _from_weights(model, folder, folder / "cache")


def _file(model: _Model, folder: Path) -> Callable[[Inputs], Array]:
    return _runner(load_plan(folder / "model.plan"))


def _onnxruntime(model: _Model, folder: Path) -> Callable[[Inputs], Array]:
    import onnxruntime as ort

    session = ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)[0]


_STARTS = {"cold": _cold, "warm": _warm, "file": _file, "onnxruntime": _onnxruntime}


def _peak_mib() -> float:
    """The most that this process held. The kernel resets it at exec, unlike ru_maxrss."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status must have VmHWM")


def main(argv: Sequence[str]) -> int:
    """Start one model in one way and print [seconds, MiB]."""
    way, name, folder = argv
    model = MODELS[name]
    if way == "files":
        _make_files(model, Path(folder))
        print(json.dumps([0.0, _peak_mib()]))
        return 0
    if way == "onnxruntime":
        __import__("onnxruntime")
    inputs = model.inputs()
    start = time.perf_counter()
    run = _STARTS[way](model, Path(folder))
    result = run(inputs)
    seconds = time.perf_counter() - start
    assert np.isfinite(result).all()
    print(json.dumps([seconds, _peak_mib()]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
