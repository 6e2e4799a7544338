"""Forged plan files, loaded without trust and run between guard pages, in a process of its own.

    python -m tests.fuzz.forged_plans FIRST LAST    # one line per seed, before it is tried

A seed makes a plan, changes a few numbers in its kernels or its records, loads it, runs each of
its kernels on random bytes with every buffer between two pages that must not be touched, and then
runs the plan. A stray access ends the process; the last line says which seed it was.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tests.codegen.guarded import Fence
from tests.codegen.machine import Native
from tests.plan.forge import forged

import semel
from semel import Tensor, Variable
from semel.devices.cpu.toolchain import host_target
from semel.errors import InternalError, SemelError
from semel.ir.expr import evaluate
from semel.kernel.encode import decode_kernel
from semel.kernel.ir import Kernel
from semel.runtime.allocator import allocate
from semel.runtime.buffer import Buffer

MOST = 1 << 22
N = Variable("n", 1, 12)
NAMES = ("kernel", "copy", "view", "function", "loop", "branch", "rebind", "graph", "wait",
         "signal", "io", "arena", "constant", "state", "n", "core_id", "late0",
         "step0", "step1", "x", "y", "")  # fmt: skip
NUMBERS = (-1, 0, 1, 2, 3, 7, 8, 16, 64, 200, 1 << 20, 1 << 31, 1 << 40, 1 << 62, -(1 << 40))


def _elementwise(n: Any) -> Tensor:
    return Tensor.input("x", (n, 16), "float32").exp() + 1


def _product(n: Any) -> Tensor:
    x = Tensor.input("x", (n, 16), "float32")
    return (x @ Tensor(np.ones((16, 24), np.float32))).softmax(-1)


def _window(n: Any) -> Tensor:
    x = Tensor.input("x", (n, 16), "float32").reshape(n, 1, 4, 4)
    return x.conv2d(Tensor(np.ones((3, 1, 3, 3), np.float32)), padding=1)


def _gather(n: Any) -> Tensor:
    x = Tensor.input("x", (n, 16), "float32")
    return x.sort(axis=1)[:, x[0].argsort()[:5]]


def _several(n: Any) -> Tensor:
    x = Tensor.input("x", (n, 16), "float32")
    return (x @ x.T).cumsum(0) @ x.pad(((0, 0), (1, 2)))


def _biased(n: Any) -> Tensor:
    """A constant that could take the place of an input or an output."""
    return Tensor.input("x", (n, 16), "float32") * Tensor(np.ones((12, 16), np.float32))[:n]


def _late(n: Any) -> Tensor:
    """A size that a kernel writes, and that decides how much others touch."""
    x = Tensor.input("x", (n, 16), "float32")
    selected = x[x > 0]
    return (selected * 2).reshape(-1, 1) @ x[:1].unique().reshape(1, -1)


def _nested(n: Any) -> Tensor:
    """A loop in a loop, whose counters select rows."""
    x = Tensor.input("x", (n, 16), "float32")

    def row(i: Tensor, h: Any) -> Any:
        (inner,), _ = Tensor.loop(4, [h[0]], lambda j, g: ([g[0] + x[i, j]], []))
        return [inner], [inner * 2]

    (total,), (steps,) = Tensor.loop(n, [x[0, 0]], row)
    return steps + total


def _until(n: Any) -> Tensor:
    x = Tensor.input("x", (n, 16), "float32")
    return semel.while_loop(lambda h: (h < 9).all(), lambda h: h * 2, x, max_trips=6).sum(1)


def _chosen(n: Any) -> Tensor:
    x = Tensor.input("x", (n, 16), "float32")
    return semel.cond(x[0, 0] > 0.3, lambda: x.exp() @ x.T, lambda: x @ x.T)


MODELS = (
    _elementwise,
    _product,
    _window,
    _gather,
    _several,
    _biased,
    _nested,
    _until,
    _chosen,
    _late,
)


def prepared(rng: Random) -> tuple[semel.ExecutionPlan, Any]:
    """A plan with the input x: compiled, or its rows on buffers of our own; and its rows."""
    model, n = rng.choice(MODELS), rng.choice((5, N))
    plan = semel.prepare({"y": model(n)}, threads=1)
    return (by_hand(plan) if rng.random() < 0.3 else plan), n


def by_hand(plan: semel.ExecutionPlan) -> semel.ExecutionPlan:
    """The program of a compiled plan, built by hand."""
    program, builder = plan.program, semel.ExecutionPlanBuilder()
    for node, value in enumerate(program.values):
        most = value.type.max_bytes or 0
        buffer = Buffer.window(allocate(most), 0, most, value.type)
        if value.weight is not None:
            array = value.weight.array
            buffer.array(array.shape)[...] = array
        builder.add_buffer(node, buffer)
    for row in program.rows:
        builder.add_op(row)
    for expr, message in program.guards:
        builder.add_guard(expr, message)
    for io in program.inputs:
        builder.declare_input(io.name, io.index, io.type)
    for io in program.outputs:
        builder.declare_output(io.name, io.index, io.type)
    return builder.build(threads=1)


def mutate(node: Any, rng: Random) -> None:
    """Change a number or a name, exchange two entries, or put one in the place of another."""
    while True:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        if not keys:
            return
        key = rng.choice(list(keys))
        inner = node[key]
        if isinstance(inner, (list, dict)) and inner and rng.random() < 0.9:
            node = inner
            continue
        if type(inner) is int:
            node[key] = rng.choice((inner + 1, inner - 1, 2 * inner, rng.choice(NUMBERS)))
        elif isinstance(inner, str):
            node[key] = rng.choice(NAMES)
        elif isinstance(node, dict):
            del node[key]
        elif len(node) > 1:
            other, how = rng.randrange(len(node)), rng.random()
            if how < 0.4:
                node[key], node[other] = node[other], node[key]
            elif how < 0.8:
                node[key] = deepcopy(node[other])
            else:
                node.insert(key, deepcopy(node[other]))
        return


def wrap(rows: list[Any], whole: list[Any], rng: Random) -> None:
    """Put one of the `whole` rows into a loop or a branch or into a body of another; or unpack."""
    row, bodies = rng.choice(whole), ("test", "body", "then", "orelse")
    at = rows.index(row)
    insides = [row[name] for name in bodies if isinstance(row.get(name), list)]
    if insides and rng.random() < 0.5:
        rows[at : at + 1] = rng.choice(insides)
    elif insides and rng.random() < 0.5:
        rng.choice(insides).append(rows.pop(rng.randrange(len(rows))))
    elif rng.random() < 0.2:
        kind, value = rng.choice(("wait", "signal")), rng.choice((*NUMBERS, [0], [1]))
        rows.insert(at, {"kind": kind, "id": 1, "signal": ["s", 0], "value": value})
    elif rng.random() < 0.5:
        counter, trip = rng.choice(NAMES), rng.choice((*NUMBERS, [0], [1], [2]))
        rows[at] = {"kind": "loop", "id": 1, "counter": counter, "trip": trip,
                    "test": [], "body": [row]}  # fmt: skip
    else:
        buffers = [rng.randrange(6) for _ in range(rng.choice((0, 1, 1, 2)))]
        rows[at] = {"kind": "branch", "id": 1, "buffers": buffers, "then": [row], "orelse": []}


def forge(data: bytes, rng: Random) -> bytes:
    """A file with one to three changes, most of them in places that matter."""
    changes = rng.choice((1, 1, 2, 3))
    in_kernel = rng.random() < 0.4

    def kernel(form: Any) -> None:
        for _ in range(changes if in_kernel else 0):
            part = rng.choice(("dims", "dims", "body", "memory", "values", "values", "locals", ""))
            mutate(form.get(part) or form, rng)

    def header(record: Any) -> None:
        program, dims = record["program"], record["dims"]
        for _ in range(0 if in_kernel else changes):
            rows = [row for row in program.get("rows", []) if isinstance(row, dict)]
            if rng.random() < 0.2 and rows:
                wrap(program["rows"], rows, rng)
            else:
                parts = [rows, rows, program.get("values"), dims, program, record["memory"]]
                mutate(rng.choice([part for part in parts if part]), rng)

    return forged(data, header, kernel)


def attempt(seed: int, folder: Path) -> str:
    """'refused' or 'ran'; anything else than an error of ours escapes."""
    rng = Random(seed)
    plan, n = prepared(rng)
    path = folder / "a.plan"
    plan.save(path)
    path.write_bytes(forge(path.read_bytes(), rng))
    try:
        plan = semel.load_plan(path, trust=False, threads=1, memory_limit=1 << 28)
        for kernel in plan.kernels:
            run_fenced(decode_kernel(kernel.encoded), rng)
        for rows in (5, 1) if n is N else (5,):
            with limited():
                plan(x=np.full((rows, 16), 0.5, np.float32))
            str(plan.explain())
            plan.release_intermediate_buffers()
            plan.clone()
    except InternalError:
        raise
    except (SemelError, LateError):
        return "refused"
    return "ran"


class LateError(Exception):
    """A run took long: a forged loop may run for ever, and must be one that can be ended."""


@contextmanager
def limited() -> Iterator[None]:
    """Ends what takes more than a second."""

    def end(*_: Any) -> None:
        raise LateError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_fenced(kernel: Kernel, rng: Random) -> None:
    """The kernel at random values of its variables, on random bytes."""
    values = {v.name: rng.randint(v.min, v.min + 20 if v.max is None else v.max)
              for v in kernel.variables}  # fmt: skip
    sizes = [evaluate(buffer.size, values) for buffer in kernel.buffers]
    scratch = [evaluate(buffer.size, values) for buffer in kernel.scratch]
    if max(*sizes, *scratch, evaluate(kernel.tiles, values), 0) > MOST or min(sizes) < 0:
        return
    at_end, random = rng.random() < 0.5, np.random.default_rng(rng.randrange(1 << 30))
    fences = []
    for buffer, size in zip(kernel.buffers, sizes, strict=True):
        data = random.integers(0, 256, size * buffer.dtype.size_bytes, np.uint8)
        fences.append(Fence(data.view(buffer.dtype.numpy), at_end=at_end))
    Native(kernel, host_target()).run([fence.array for fence in fences], values)


def main(first: int, last: int) -> None:
    with TemporaryDirectory() as folder:
        for seed in range(first, last):
            sys.stdout.write(f"seed {seed}\n")
            sys.stdout.flush()
            sys.stdout.write(f"{attempt(seed, Path(folder))}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
