"""Generated code touches its buffers and nothing else: fences around every buffer, in a process of
its own that dies if one is crossed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

# One element past the end, on purpose: shows that the fences work.
CULPRIT = """
import numpy as np
from tests.codegen.guarded import run_fenced
from tests.codegen.machine import runnable_targets
from semel.ir.expr import Index
from semel.ir.types import FLOAT32
from semel.kernel.ir import Buffer, Kernel, Loop, Store, load

i = Index("i", 40)
out, x = Buffer("out", FLOAT32, 40, "w"), Buffer("x", FLOAT32, 41, "r")
loop = Loop(i, 0, 40, (Store(out, i, load(x, i + SHIFT)),), 16)
kernel = Kernel("k", (out, x), (), (), Index("tile", 1), 1, (loop,))
target = next(iter(runnable_targets().values()))
run_fenced(target, at_end=AT_END)(kernel, [np.zeros(40, np.float32), np.zeros(40, np.float32)], {})
"""

# A masked load must stay masked: LLVM has been seen to undo it next to a masked use.
TAILS = """
import numpy as np
from tests.codegen.guarded import run_fenced
from tests.codegen.lowering import lower_graph, run_kernels
from tests.codegen.machine import runnable_targets
from semel import Tensor

for target in runnable_targets().values():
    for rows, depth, width in ((1, 1, 33), (5, 7, 24), (13, 1, 47), (1, 9, 1), (4, 33, 5)):
        x, w = Tensor.input("x", (rows, depth)), Tensor.input("w", (depth, width))
        product = x.clip(-3, 3) @ w
        outputs = [product, product.softmax(-1), product.sum(1), product.max(0), (x * x).sum(1)]
        graph, kernels = lower_graph(outputs, target)
        data = {"x": np.ones((rows, depth), np.float32), "w": np.ones((depth, width), np.float32)}
        for at_end in (True, False):
            run_kernels(graph, kernels, data, {}, run_fenced(target, at_end=at_end))
"""


# Columns beside whole vectors: a lane that has none may be in front of the matrix, or behind it.
ORDERS = """
import numpy as np
from tests.codegen.guarded import run_fenced
from tests.codegen.lowering import lower_graph, run_kernels
from tests.codegen.machine import runnable_targets
from semel import Tensor

