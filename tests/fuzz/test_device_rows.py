"""Random rows over two and three devices, built by hand: what they leave is what NumPy says.

A plan of some rows whose kernels are known takes a few milliseconds to build and to run, so that
the long mode sees a hundred thousand in half an hour; `test_spread` has graphs that are compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.fuzz.long import long, search
from tests.plan.kernels import kernel

from semel import Buffer, ExecutionPlan, ExecutionPlanBuilder, Variable, config
from semel.plan.rows import PreparedCopy, PreparedKernel, PreparedOp

pytestmark = pytest.mark.timeout(300)

DEVICES = ("cpu:0", "cpu:1", "cpu")
WINDOW = 8  # elements; some overlap
PLACES = (0, 4, 8, 16)
KERNELS = {"increment": 1, "double": 1, "add": 2}
N = Variable("n", 0, WINDOW)
BATCH = 150


class Drawn(NamedTuple):
    """A row before it is one: windows by device and first element, the last one is written."""

    what: str
    windows: tuple[tuple[int, int], ...]


def draw(seed: int) -> tuple[list[str], list[Drawn]]:
    """The devices and the rows of a seed."""
    rng = Random(seed)
    devices = rng.sample(DEVICES, rng.choice((2, 2, 3)))
    rows = []
    for _ in range(rng.randint(2, 10)):
        what = rng.choice([*KERNELS, "copy", "copy"])
        out = rng.randrange(len(devices)), rng.choice(PLACES)
        ins = []
        for _ in range(KERNELS.get(what, 1)):
            where = out[0] if what in KERNELS else rng.randrange(len(devices))
            apart = [at for at in PLACES if where != out[0] or abs(at - out[1]) >= WINDOW]
            ins.append((where, rng.choice(apart)))
        rows.append(Drawn(what, (*ins, out)))
    return devices, rows


def build(devices: Sequence[str], drawn: Sequence[Drawn]) -> tuple[ExecutionPlan, list[Buffer]]:
    """The plan of these rows, and the memory that it works on."""
    builder = ExecutionPlanBuilder(devices[0])
    wholes = [Buffer.empty((PLACES[-1] + WINDOW,), "float32", device) for device in devices]
    index = {
        (k, at): builder.add_buffer(None, whole.view(4 * at, 4 * WINDOW))
        for k, whole in enumerate(wholes)
        for at in PLACES
    }
    for i, row in enumerate(drawn):
        builder.add_op(_row(i, row, [index[window] for window in row.windows], devices))
    builder.set_output_buffers(list(index.values()))
    return builder.build(threads=1), wholes


def _row(i: int, row: Drawn, buffers: Sequence[int], devices: Sequence[str]) -> PreparedOp:
    *ins, out = buffers
    device = devices[row.windows[-1][0]]
    if row.what == "copy":
        return PreparedCopy(i, (out, *ins), device=device)
    size = {"n": WINDOW}
    code = kernel(row.what, N)
    return PreparedKernel(i, None, code, device, (*ins, out), (len(ins),), fixedvars=size)


def expected(drawn: Sequence[Drawn], start: Sequence[Any]) -> list[Any]:
    """What the rows leave behind, one after the other."""
    arrays = [array.copy() for array in start]
    for row in drawn:
        *ins, out = (arrays[k][at : at + WINDOW] for k, at in row.windows)
        match row.what:
            case "copy":
                out[:] = ins[0].copy()
            case "increment":
                out[:] = ins[0] + 1
            case "double":
                out[:] = ins[0] * 2
            case _:
                out[:] = ins[0] + ins[1]
    return arrays


def check(seed: int) -> None:
    """Build the plan of a seed, and run it twice while its lanes dawdle."""
    devices, drawn = draw(seed)
    with config.override(debug=frozenset({"jitter"})):
        plan, wholes = build(devices, drawn)
        arrays = [np.arange(24, dtype=np.float32) + 100 * k for k in range(len(devices))]
        for whole, array in zip(wholes, arrays, strict=True):
            whole.copyin(array)
        for _ in range(2):
            plan.execute()
            arrays = expected(drawn, arrays)
            for whole, array in zip(wholes, arrays, strict=True):
                np.testing.assert_array_equal(whole.numpy(), array, err_msg=f"seed {seed}")
        plan.release_all_buffers()


@pytest.mark.parametrize("batch", range(2))
def test_rows_over_devices_leave_what_numpy_says(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        check(seed)


@long
def test_new_rows_over_devices_leave_what_numpy_says() -> None:
    search(check)
