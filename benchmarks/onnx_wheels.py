"""`python -m benchmarks.onnx_wheels FOLDER`: every ONNX file below a folder, against others.

    file  --feeds that ONNX Runtime takes-->  largest error, compiles, prepares, ratios to the best

Each model runs in a process of its own with an empty cache of kernels, with its dims open and one
compile for all sizes. The error is relative to the largest number of an output. A model that
ONNX Runtime cannot run is compared with nothing, and listed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.onnx_feeds import find_feeds
from benchmarks.onnx_models import best_peer, measure_runtimes
from benchmarks.report import align

#: Below this, a largest number is noise (probabilities of what is not there).
_FLOOR = 1e-3
_HEAD = ("model", "nodes", "sizes", "error", "compiles", "cold s", "warm s")


def measure(path: Path, threads: Sequence[int], most_s: float) -> dict[str, Any]:
    """What a model does here, in this process."""
    import onnx
    import onnxruntime

    import semel

    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(path)
    names = [each.name for each in session.get_outputs()]
    cases = list(find_feeds(session.get_inputs(), partial(session.run, names)))
    if not cases:
        return {"error": "ONNX Runtime takes no feed that was tried"}
    found: dict[str, Any] = {"sizes": [_sizes(feed) for feed, _ in cases]}
    found["nodes"] = len(onnx.load(path, load_external_data=False).graph.node)
    begin = time.perf_counter()
    compiled = semel.load(path)
    ours = [compiled.run(cases[0][0])]
    found["cold"] = time.perf_counter() - begin
    ours += [compiled.run(feed) for feed, _ in cases[1:]]
    plan = getattr(compiled, "plan", None)
    found["compiles"] = compiled.compile_count if plan is None else plan.compile_count
    wanted = [dict(zip(names, want, strict=True)) for _, want in cases]
    found["errors"] = [
        max((_error(want[n], got[n]) for n in names), key=_badness)
        for want, got in zip(wanted, ours, strict=True)
    ]
    found["times"] = {str(n): measure_runtimes(path, cases[0][0], n, most_s) for n in threads}
    return found


def warm_start(path: Path) -> float:
    """Seconds to the first result, with what the process before has left on disk."""
    import onnx
    import onnxruntime

    import semel

    assert onnx
    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(path)
    feed, _ = next(iter(find_feeds(session.get_inputs(), partial(session.run, None))))
    begin = time.perf_counter()
    semel.load(path).run(feed)
    return time.perf_counter() - begin


def _sizes(feed: dict[str, Any]) -> str:
    return " ".join("x".join(map(str, np.shape(array))) or "1" for array in feed.values())


def _error(want: Any, got: Any) -> float | str:
    """The largest difference, relative to the largest number; of what is no float, how many."""
    if isinstance(want, list):
        if len(want) != len(got):
            return f"{len(got)} items, not {len(want)}"
        if want and isinstance(want[0], dict):
            return 0.0 if list(want) == list(got) else "items differ"
        return max(
            (_error(w, g) for w, g in zip(want, got, strict=True)), key=_badness, default=0.0
        )
    want, got = np.asarray(want), np.asarray(got)
    if want.shape != got.shape:
        return f"shape {got.shape}, not {want.shape}"
    if want.dtype.kind not in "fV":
        differ = int((want != got).sum())
        return f"{differ} of {want.size} differ" if differ else 0.0
    if want.dtype != got.dtype:
        return f"dtype {got.dtype}, not {want.dtype}"
    want, got = want.astype(np.float64), got.astype(np.float64)
    if not np.array_equal(np.isfinite(want), np.isfinite(got)):
        return "finite elsewhere"
    is_finite = np.isfinite(want)
    largest = np.abs(want[is_finite]).max(initial=_FLOOR)
    return float(
        np.abs(want - got, where=is_finite, out=np.zeros_like(want)).max(initial=0) / largest
    )


def _badness(error: float | str) -> float:
    return error if isinstance(error, float) else float("inf")


# ---------------------------------------------------------------- all of a folder


def _in_process(path: Path, threads: str, limit_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        found = _started(path, "measure", threads, limit_s, folder)
        if "error" not in found:
            found |= _started(path, "warm", threads, limit_s, folder)
    return found


def _started(path: Path, part: str, threads: str, limit_s: float, folder: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.onnx_wheels", str(path), "--one", part]
    environment = {**os.environ, "SEMEL_CACHE_DIR": folder}
    try:
        done = subprocess.run(
            [*command, "--threads", threads],
            capture_output=True, text=True, timeout=limit_s, env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"no result in {limit_s:.0f} s"}
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode == 0:
        return dict(json.loads(last))
    lines = [line for line in done.stderr.splitlines() if line.strip()] or [""]
    return {"error": lines[-1][:600], "trace": done.stderr[-4000:], "code": done.returncode}


def _line(name: str, found: dict[str, Any], threads: Sequence[str]) -> list[str]:
    if "error" in found:
        return [name, found["error"][:100]]
    worst = max(found["errors"], key=_badness)
    ratios = []
    for n in threads:
        times = found["times"].get(n)
        ratios.append(f"{best_peer(times)[1]:.2f}" if times else "-")
        ratios.append(f"{times['semel'] * 1e6:.0f}" if times else "-")
    shown = worst if isinstance(worst, str) else f"{worst:.1e}"
    count, compiles = str(len(found["errors"])), str(found["compiles"])
    prepares = [f"{found['cold']:.2f}", f"{found['warm']:.2f}"]
    return [name, str(found["nodes"]), count, shown, compiles, *prepares, *ratios]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all models below a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", default="1,2", help="'' measures no times")
    parser.add_argument("--only", default="", help="of models whose path has this")
    parser.add_argument("--limit", type=float, default=300, help="seconds for a model")
    parser.add_argument("--json", type=Path, help="results so far; models that it has are skipped")
    parser.add_argument("--one", choices=["measure", "warm"], help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    threads = [n for n in given.threads.split(",") if n]
    if given.one == "warm":
        print(json.dumps({"warm": warm_start(given.folder)}))
        return 0
    if given.one == "measure":
        print(json.dumps(measure(given.folder, [int(n) for n in threads], most_s=8.0)))
        return 0
    known = given.json is not None and given.json.exists()
    results: dict[str, Any] = json.loads(given.json.read_text()) if known else {}
    paths = sorted(p for end in ("onnx", "ort") for p in given.folder.rglob(f"*.{end}"))
    rows = []
    for path in paths:
        name = str(path.relative_to(given.folder))
        if given.only not in name:
            continue
        if name not in results:
            results[name] = _in_process(path, given.threads, given.limit)
            if given.json:
                given.json.write_text(json.dumps(results, indent=1))
        rows.append(_line(name, results[name], threads))
        print(f"... {rows[-1]}", file=sys.stderr, flush=True)
    ratios = [title for n in threads for title in (f"ratio {n}", f"us {n}")]
    width = len(_HEAD) + len(ratios)
    print(align([[*_HEAD, *ratios], *([*row, *[""] * (width - len(row))] for row in rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
