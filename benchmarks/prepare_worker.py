"""One start of one model, in a process of its own.

    python -m benchmarks.prepare_worker WAY MODEL FOLDER  -->  [ready s, first run s, peak MiB]

WAY files makes what the others start from: weights, inputs, a plan file, a full cache, an
.onnx file. The process of onnxruntime imports nothing of Semel, and the other way round.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Array]], Array]


def main(argv: Sequence[str]) -> int:
    """Start as told and print the numbers."""
    way, model, folder = argv[0], argv[1], Path(argv[2])
    if way == "files":
        _make_files(model, folder)
        print(json.dumps([0.0, 0.0, _peak_mib()]))
        return 0
    prepare = _onnxruntime() if way == "onnxruntime" else _semel(way, model)
    with np.load(folder / "inputs.npz") as file:
        inputs = dict(file)
    times = [time.perf_counter()]
    run = prepare(folder)
    times.append(time.perf_counter())
    result = run(inputs)
    times.append(time.perf_counter())
    if not np.isfinite(result).all():
        raise RuntimeError(f"{way} {model} must give numbers")
    print(json.dumps([times[1] - times[0], times[2] - times[1], _peak_mib()]))
    return 0


def _peak_mib() -> float:
    """The most that this process held. The system resets it at exec, unlike ru_maxrss."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status must have a line VmHWM")


def _onnxruntime() -> Callable[[Path], Run]:
    import onnxruntime as ort

    def prepare(folder: Path) -> Run:
        session = ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
        return lambda inputs: session.run(None, inputs)[0]

    return prepare


def _semel(way: str, model: str) -> Callable[[Path], Run]:
    import semel.compiler.pipeline  # noqa: F401  (before the clock starts, as everybody's modules)
    from semel import load_plan
    from semel.config import override
    from semel.frontends.safetensors import load_safetensors

    build = _builder(model)

    def from_weights(folder: Path, cache: Path) -> Run:
        with override(cache=True, cache_dir=cache):
            plan = build(load_safetensors(folder / "weights.safetensors")).prepare()
        return lambda inputs: plan(**inputs)

    def cold(folder: Path) -> Run:
        with tempfile.TemporaryDirectory(prefix="semel-bench-") as empty:
            return from_weights(folder, Path(empty))

    def file(folder: Path) -> Run:
        plan = load_plan(folder / "model.plan")
        return lambda inputs: plan(**inputs)

    ways = {"cold": cold, "file": file, "warm": lambda f: from_weights(f, f / "cache")}
    return ways[way]


def _builder(model: str) -> Callable[[Mapping[str, Array]], Any]:
    from semel import Tensor, Variable
    from semel.models.minilm import build_minilm
    from semel.models.resnet import build_resnet

    if model == "resnet50":
        return lambda weights: build_resnet(Tensor.input("x", (1, 3, 224, 224)), weights)

    def minilm(weights: Mapping[str, Array]) -> Tensor:
        length = Variable("length", 1, 512)
        ids, mask = (Tensor.input(name, (1, length), "int64") for name in ("ids", "mask"))
        return build_minilm(ids, mask, weights)

    return minilm


def _make_files(model: str, folder: Path) -> None:
    from importlib.util import find_spec

    from benchmarks.checkpoints import bench_minilm_weights
    from semel.config import override
    from semel.frontends.safetensors import load_safetensors, save_safetensors
    from semel.models.resnet import resnet_weights

    rng = np.random.default_rng(5)
    ids = rng.integers(0, 30522, (1, 128))
    image = rng.standard_normal((1, 3, 224, 224), dtype=np.float32)
    weights: Mapping[str, Array]
    if model == "minilm":
        weights, inputs = bench_minilm_weights(), {"ids": ids, "mask": np.ones_like(ids)}
    else:
        weights, inputs = resnet_weights(), {"x": image}
    np.savez(folder / "inputs.npz", **inputs)  # type: ignore[arg-type]
    save_safetensors(folder / "weights.safetensors", weights)
    with override(cache=True, cache_dir=folder / "cache"):
        plan = _builder(model)(load_safetensors(folder / "weights.safetensors")).prepare()
    plan.save(folder / "model.plan")
    if find_spec("onnxruntime"):
        from benchmarks.peers import onnx_models

        graphs = {"minilm": onnx_models.minilm_graph, "resnet50": onnx_models.resnet_graph}
        (folder / "model.onnx").write_bytes(graphs[model](inputs).bytes())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
