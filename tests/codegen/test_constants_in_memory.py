"""Loops with more constants than registers: they are operands in memory, and nothing is spilled."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from tests.codegen.lowering import lower_graph

from semel import Tensor
from semel.codegen.emit import emit_kernel
from semel.devices.cpu.toolchain import assembly, host_target
from semel.ir.target import named_target

TARGET = named_target("x86-64-v3")
#: What has many constants: a number of instructions for eight floats that it may take, of the
#: longest loop.
BODIES: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "softmax": (lambda x: x.softmax(-1), 21),
    "gelu": (lambda x: x.gelu(), 22.5),
    "sigmoid": (lambda x: x.sigmoid(), 23.5),
    "tanh": (lambda x: x.tanh(), 34),
    "erf": (lambda x: x.erf(), 37),
}


def longest_loop(text: str) -> list[str]:
    """The instructions of the longest of the innermost loops."""
    lines = [line.strip() for line in text.splitlines()]
    labels = {line[:-1]: i for i, line in enumerate(lines) if re.match(r"\.LBB\w+:$", line)}
    loops = []
    for i, line in enumerate(lines):
        target = re.match(r"j\w+\s+(\.LBB\w+)$", line)
        start = labels.get(target[1], i) if target else i
        inner = [j for j in labels.values() if start < j < i]
        if start < i and not inner:
            loops.append([x for x in lines[start + 1 : i] if x and not x.startswith((".", "#"))])
    return max(loops, key=len)


@pytest.mark.parametrize("name", BODIES)
def test_constants_are_operands(name: str) -> None:
    function, most = BODIES[name]
    x = Tensor.input("x", (64, 1024), "float32")
    (lowered,) = lower_graph([function(x)], TARGET)[1]
    loop = longest_loop(assembly(emit_kernel(lowered.kernel, TARGET, "f"), TARGET))
    vectors = [line for line in loop if "%ymm" in line]
    assert not [line for line in vectors if "(%rsp)" in line or "(%rip)" in line]
    steps = [int(m[1]) for line in loop if (m := re.match(r"addq\s+\$(\d+),", line))]
    assert len(vectors) / (steps[-1] / 8) <= most, f"{len(vectors)} for {steps[-1]} elements"


@pytest.mark.skipif(
    not set(TARGET.features) <= set(host_target().features), reason="needs x86-64-v3"
)
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("columns", [1, 7, 8, 17, 64, 100, 1000])
def test_no_bit_depends_on_where_they_are(name: str, columns: int) -> None:
    x = np.random.default_rng(columns).standard_normal((5, columns), np.float32) * 4
    y = BODIES[name][0](Tensor.input("x", x.shape, "float32"))
    first, second = (
        np.asarray(y.prepare(target=target)(x=x)) for target in ("x86-64-v3", "x86-64-v2")
    )
    assert first.tobytes() == second.tobytes()
