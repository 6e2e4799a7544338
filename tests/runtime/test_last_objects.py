"""What is still held when the interpreter ends, and goes after the modules, goes in silence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: A function in another module keeps the globals of the program, and all that they hold.
_HEAD = """
import os, sys
import numpy as np
import semel
from semel import Buffer, Tensor
np.keep = lambda: 0
os.keep = lambda: 0
x = Tensor.input("x", (4,), "float32")
"""

HELD = {
    "plans": """
plan = (x * 2 + 1).prepare()
plan(x=np.ones(4, np.float32))
clone, view = plan.clone(), plan.output_buffer.borrow()
""",
    "large values": "y = Tensor(np.ones(1 << 20, np.float32)) + 1; y.numpy()",
    "forks": """
g = semel.Graph("g")
g.output("y", g.state("rows", (4096, 64)).append(g.input("q", ("t", 64))).sum())
step = semel.Session("cpu").compile(g, dims={"t": (1, 8)})
step.run({"q": np.ones((5, 64), np.float32)})
fork = step.fork()
fork.run({"q": np.ones((5, 64), np.float32)})
""",
    "params": """
w = Tensor.param("w", np.ones((256, 256), np.float32))
plan = (Tensor.input("x", (4, 256)) @ w).prepare()
for k in range(3):
    plan.set_param("w", np.full((256, 256), k, np.float32))
    plan(x=np.ones((4, 256), np.float32))
""",
    "files": """
held = Buffer.empty((64,), "float32", "disk:" + sys.argv[1])
held.copyin(np.ones(64, np.float32))
""",
    "lanes": """
executor = semel.UnifiedExecutor()
executor.add_device("cpu:0")
plan = (x + 1).prepare(device="cpu:0")
plan.buffer(x).copyin(np.ones(4, np.float32))
executor.submit(plan).wait(100)
""",
}


@pytest.mark.parametrize("what", HELD)
def test_what_outlives_the_modules_goes_in_silence(what: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HEAD + HELD[what], str(tmp_path / "file")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
