"""Elements a few apart, or repeated a few times: whole vectors are loaded, and lanes picked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph, run_by_interpreter, run_by_machine, run_kernels
from tests.codegen.machine import every_target

from semel import Tensor, Variable
from semel.codegen.emit import emit_kernel
from semel.ir.target import named_target
from semel.ir.types import as_dtype

TARGETS = every_target()


def upsampled(x: Tensor, factor: int) -> Tensor:
    n, m = x.shape
    return x.reshape(n, 1, m, 1).expand(n, factor, m, factor).reshape(n * factor, m * factor)


def repeated(x: np.ndarray, factor: int) -> np.ndarray:
    return x.repeat(factor, 0).repeat(factor, 1)


CASES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "every second": (lambda x: x[:, ::2], lambda x: x[:, ::2]),
    "every third": (lambda x: x[:, 1:194:3], lambda x: x[:, 1:194:3]),
    "every fourth": (lambda x: x[1:, 3:196:4], lambda x: x[1:, 3:196:4]),
    "the last of two": (lambda x: x[:, 1::2], lambda x: x[:, 1::2]),
    "twice": (lambda x: upsampled(x, 2), lambda x: repeated(x, 2)),
    "four times": (lambda x: upsampled(x[:, :17], 4), lambda x: repeated(x[:, :17], 4)),
    "eight times": (lambda x: upsampled(x[:, :16], 8), lambda x: repeated(x[:, :16], 8)),
    "from the second one on": (
        lambda x: upsampled(x, 2)[:, 1:], lambda x: repeated(x, 2)[:, 1:]
    ),
    "from the fourth one on": (
        lambda x: upsampled(x[:, :33], 4)[:, 3:], lambda x: repeated(x[:, :33], 4)[:, 3:]
    ),
    "padded": (lambda x: upsampled(x, 2).pad(1), lambda x: np.pad(repeated(x, 2), 1)),
    "padded, every second": (lambda x: x.pad(1)[:, ::2], lambda x: np.pad(x, 1)[:, ::2]),
}  # fmt: skip


def data(dtype: str) -> np.ndarray:
    return (np.arange(3 * 200) % 251).reshape(3, 200).astype(as_dtype(dtype).numpy)


@pytest.mark.parametrize("executor", ["interpreter", *TARGETS])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_lanes_are_right_on_every_vector_width(dtype: str, executor: str) -> None:
    x = data(dtype)
    t = Tensor.input("x", x.shape, dtype)
    target = TARGETS.get(executor)
    graph, kernels = lower_graph([build(t) + 1 for build, _ in CASES.values()], target)
    run = run_by_machine(target) if target else run_by_interpreter
    found = run_kernels(graph, kernels, {"x": x}, {}, run)
    for name, got in zip(CASES, found, strict=True):
        np.testing.assert_array_equal(got, CASES[name][1](x) + 1, err_msg=name)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int16", "bool"])
def test_any_dtype_and_size(dtype: str) -> None:
    x = data(dtype)
    t = Tensor.input("x", (3, Variable("m", 1, 300)), dtype)
    plan = (t[:, ::2].prepare(), upsampled(t, 2).prepare())
    for width in (1, 2, 31, 32, 33, 200):
        part = np.ascontiguousarray(x[:, :width])
        np.testing.assert_array_equal(plan[0](x=part), part[:, ::2])
        np.testing.assert_array_equal(plan[1](x=part), repeated(part, 2))


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("build", [
    lambda x: x[:, ::2], lambda x: x[:, ::4], lambda x: upsampled(x, 2),
    lambda x: upsampled(x, 2)[:, 1:129], lambda x: upsampled(x, 8),
])  # fmt: skip
def test_nothing_is_gathered(level: str, build: Callable[[Tensor], Tensor]) -> None:
    target = named_target(level)
    _, kernels = lower_graph([build(Tensor.input("x", (3, 256)))], target)
    code = "".join(emit_kernel(lowered.kernel, target, "k") for lowered in kernels)
    assert "shufflevector" in code and "gather" not in code
