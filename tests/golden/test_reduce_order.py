"""Reductions of permuted tensors: by text, by the kernels they become, and by their bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from semel import Tensor, Variable
from semel.devices.cpu.toolchain import host_target
from semel.ir.graph import Graph
from semel.ir.text import format_graph, parse_graph
from semel.kernel.text import format_kernel
from semel.lower import lower_schedule
from semel.passes import run_passes
from semel.passes.reduce_order import reduce_as_it_lies
from semel.schedule.groups import build_schedule
from semel.tensor.realize import build_graph

X = '%0 = input "x" : f32[2,3,4,5]\n'
TURNED = X + "%1 = permute %0 {axes=(0, 3, 1, 2)} : f32[2,5,3,4]\n"

# (what, before, after): the last line is the output
PASSES: list[tuple[str, str, str]] = [
    (
        "a sum over what lies outside",
        TURNED + "%2 = reduce_sum %1 {axes=(2, 3)} : f32[2,5,1,1]",
        X
        + "%1 = reduce_sum %0 {axes=(1, 2)} : f32[2,1,1,5]\n"
        + "%2 = permute %1 {axes=(0, 3, 1, 2)} : f32[2,5,1,1]",
    ),
    (
        "a maximum over the axis that lies innermost",
        TURNED + "%2 = reduce_max %1 {axes=(1,)} : f32[2,1,3,4]",
        X
        + "%1 = reduce_max %0 {axes=(3,)} : f32[2,3,4,1]\n"
        + "%2 = permute %1 {axes=(0, 3, 1, 2)} : f32[2,1,3,4]",
    ),
    (
        "arithmetic with a number for every channel",
        TURNED
        + '%2 = input "c" : f32[5,1,1]\n%3 = reshape %2 {shape=(1, 5, 1, 1)} : f32[1,5,1,1]\n'
        + "%4 = expand %3 {shape=(2, 5, 3, 4)} : f32[2,5,3,4]\n%5 = mul %1 %4 : f32[2,5,3,4]\n"
        + "%6 = reduce_sum %5 {axes=(2, 3)} : f32[2,5,1,1]",
        X
        + '%1 = input "c" : f32[5,1,1]\n%2 = reshape %1 {shape=(1, 5, 1, 1)} : f32[1,5,1,1]\n'
        + "%3 = permute %2 {axes=(0, 2, 3, 1)} : f32[1,1,1,5]\n"
        + "%4 = expand %3 {shape=(2, 3, 4, 5)} : f32[2,3,4,5]\n%5 = mul %0 %4 : f32[2,3,4,5]\n"
        + "%6 = reduce_sum %5 {axes=(1, 2)} : f32[2,1,1,5]\n"
        + "%7 = permute %6 {axes=(0, 3, 1, 2)} : f32[2,5,1,1]",
    ),
    (
        "rows that a reshape merges of whole axes",
        TURNED
        + "%2 = reshape %1 {shape=(2, 60)} : f32[2,60]\n"
        + "%3 = reduce_sum %2 {axes=(1,)} : f32[2,1]",
        X
        + "%1 = reduce_sum %0 {axes=(1, 2, 3)} : f32[2,1,1,1]\n"
        + "%2 = permute %1 {axes=(0, 3, 1, 2)} : f32[2,1,1,1]\n"
        + "%3 = reshape %2 {shape=(2, 1)} : f32[2,1]",
    ),
    (
        "what follows another reduction",
        TURNED
        + "%2 = reduce_max %1 {axes=(2, 3)} : f32[2,5,1,1]\n"
        + "%3 = expand %2 {shape=(2, 5, 3, 4)} : f32[2,5,3,4]\n%4 = sub %1 %3 : f32[2,5,3,4]\n"
        + "%5 = reduce_sum %4 {axes=(2, 3)} : f32[2,5,1,1]",
        X
        + "%1 = reduce_max %0 {axes=(1, 2)} : f32[2,1,1,5]\n"
        + "%2 = expand %1 {shape=(2, 3, 4, 5)} : f32[2,3,4,5]\n%3 = sub %0 %2 : f32[2,3,4,5]\n"
        + "%4 = reduce_sum %3 {axes=(1, 2)} : f32[2,1,1,5]\n"
        + "%5 = permute %4 {axes=(0, 3, 1, 2)} : f32[2,5,1,1]",
    ),
    (
        "two permutes",
        X
        + "%1 = permute %0 {axes=(0, 1, 3, 2)} : f32[2,3,5,4]\n"
        + "%2 = permute %1 {axes=(0, 2, 3, 1)} : f32[2,5,4,3]\n"
        + "%3 = reduce_sum %2 {axes=(3,)} : f32[2,5,4,1]",
        X
        + "%1 = reduce_sum %0 {axes=(1,)} : f32[2,1,4,5]\n"
        + "%2 = permute %1 {axes=(0, 1, 3, 2)} : f32[2,1,5,4]\n"
        + "%3 = permute %2 {axes=(0, 2, 3, 1)} : f32[2,5,4,1]",
    ),
]

STAYS: list[tuple[str, str]] = [
    ("a last axis that stays", X + "%1 = permute %0 {axes=(0, 2, 1, 3)} : f32[2,4,3,5]\n"
     "%2 = reduce_sum %1 {axes=(3,)} : f32[2,4,3,1]"),
    ("an operand that lies straight", TURNED + '%2 = input "y" : f32[2,5,3,4]\n'
     "%3 = mul %1 %2 : f32[2,5,3,4]\n%4 = reduce_sum %3 {axes=(2, 3)} : f32[2,5,1,1]"),
    ("another order", TURNED + '%2 = input "y" : f32[2,4,5,3]\n'
     "%3 = permute %2 {axes=(0, 2, 3, 1)} : f32[2,5,3,4]\n"
     "%4 = mul %1 %3 : f32[2,5,3,4]\n%5 = reduce_sum %4 {axes=(2, 3)} : f32[2,5,1,1]"),
    ("a matrix that is repeated in another order", TURNED + '%2 = input "y" : f32[1,5,3,1]\n'
     "%3 = expand %2 {shape=(2, 5, 3, 4)} : f32[2,5,3,4]\n"
     "%4 = mul %1 %3 : f32[2,5,3,4]\n%5 = reduce_sum %4 {axes=(2, 3)} : f32[2,5,1,1]"),
    ("windows", X + "%1 = window %0 {axes=(1,), sizes=(2,), strides=(1,), dilations=(1,)} "
     ": f32[2,2,4,5,2]\n%2 = permute %1 {axes=(0, 1, 2, 4, 3)} : f32[2,2,4,2,5]\n"
     "%3 = reduce_sum %2 {axes=(3,)} : f32[2,2,4,1,5]"),
]  # fmt: skip


def graph_of(text: str) -> Graph:
    last = text.strip().splitlines()[-1].split(" ")[0]
    return parse_graph(f"{text}\noutput {last}")


@pytest.mark.parametrize(("before", "after"), [r[1:] for r in PASSES], ids=[r[0] for r in PASSES])
def test_a_permute_passes_a_reduction(before: str, after: str) -> None:
    found = run_passes(graph_of(before), [reduce_as_it_lies], verify=True)
    assert format_graph(found) == format_graph(graph_of(after))
    assert format_graph(reduce_as_it_lies(found)) == format_graph(found)


@pytest.mark.parametrize("text", [r[1] for r in STAYS], ids=[r[0] for r in STAYS])
def test_a_permute_stays(text: str) -> None:
    found = run_passes(graph_of(text), [reduce_as_it_lies], verify=True)
    assert format_graph(found) == format_graph(graph_of(text))


# ---------------------------------------------------------------- kernels, and numbers


def first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def group_norm(x: Tensor, groups: int) -> Tensor:
    """Rows of a reshape, as exporters write it, and a number for each channel."""
    y = first(x)
    rows = y.reshape(y.shape[0], groups, -1)
    centred = rows - rows.mean(-1, keepdims=True)
    scale = ((centred * centred).mean(-1, keepdims=True) + 1e-5).rsqrt()
    numbers = Tensor(np.linspace(1, 2, 40, dtype=np.float32)).reshape(40, 1, 1)
    return (centred * scale).reshape(y.shape) * numbers + numbers


def instance_norm(x: Tensor) -> Tensor:
    y = first(x)
    variance = y.var((2, 3), keepdims=True)
    return (y - y.mean((2, 3), keepdims=True)) * (variance + 1e-5).rsqrt()


@pytest.mark.parametrize("build", [lambda x: first(x).mean((2, 3)), lambda x: x.T.sum(),
                                   lambda x: first(x).softmax(1), instance_norm])  # fmt: skip
def test_kernels_of_reductions_do_not_store_with_a_stride(build: object) -> None:
    """Rows are vectors of what lies side by side, in the kernel that reduces and in the others."""
    x = Tensor.input("x", (2, 6, 10, 40))
    assert callable(build)
    for group in build_schedule(run_passes(build_graph(build(x)))).groups:
        if group.reduces and group.outer is not None:
            loops = [i for i in group.loops if i != 0]
            inner = [i for i in loops if i not in group.outer]
            assert not inner or inner[-1] == loops[-1]


def test_a_group_norm_reads_its_image_straight() -> None:
    """No element of it is found by a division; numbers of groups, which are few, may be."""
    for groups in (1, 2, 8, 20):
        graph = build_graph(group_norm(Tensor.input("x", (2, 6, 10, 40)), groups))
        for lowered in lower_schedule(build_schedule(run_passes(graph)), host_target()):
            lines = format_kernel(lowered.kernel).splitlines()
            images = [line.split(":")[0] for line in lines if ": f32[4800] r" in line]
            loads = [line for line in lines for b in images if f" = load {b}[" in line]
            assert bool(loads) == bool(images)
            assert not any("//" in line for line in loads)


def test_numbers_and_bits() -> None:
    rng = np.random.default_rng(4)
    data = rng.standard_normal((2, 6, 10, 40), dtype=np.float32)
    turned = data.transpose(0, 3, 1, 2)
    n = Variable("n", 1, 8)
    plans = [
        {what: f(Tensor.input("x", (size, 6, 10, 40))) for what, f in WHOLE.items()}
        for size in (2, n)
    ]
    for fixed, symbolic in zip(*(p.items() for p in plans), strict=True):
        what = fixed[0]
        found = fixed[1].prepare()(x=data)
        np.testing.assert_allclose(found, EXPECTED[what](turned), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(symbolic[1].prepare()(x=data), found)
        known = WHOLE[what](Tensor(data)).prepare()
        param = WHOLE[what](Tensor.param("w", data)).prepare()
        for plan in (known, param):
            plan.execute()
            np.testing.assert_array_equal(plan.output_buffer.numpy(), found)


GROUPS = (1, 2, 8, 20, 40)
WHOLE: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: first(x).mean((2, 3)),
    "instance norm": instance_norm,
    "softmax": lambda x: first(x).softmax(1),
    "argmax": lambda x: first(x).argmax(1),
    "squares": lambda x: (first(x) * first(x)).sum((1, 3)),
    **{f"group norm {g}": partial(group_norm, groups=g) for g in GROUPS},
    "rows of channels": lambda x: first(x).reshape(x.shape[0], 10, 24, 10).max((1, 3)),
}


def _norm(y: np.ndarray) -> np.ndarray:
    centred = y - y.mean((2, 3), keepdims=True)
    return centred / np.sqrt((centred**2).mean((2, 3), keepdims=True) + 1e-5)


def _groups(y: np.ndarray, groups: int) -> np.ndarray:
    rows = y.reshape(len(y), groups, -1).astype(np.float64)
    centred = rows - rows.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    numbers = np.linspace(1, 2, 40).reshape(40, 1, 1)
    return normed.reshape(y.shape) * numbers + numbers


def _softmax(y: np.ndarray) -> np.ndarray:
    e = np.exp(y - y.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


EXPECTED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    **{f"group norm {g}": partial(_groups, groups=g) for g in GROUPS},
    "rows of channels": lambda y: y.reshape(2, 10, 24, 10).max((1, 3)),
    "mean": lambda y: y.mean((2, 3)),
    "instance norm": _norm,
    "softmax": _softmax,
    "argmax": lambda y: y.argmax(1),
    "squares": lambda y: (y * y).sum((1, 3)),
}
