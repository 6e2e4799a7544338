"""Fresh processes: the same graph gives the same code, and a shared or broken cache is harmless."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import hashlib, json, os, sys
import numpy as np
import semel
from semel import Tensor, Variable

n = Variable("n", 1, 64)
x = Tensor.input("x", (n, 24))
i = Tensor.input("i", (5,), "int64")
w = Tensor(np.linspace(-1, 1, 24 * 24, dtype=np.float32).reshape(24, 24))
h = (x @ w).gelu().layer_norm() + x
outputs = [h.softmax(-1), h.sum(0), h.take(i % n, 0), h.sort(1), h.cumsum(0), h.argmax(1),
           Tensor.concat([h, x], 1).flip(0), h.var(1)]
plan = semel.prepare(outputs)
data = np.linspace(-2, 2, 7 * 24, dtype=np.float32).reshape(7, 24)
results = plan(x=data, i=np.arange(5))
print(json.dumps({
    "texts": [hashlib.sha256(k.text.encode()).hexdigest() for k in plan.kernels],
    "codes": [hashlib.sha256(k.code).hexdigest() for k in plan.kernels],
    "results": hashlib.sha256(b"".join(r.tobytes() for r in results)).hexdigest(),
    "llvm": "llvmlite" in sys.modules,
}))
"""


def start(cache: Path, **environment: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(p for p in sys.path if p)
    variables = {**os.environ, "PYTHONPATH": path, "SEMEL_CACHE_DIR": str(cache), **environment}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, object]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    found: dict[str, object] = json.loads(out)
    return found


def run(cache: Path, **environment: str) -> dict[str, object]:
    return finish(start(cache, **environment))


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """A filled cache, and what filling it gave; tests copy the directory."""
    cache = tmp_path_factory.mktemp("cold")
    return cache, run(cache, PYTHONHASHSEED="1")


Cold = tuple[Path, dict[str, object]]


@pytest.fixture
def cache(cold: Cold, tmp_path: Path) -> Path:
    copy = tmp_path / "cache"
    shutil.copytree(cold[0], copy)
    copy.chmod(0o700)
    return copy


def entries(cache: Path) -> list[Path]:
    return [p for p in cache.rglob("*") if p.is_file()]


def test_the_same_graph_gives_the_same_bytes_in_every_process(cold: Cold, tmp_path: Path) -> None:
    """Hash seeds differ, so an order taken from a set would show."""
    first, second = cold[1], run(tmp_path, PYTHONHASHSEED="77")
    assert first["llvm"] and second["llvm"], "both must have compiled"
    assert first["texts"] == second["texts"]
    assert first["codes"] == second["codes"]
    assert first["results"] == second["results"]


def test_a_warm_start_needs_no_compiler_and_gives_the_same(cold: Cold, cache: Path) -> None:
    warm = run(cache)
    assert not warm["llvm"]
    assert warm["results"] == cold[1]["results"] and warm["codes"] == cold[1]["codes"]


def test_processes_that_start_together_share_a_cache(cold: Cold, tmp_path: Path) -> None:
    results = [finish(p) for p in [start(tmp_path) for _ in range(3)]]
    assert {str(r["results"]) for r in results} == {cold[1]["results"]}
    assert not run(tmp_path)["llvm"]


def damage(path: Path, kind: int) -> None:
    """Garbage, one bit, half of it, nothing: whatever a disk may do."""
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    half = data[: len(data) // 2]
    path.write_bytes((b"\x7fELF" + os.urandom(len(data)), bytes(flipped), half, b"")[kind % 4])


def test_damaged_entries_are_compiled_again(cold: Cold, cache: Path) -> None:
    found = entries(cache)
    for number, path in enumerate(found):
        damage(path, number)
    assert len(found) >= 4
    again = run(cache)
    assert again["llvm"] and again["results"] == cold[1]["results"]
    assert not run(cache)["llvm"], "the damaged entries must have been replaced"


def test_entries_swapped_with_each_other_are_not_run(cold: Cold, cache: Path) -> None:
    found = entries(cache)
    contents = [p.read_bytes() for p in found]
    for path, content in zip(found, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
    assert run(cache)["results"] == cold[1]["results"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_harmless(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert run(tmp_path)["llvm"]
    finally:
        tmp_path.chmod(stat.S_IRWXU)


@pytest.mark.parametrize("place", ["/proc/semel", "/dev/full"])
def test_a_place_that_cannot_be_a_directory_is_harmless(cold: Cold, place: str) -> None:
    assert run(Path(place))["results"] == cold[1]["results"]


def test_a_cache_with_no_room_is_harmless(cold: Cold, tmp_path: Path) -> None:
    assert run(tmp_path, SEMEL_CACHE_BYTES="10")["results"] == cold[1]["results"]
    assert sum(p.stat().st_size for p in entries(tmp_path)) < 1000
