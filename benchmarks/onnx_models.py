"""`python -m benchmarks.onnx_models`: ONNX files of public packages, against other runtimes.

    model, sizes, threads  -->  a rotation of all runtimes, p10 of each, ratio to the fastest peer

Dims stay symbolic: one compile serves all sizes of a model. Each runtime runs for a moment in turn,
so that the machine's moods meet all of them. Prepares are timed in processes of their own, with an
empty cache of kernels and again with the one that left.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.driver import SETTLE_S
from benchmarks.report import align

_ROUNDS, _TURN_S = 5, 0.12


@dataclass(frozen=True)
class Case:
    """A model of a package, and what it is run with."""

    name: str
    package: str
    file: str
    feed: Callable[[np.random.Generator], dict[str, Any]]


def _image(*shape: int) -> Callable[[np.random.Generator], dict[str, Any]]:
    return lambda rng: {"x": rng.standard_normal(shape).astype(np.float32) * 0.3}


def _voice(rng: np.random.Generator) -> dict[str, Any]:
    sound = (rng.standard_normal((1, 576)) * 0.1).astype(np.float32)
    state = np.zeros((2, 1, 128), np.float32)
    return {"input": sound, "state": state, "sr": np.array(16000, np.int64)}


def _bytes(rng: np.random.Generator) -> dict[str, Any]:
    return {"bytes": rng.integers(0, 257, (1, 2048), dtype=np.int32)}


_V4, _V6 = "models/ch_PP-OCRv4_{}_infer.onnx", "models/PP-OCRv6_{}_small.onnx"
CASES = (
    Case("OCR v4 det 320x320", "rapidocr_onnxruntime", _V4.format("det"), _image(1, 3, 320, 320)),
    Case("OCR v4 rec 48x320", "rapidocr_onnxruntime", _V4.format("rec"), _image(1, 3, 48, 320)),
    Case("OCR v6 det 320x320", "rapidocr", _V6.format("det"), _image(1, 3, 320, 320)),
    Case("OCR v6 rec 48x320", "rapidocr", _V6.format("rec"), _image(1, 3, 48, 320)),
    Case(
        "OCR cls 48x192",
        "rapidocr",
        "models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
        _image(1, 3, 48, 192),
    ),
    Case("silero-vad 16k", "silero_vad", "data/silero_vad.onnx", _voice),
    Case("silero-vad ifless", "silero_vad", "data/silero_vad_op18_ifless.onnx", _voice),
    Case("magika", "magika", "models/standard_v3_3/model.onnx", _bytes),
)


def model_path(case: Case) -> Path | None:
    """Where the model of a case lies, None if its package is not installed."""
    spec = find_spec(case.package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / case.file


# ---------------------------------------------------------------- runtimes


def _semel(path: Path, feed: dict[str, Any], threads: int) -> Callable[[], Any]:
    import semel

    compiled = semel.load(path, threads=threads)
    compiled.run(feed)
    return lambda: compiled.run(feed)


def _onnxruntime(path: Path, feed: dict[str, Any], threads: int) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(path, options)
    return lambda: session.run(None, feed)


def _openvino(path: Path, feed: dict[str, Any], threads: int) -> Callable[[], Any]:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",  # its own choice is bfloat16 where processors have it
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    request = compiled.create_infer_request()
    return lambda: request.infer(feed)


RUNTIMES = {"semel": _semel, "onnxruntime": _onnxruntime, "openvino": _openvino}


def rotation(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds of a run, p10, of each; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            time.sleep(SETTLE_S)
            end = time.perf_counter() + _TURN_S
            while True:
                begin = time.perf_counter()
                run()
                done = time.perf_counter()
                times[name].append(done - begin)
                if done > end:
                    break
    return {name: float(np.quantile(each, 0.1)) for name, each in times.items()}


def first_run(number: int) -> float:
    """Seconds until the first result of a case in this process, imports aside."""
    import onnx

    import semel

    assert onnx
    case = CASES[number]
    feed = case.feed(np.random.default_rng(5))
    begin = time.perf_counter()
    semel.load(model_path(case)).run(feed)
    return time.perf_counter() - begin


def _prepare_seconds(number: int) -> tuple[float, float]:
    """To the first result with no kernels known, and with all of them on disk."""
    code = f"from benchmarks.onnx_models import first_run; print(first_run({number}))"
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "SEMEL_CACHE_DIR": folder}
        command = [sys.executable, "-c", code]
        found = [
            float(subprocess.check_output(command, text=True, env=environment)) for _ in range(2)
        ]
    return found[0], found[1]


def measure_runtimes(
    path: Path, feed: dict[str, Any], threads: int, most_s: float = float("inf")
) -> dict[str, float]:
    """Seconds of a run, p10, of each runtime that is installed and runs the model.

    Nothing where one run of each takes longer than `most_s` together.
    """
    runs: dict[str, Callable[[], Any]] = {}
    seconds = 0.0
    for name, make in RUNTIMES.items():
        if find_spec(name) is None:
            continue
        try:
            run = make(path, feed, threads)
            begin = time.perf_counter()
            run()
            seconds += time.perf_counter() - begin
            runs[name] = run
        except Exception as error:  # a peer that cannot run a model is left out of its row
            if name == "semel":
                raise
            print(f"... {path.name}: {name}: {str(error)[:80]}", file=sys.stderr)
    return rotation(runs) if seconds < most_s else {}


def best_peer(times: dict[str, float]) -> tuple[str, float]:
    """The fastest of the others, and our time as a multiple of its."""
    peers = {name: each for name, each in times.items() if name != "semel"}
    best = min(peers, key=lambda name: peers[name])
    return best, times["semel"] / peers[best]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all models that are installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--only", default="")
    parser.add_argument("--no-prepare", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    rows: list[list[str]] = []
    results: list[dict[str, Any]] = []
    for number, case in enumerate(CASES):
        path = model_path(case)
        if path is None or given.only not in case.name:
            continue
        prepares = (float("nan"),) * 2 if given.no_prepare else _prepare_seconds(number)
        for threads in map(int, given.threads.split(",")):
            found = measure_runtimes(path, case.feed(np.random.default_rng(5)), threads)
            best, ratio = best_peer(found)
            results.append({"model": case.name, "threads": threads, "prepare": prepares, **found})
            micros = [f"{found[n] * 1e6:.0f}" if n in found else "-" for n in RUNTIMES]
            cold, warm = (f"{seconds:.2f}" for seconds in prepares)
            rows.append([case.name, str(threads), *micros, f"{ratio:.2f}", best, cold, warm])
            print(f"... {rows[-1]}", file=sys.stderr, flush=True)
    head = ["model", "thr", *RUNTIMES, "ratio", "best peer", "cold s", "warm s"]
    print(align([head, *rows]))
    print("Times in us, p10.")
    if given.json:
        given.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
