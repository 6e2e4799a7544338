"""`semel demo` does what it says, and its exit code says whether it did."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from semel.cli import demo
from semel.cli.encoder import QUICK, EncoderSize, build_encoder, example_input
from semel.cli.main import main
from semel.cli.report import plain
from semel.ops.evaluate import evaluate

SRC = Path(__file__).parent.parent.parent / "src"


@cache
def report() -> demo.DemoReport:
    return demo.run_demo(threads=1, quick=True)


def test_every_check_of_the_demo_holds() -> None:
    assert all(report().checks.values()), report().checks
    assert len(report().checks) == 3


def test_the_demo_compiles_once_and_runs_several_lengths() -> None:
    assert report().compile_count == 1
    assert len({r.length for r in report().lengths}) >= 3
    assert all(r.seconds > 0 and r.max_error < 1e-4 for r in report().lengths)


def test_fusion_and_memory_sharing_show() -> None:
    assert report().kernels * 3 < report().unfused_kernels
    assert report().distinct_kernels <= report().kernels
    assert report().arena_bytes < report().naive_bytes


def test_the_work_of_an_execute_is_that_of_the_model() -> None:
    size = QUICK
    for result in report().lengths:
        n = result.length
        products = 2 * n * size.width * (4 * size.width + 2 * size.hidden)
        products += 4 * n * n * size.width
        assert products * size.layers <= result.flops <= 1.5 * products * size.layers


def test_the_demo_measures_a_cold_and_a_warm_prepare() -> None:
    assert {"graph", "schedule", "kernels", "artefacts", "runner", "plan"} <= set(
        report().cold_seconds
    )
    assert report().warm_seconds.keys() == report().cold_seconds.keys()
    assert report().warm_seconds["artefacts"] < report().cold_seconds["artefacts"]


def test_plain_output_is_ascii_and_fits_eighty_columns() -> None:
    text = "\n\n".join(plain(section) for section in demo.sections(report()))
    assert text.isascii()
    assert max(len(line) for line in text.splitlines()) <= 80
    for word in ("cold cache", "GFLOP/s", "of peak", "max error", "without fusion", "Next:"):
        assert word in text
    assert "FAIL" not in text


def test_a_wrong_number_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = dataclasses.replace(report().lengths[0], max_error=0.5)
    bad = dataclasses.replace(report(), lengths=(wrong, *report().lengths[1:]))
    monkeypatch.setattr(demo, "run_demo", lambda **_: bad)
    assert main(["demo", "--json"]) == 1
    out, err = capsys.readouterr()
    assert "a check failed: every output within" in err
    assert not all(json.loads(out)["checks"].values())


def test_a_nan_fails_the_demo() -> None:
    wrong = dataclasses.replace(report().lengths[0], max_error=float("nan"))
    bad = dataclasses.replace(report(), lengths=(wrong,))
    assert not all(bad.checks.values())


def test_the_demo_runs_as_a_program_in_a_dumb_narrow_terminal(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "semel", "demo", "--quick", "--threads", "2"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={
            "PYTHONPATH": str(SRC),
            "SEMEL_CACHE_DIR": str(tmp_path),
            "TERM": "dumb",
            "COLUMNS": "10",
            "LC_ALL": "C",
        },
    )
    assert done.returncode == 0, done.stderr
    assert "2 threads" in done.stdout
    # The demo's kernels went to a directory of their own.
    assert not list(tmp_path.rglob("*.kernel"))


def test_the_encoder_is_the_textbook_one() -> None:
    """Independent of our reference: the same weights through plain NumPy, head by head."""
    size = EncoderSize(layers=1, width=8, heads=2, hidden=16, max_length=4)
    x = example_input(size, 3)
    (found,) = evaluate(build_encoder(size), {"x": x})
    np.testing.assert_allclose(found, _textbook(size, x), rtol=1e-4, atol=1e-5)


def _textbook(size: EncoderSize, x: np.ndarray) -> np.ndarray:
    from math import erf

    from semel.cli.encoder import SEED

    rng = np.random.default_rng(SEED)

    def draw(shape: tuple[int, ...], scale: float) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    def norm(v: np.ndarray) -> np.ndarray:
        scale, shift = 1 + draw((size.width,), 0.02), draw((size.width,), 0.02)
        return (v - v.mean(-1, keepdims=True)) / np.sqrt(
            v.var(-1, keepdims=True) + 1e-5
        ) * scale + shift

    def linear(v: np.ndarray, outputs: int) -> np.ndarray:
        weight = draw((v.shape[-1], outputs), v.shape[-1] ** -0.5)
        return v @ weight + draw((outputs,), 0.02)

    depth = size.width // size.heads
    normed = norm(x)
    q, k, v = (linear(normed, size.width) for _ in range(3))
    heads = []
    for h in range(size.heads):
        part = slice(h * depth, (h + 1) * depth)
        scores = np.exp(q[:, part] @ k[:, part].T / np.sqrt(depth))
        heads.append(scores / scores.sum(-1, keepdims=True) @ v[:, part])
    x = x + linear(np.concatenate(heads, -1), size.width)
    hidden = linear(norm(x), size.hidden)
    active = hidden * (1 + np.vectorize(erf)(hidden / np.sqrt(2))) / 2
    return norm(x + linear(active.astype(np.float32), size.width))
