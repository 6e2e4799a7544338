"""Kernels touch no byte outside the arrays that are bound or used in place as constants."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each array ends, or starts, exactly at a page that nobody may touch: a stray read is a crash.
_CODE = """
import ctypes, mmap, sys
import numpy as np
import semel
from semel import Tensor

libc = ctypes.CDLL(None, use_errno=True)
keep = []

def fenced(array, at_end):
    size = array.nbytes
    room = -(-max(size, 1) // 4096) * 4096
    area = mmap.mmap(-1, room + 2 * 4096)
    keep.append(area)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for page in (base, base + 4096 + room):
        assert libc.mprotect(ctypes.c_void_p(page), 4096, 0) == 0
    offset = 4096 + (room - size if at_end else 0)
    made = np.frombuffer(area, array.dtype, array.size, offset).reshape(array.shape)
    made[...] = array
    return made

rng = np.random.default_rng(0)
GRAPHS = {
    "elementwise": lambda x, y, w: (x * y + w.sum()).gelu(),
    "softmax": lambda x, y, w: x.softmax(-1) + y.softmax(0),
    "reduce": lambda x, y, w: x.sum(-1) + y.sum(-1),
    "columns": lambda x, y, w: x.mean(0) * y.max(0),
    "norm": lambda x, y, w: x.layer_norm(-1) * y,
    "matmul": lambda x, y, w: x @ w,
    "gram": lambda x, y, w: x @ y.T,
    "transposed": lambda x, y, w: x.T @ y,
    "flip": lambda x, y, w: x.flip(1) + y.flip(0),
    "attention": lambda x, y, w: semel.scaled_dot_product_attention(
        x.reshape(1, 1, *x.shape), y.reshape(1, 1, *y.shape), y.reshape(1, 1, *y.shape)
    ),
    "gather": lambda x, y, w: x.take(Tensor(np.array([0, -1])), 0) + y.argmax(0).cast("float32"),
    "conv": lambda x, y, w: x.reshape(1, 1, *x.shape).conv2d(y.reshape(1, 1, *y.shape)),
    "cumsum": lambda x, y, w: x.cumsum(1),
    "concat": lambda x, y, w: semel.concat([x, y], 1),
    "padded": lambda x, y, w: x[:, :1].pad(((40, 40), (0, 0))) + w.sum(0),
    "rolled": lambda x, y, w: x[:, :1].roll(2, 0) + w.sum(0),
    "edge": lambda x, y, w: x[:, 0].pad(((9, 9),)).reshape(-1, 1) * w[:1, :],
    "scalars": lambda x, y, w: x[:, 0].pad(((9, 9),)).cumsum(0),
    "halves": lambda x, y, w: x.cast("float16").cast("float32") + y.cast("bfloat16"),
}
for rows, cols in {shapes}:
    x, y = (rng.standard_normal((rows, cols)).astype(np.float32) for _ in range(2))
    w = rng.standard_normal((cols, 5)).astype(np.float32)
    for name, make in GRAPHS.items():
        a, b = Tensor.input("x", x.shape, "float32"), Tensor.input("y", y.shape, "float32")
        # An input that is bound stands for a constant too: both are used where they lie.
        c = Tensor.input("w", w.shape, "float32")
        plan = semel.prepare([make(a, b, c)], threads=1)
        plain = {n: v for n, v in (("x", x), ("y", y), ("w", w)) if n in plan.inputs}
        expected = plan(**plain)
        for at_end in (False, True):
            for n, v in plain.items():
                plan.bind_input(n, fenced(v, at_end))
            out = fenced(np.zeros_like(expected), at_end)
            plan.bind_output(plan.engine.parts.output_io[0].name, out)
            assert plan.engine.bindings.staged() == []
            print(name, rows, cols, at_end, file=sys.stderr, flush=True)
            plan.execute()
            np.testing.assert_array_equal(out, expected)
            plan.unbind()
"""


@pytest.mark.parametrize("shapes", ["[(1, 1), (3, 7)]", "[(16, 33)]", "[(5, 100)]", "[(67, 64)]"])
def test_kernels_stay_inside_their_arrays(shapes: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CODE.replace("{shapes}", shapes)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-1500:]}"
