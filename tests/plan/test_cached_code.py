"""Plans whose kernels come from the cache on disk: what lies there is right, or goes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semel import Tensor, config
from semel.cache.kernels import KernelCache, default_cache, load_cached
from semel.compiler import artefacts
from semel.compiler.artefacts import LoadedKernels
from semel.compiler.pipeline import compile_graph
from semel.devices.cpu.compiler import CpuCompiler
from semel.devices.cpu.toolchain import compile_ir, host_target
from semel.errors import CompileError
from semel.ir.target import target_for
from semel.plan.instantiate import instantiate
from semel.tensor.realize import build_graph

OTHER = "define i64 @other() nounwind {\n  ret i64 1\n}"


def _start_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is loaded, as in a process that finds its kernels on disk."""
    monkeypatch.setattr(artefacts, "loaded_kernels", LoadedKernels())


def _run() -> Any:
    """Compile and run; `prepare` would not compile the same graph again."""
    graph = build_graph(Tensor.input("x", (6,)) * 1.5 + 2)
    plan = instantiate(compile_graph(graph, host_target()), threads=1)
    return plan(x=np.arange(6, dtype=np.float32))


def _other_machine() -> bytes:
    other = "aarch64" if host_target().arch == "x86_64" else "x86_64"
    return compile_ir(OTHER, target_for(other, ()))


FORGED = {
    "text": lambda code: b"no object code at all",
    "nothing": lambda code: b"",
    "cut": lambda code: code[: len(code) // 2],
    "other": lambda code: compile_ir(OTHER, host_target()),
    "machine": lambda code: _other_machine(),
}


@pytest.mark.parametrize("kind", FORGED)
def test_an_entry_that_does_not_load_is_compiled_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []

    find_key = CpuCompiler.key

    def seen_key(compiler: CpuCompiler, text: str) -> str:
        keys.append(find_key(compiler, text))
        return keys[-1]

    monkeypatch.setattr(CpuCompiler, "key", seen_key)
    _start_anew(monkeypatch)
    with config.override(cache_dir=tmp_path / "first"):
        want = _run()
    code = KernelCache(tmp_path / "first").get(keys[0])
    assert code is not None
    with config.override(cache_dir=tmp_path / "second"):
        default_cache().put(keys[0], FORGED[kind](code))
        _start_anew(monkeypatch)
        np.testing.assert_array_equal(_run(), want)
        assert default_cache().status.reason == ""  # the entry is a good one now
    assert KernelCache(tmp_path / "second").get(keys[0]) == code
    np.testing.assert_array_equal(want, np.arange(6, dtype=np.float32) * 1.5 + 2)


def test_code_that_does_not_load_when_new_is_not_kept(tmp_path: Path) -> None:
    def load(code: bytes) -> None:
        raise CompileError("elf", "it does not load.")

    with config.override(cache_dir=tmp_path):
        with pytest.raises(CompileError, match="it does not load"):
            load_cached("k", lambda: b"code", load)
        assert default_cache().get("k") is None


RUNNER = """
import sys
from pathlib import Path
import numpy as np
import semel
from semel import Tensor, config
from semel.cache.kernels import default_cache
from semel.codegen.runner_key import RUNNER_KEYS
from semel.devices.cpu.toolchain import compile_ir, host_target
from semel.devices.cpu.compiler import CpuCompiler
target = host_target()
key = CpuCompiler(target).key(RUNNER_KEYS[target.arch])
code = compile_ir("define i64 @other() nounwind {\\n  ret i64 1\\n}", target)
with config.override(cache_dir=Path(sys.argv[1])):
    default_cache().put(key, code)
    print(semel.prepare(Tensor.input("x", (2,)) + 1)(x=np.float32([1, 2])).tolist())
    assert default_cache().get(key) != code and default_cache().status.reason == ""
"""


def test_a_runner_that_is_none_is_compiled_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[2.0, 3.0]\n", "")
