"""Loops over bytes fill registers with bytes, and ask nothing that their ends decide."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph

import semel
from semel import Tensor, Variable
from semel.codegen.emit import emit_kernel
from semel.ir.expr import Dim
from semel.ir.target import named_target
from semel.kernel.ir import Kernel, Loop, walk_statements

Net = Callable[[Tensor], Tensor]


def around(x: Tensor) -> Tensor:
    """The sum of what lies around each element of a torus."""
    turns = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]
    first, *others = [x.roll(turn, (0, 1)) for turn in turns]
    for other in others:
        first = first + other
    return first


NETS: dict[str, Net] = {
    "sum": lambda x: x + x.roll(1, 0),
    "both rolls": lambda x: x.roll(1, 0) + x.roll(1, 1),
    "around": around,
    "compared": lambda x: (x + 1).eq(3) | x.eq(7),
    "shifted": lambda x: x[:, 1:] + x[:, :-1],
    "in float": lambda x: (x.cast("float32") * 0.5).cast("uint8"),
}


def kernel_of(name: str, target: str) -> Kernel:
    _, lowered = lower_graph(
        [NETS[name](Tensor.input("x", (64, 300), "uint8"))], named_target(target)
    )
    return lowered[-1].kernel


def longest_lanes(kernel: Kernel) -> int:
    loops = [s for s in walk_statements(kernel.body) if isinstance(s, Loop) and s.lanes > 1]
    return max(loop.lanes for loop in loops)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", ["sum", "around", "compared", "shifted"])
def test_a_register_is_full_of_bytes(name: str, target: str) -> None:
    register = named_target(target).vector_bits // 8
    assert longest_lanes(kernel_of(name, target)) >= register


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_what_is_wider_in_between_counts(target: str) -> None:
    assert (
        longest_lanes(kernel_of("in float", target)) <= 4 * named_target(target).vector_bits // 32
    )


@pytest.mark.parametrize("length", [100, 200, 255, 256, 300])
def test_a_line_of_bytes_has_a_whole_vector(length: int) -> None:
    """Lanes that are more than a line has places would all be masked."""
    x = Tensor.input("x", (64, length), "uint8")
    target = named_target("x86-64-v4")
    _, (lowered,) = lower_graph([x.roll(1, 0) + x.roll(1, 1)], target)
    loops = [it for it in walk_statements(lowered.kernel.body) if isinstance(it, Loop)]
    sizes = [(it.stop - it.start, it.lanes) for it in loops if it.lanes > 1]
    assert any(n == length - 1 for n, _ in sizes)
    assert all(lanes <= max(64, n) for n, lanes in sizes if isinstance(n, int))


def test_a_mask_from_outside_of_the_loop_is_one_bit() -> None:
    text = emit_kernel(kernel_of("around", "x86-64-v3"), named_target("x86-64-v3"), "k")
    assert "select i1 " in text
    assert "shufflevector <64 x i1>" not in text and "shufflevector <32 x i1>" not in text


#: What has a meaning for bools, too: a sum of two is "or".
OF_BOOLS = ("sum", "both rolls", "shifted")
CASES = [(name, dtype) for name in NETS for dtype in ("uint8", "int16")]
CASES += [(name, "bool") for name in OF_BOOLS]


@pytest.mark.parametrize(("name", "dtype"), CASES)
@pytest.mark.parametrize("shape", [(1, 2), (3, 7), (5, 31), (4, 64), (3, 255), (2, 600)])
def test_any_length_has_the_numbers_of_numpy(name: str, dtype: str, shape: tuple[int, int]) -> None:
    data = np.random.default_rng(sum(shape)).integers(0, 9, shape).astype(dtype)
    want = NETS[name](Tensor(data).cast("int32")).numpy()
    want = want.astype(bool) if dtype == "bool" or want.dtype == bool else want
    sizes: tuple[Dim, ...] = (Variable("h", 1, 9), Variable("w", 2, 700))
    for target in ("native", "x86-64-v3"):
        with semel.config.override(target=target):
            for size in (shape, sizes):
                got = NETS[name](Tensor.input("x", size, dtype)).prepare(threads=2)(x=data)
                np.testing.assert_array_equal(got, want)