rng = np.random.default_rng(0)
for target in runnable_targets().values():
    for rows, depth, width in ((1, 1, 19), (5, 7, 24), (19, 19, 19), (2, 3, 41)):
        x, w = Tensor.input("x", (rows, depth)), Tensor.input("w", (depth, width))
        row, column = Tensor.input("row", (width,)), Tensor.input("column", (rows, 1))
        outputs = [
            x @ w.flip(-1), x @ w.flip(0), x @ w.flip((0, 1)), x @ w + row.flip(0),
            (x @ w).flip(-1) + row, x.flip(-1) @ w * column, x @ w[:, 1:] + row[:-1].flip(0),
        ]
        graph, kernels = lower_graph(outputs, target)
        shapes = {"x": (rows, depth), "w": (depth, width), "row": (width,), "column": (rows, 1)}
        data = {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
        for at_end in (True, False):
            run_kernels(graph, kernels, data, {}, run_fenced(target, at_end=at_end))
"""


EXPERTS = """
import numpy as np
from tests.codegen.guarded import run_fenced
from tests.codegen.lowering import lower_graph, run_kernels
from tests.codegen.machine import runnable_targets
from semel import Tensor

for target in runnable_targets().values():
    for rows, experts, depth, width in ((1, 1, 1, 33), (5, 3, 7, 17), (50, 2, 3, 1), (13, 9, 9, 5)):
        x, w = Tensor.input("x", (rows, depth)), Tensor.input("w", (experts, depth, width))
        y = x.grouped_matmul(w, Tensor.input("ids", (rows,), "int64"))
        graph, kernels = lower_graph([y * 2], target)
        data = {"x": np.ones((rows, depth), np.float32), "ids": np.arange(rows) ** 2 % experts,
                "w": np.ones((experts, depth, width), np.float32)}
        for at_end in (True, False):
            run_kernels(graph, kernels, data, {}, run_fenced(target, at_end=at_end))
"""

# Rows whose blocks overlap, stripes whose last vector ends with the last channel, of any size too.
WINDOWS = """
import numpy as np
from tests.codegen.guarded import run_fenced
from tests.codegen.lowering import lower_graph, run_kernels
from tests.codegen.machine import runnable_targets
from semel import Tensor, Variable

for target in runnable_targets().values():
    for h, w, c, k, stride in ((5, 4, 24, 5, 1), (9, 9, 200, 5, 1), (6, 13, 72, 3, 2)):
        for sizes in ((h, w), (Variable("h", 1, 40), Variable("w", 1, 64))):
            x, f = Tensor.input("x", (1, *sizes, c)), Tensor.input("f", (c, 1, k, k))
            y = x.permute(0, 3, 1, 2).conv2d(f, padding=k // 2, groups=c, stride=stride)
            graph, kernels = lower_graph([y.permute(0, 2, 3, 1)], target)
            data = {"x": np.ones((1, h, w, c), np.float32), "f": np.ones((c, 1, k, k), np.float32)}
            known = {} if sizes == (h, w) else {"h": h, "w": w}
            for at_end in (True, False):
                run_kernels(graph, kernels, data, known, run_fenced(target, at_end=at_end))
"""

# Blocks of rows that are turned in registers before they are stored, channels first.
ACROSS = """
import numpy as np
from tests.codegen.guarded import run_fenced
from tests.codegen.lowering import lower_graph, run_kernels
from tests.codegen.machine import runnable_targets
from semel import Tensor, Variable

for target in runnable_targets().values():
    for h, w, c, o, g in ((5, 4, 3, 24, 1), (9, 9, 8, 40, 1), (3, 7, 8, 64, 4), (7, 7, 4, 33, 1)):
        for sizes in ((h, w), (Variable("h", 1, 40), Variable("w", 1, 64))):
            x, f = Tensor.input("x", (2, c, *sizes)), Tensor.input("f", (o, c // g, 3, 3))
            graph, kernels = lower_graph([x.conv2d(f, padding=1, groups=g)], target)
            data = {"x": np.ones((2, c, h, w), np.float32),
                    "f": np.ones((o, c // g, 3, 3), np.float32)}
            known = {} if sizes == (h, w) else {"h": h, "w": w}
            for at_end in (True, False):
                run_kernels(graph, kernels, data, known, run_fenced(target, at_end=at_end))
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(["", *(p for p in sys.path if p)])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize(("shift", "at_end"), [(1, True), (-1, False)])
def test_the_fences_notice_one_element(shift: int, at_end: bool) -> None:
    program = CULPRIT.replace("SHIFT", str(shift)).replace("AT_END", str(at_end))
    assert run("-c", program).returncode == -signal.SIGSEGV
    inside = CULPRIT.replace("SHIFT", "0").replace("AT_END", str(at_end))
    assert run("-c", inside).returncode == 0


def test_random_programs_stay_inside_their_buffers() -> None:
    done = run("-m", "tests.codegen.guarded", "0", "25")
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]


def test_tails_of_contractions_and_reductions_stay_inside() -> None:
    done = run("-c", TAILS)
    assert done.returncode == 0, done.stderr[-2000:]


def test_columns_in_any_order_stay_inside() -> None:
    done = run("-c", ORDERS)
    assert done.returncode == 0, done.stderr[-2000:]


def test_grouped_rows_stay_inside() -> None:
    done = run("-c", EXPERTS)
    assert done.returncode == 0, done.stderr[-2000:]


def test_windows_stay_inside() -> None:
    done = run("-c", WINDOWS)
    assert done.returncode == 0, done.stderr[-2000:]


def test_blocks_that_are_turned_stay_inside() -> None:
    done = run("-c", ACROSS)
    assert done.returncode == 0, done.stderr[-2000:]
