"""The pages on adding things are followed to the letter: what they say is all that it takes.

Every fragment of code on them is used as it stands; what is added is gone after the test.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import numpy as np
import pytest

import semel
import semel.ops
import semel.plan
from semel import (
    Buffer,
    ExecutionPlan,
    ExecutionPlanBuilder,
    PlanError,
    PreparedCopy,
    PreparedLoop,
    Tensor,
    Variable,
)
from semel.ir.opdef import OPS, register
from semel.ir.types import UINT8, TensorType, as_dtype
from semel.ops import elementwise as ops_elementwise
from semel.ops import reduce as ops_reduce
from semel.ops.evaluate import evaluate
from semel.plan import link, rows
from semel.plan.row import Row
from semel.runtime import device as devices
from semel.tensor import reduce as tensor_reduce
from semel.tensor import unary as tensor_unary
from semel.tensor.handle import lift
from semel.tensor.realize import build_graph

DOCS = Path(__file__).parents[2] / "docs"
_FENCE = re.compile(r"^( *)```python fragment\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def fragments(page: str, heading: str = "") -> list[str]:
    """The fragments of a page, or of the part of it under a heading."""
    text = (DOCS / page).read_text()
    if heading:
        text = re.split(r"^## ", text.split(f"## {heading}\n")[1], flags=re.MULTILINE)[0]
    return [re.sub(f"^{indent}", "", body, flags=re.M) for indent, body in _FENCE.findall(text)]


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    """The table of ops as it was."""
    before = dict(OPS)
    yield
    OPS.clear()
    OPS.update(before)


def written_in(module: ModuleType, source: str) -> Any:
    """The value of an expression that stands in a module."""
    return eval(source, dict(vars(module)))


def defined_in(module: ModuleType, source: str, name: str) -> Callable[..., Tensor]:
    """The function that this source defines in a module."""
    names = {**vars(module), "lift": lift}
    exec(compile(source, str(module.__file__), "exec"), names)
    function: Callable[..., Tensor] = names[name]
    return function


@pytest.fixture
def cube(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tensor]:
    row, function = fragments("add-an-op.md", "An elementwise op")
    register(written_in(ops_elementwise, row).op)
    monkeypatch.setitem(tensor_unary.UNARY, "cube", "to be said by the page")
    return defined_in(tensor_unary, function, "cube")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8"])
def test_an_elementwise_op(cube: Callable[..., Tensor], dtype: str) -> None:
    array = (np.arange(37) % 9 * 0.75).astype(as_dtype(dtype).numpy).reshape(1, 37)
    x = Tensor.input("x", (Variable("n", 1, 8), 37), dtype)
    plan = semel.prepare([cube(x), cube(x + 1).sum()], threads=1)
    found = plan(x=array)
    wide = array.astype(as_dtype(dtype).compute.numpy)
    np.testing.assert_array_equal(found[0], (wide * wide * wide).astype(array.dtype))
    oracle = evaluate(build_graph([cube(x), cube(x + 1).sum()]), {"x": array})
    np.testing.assert_array_equal(found[0], oracle[0])
    np.testing.assert_allclose(found[1], oracle[1], rtol=1e-3)


def test_the_op_is_fused_and_named_like_any_other(cube: Callable[..., Tensor]) -> None:
    plan = semel.prepare(cube(Tensor.input("x", (4, 8))).relu(), threads=1)
    assert [op.name for op in plan.prepared_kernels] == ["cube_relu"]


@pytest.fixture
def parity(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tensor]:
    row, function = fragments("add-an-op.md", "A reduction")
    combiner = written_in(ops_reduce, row)
    monkeypatch.setitem(ops_reduce.COMBINERS, combiner.name, combiner)
    register(ops_reduce.Reduction(combiner).op)
    return defined_in(tensor_reduce, function, "parity")


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64", "bool"])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_a_reduction(parity: Callable[..., Tensor], dtype: str, axis: int | None) -> None:
    array = np.random.default_rng(1).integers(0, 200, (13, 70)).astype(as_dtype(dtype).numpy)
    x = Tensor.input("x", (Variable("n", 0, 16), 70), dtype)
    plan = semel.prepare(parity(x, axis), threads=1)
    every = (0, 1) if axis is None else axis
    for count in (13, 1, 0):
        expected = np.bitwise_xor.reduce(array[:count], axis=every)
        np.testing.assert_array_equal(plan(x=array[:count]), expected)


def test_a_long_reduction_is_one_of_parts(parity: Callable[..., Tensor]) -> None:
    array = np.random.default_rng(2).integers(-(2**60), 2**60, 100_000)
    plan = semel.prepare(parity(Tensor.input("x", array.shape, "int64")), threads=2)
    assert plan(x=array) == np.bitwise_xor.reduce(array)
    assert len(plan.prepared_kernels) == 2


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    backend, line = fragments("add-a-device.md")
    module = ModuleType("semel.devices.mirror.backend")
    exec(backend, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(devices.MODULES, "mirror", "to be said by the page")
    exec(line, dict(vars(devices)))
    yield "mirror"
    devices._open.pop("mirror", None)


def test_a_device(mirror: str, tmp_path: Path) -> None:
    x = Tensor.input("x", (Variable("n", 1, 8), 16))
    weight = np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4)
    plan = semel.prepare((x @ Tensor(weight)).relu(), device=mirror, threads=1)
    array = np.linspace(-2, 2, 48, dtype=np.float32).reshape(3, 16)
    expected = np.maximum(array @ weight, 0)
    assert plan.device == mirror
    np.testing.assert_allclose(plan(x=array), expected, rtol=1e-5, atol=1e-6)
    plan.save(tmp_path / "plan.semel")
    loaded = semel.load_plan(tmp_path / "plan.semel")
    np.testing.assert_allclose(loaded(x=array), expected, rtol=1e-5, atol=1e-6)


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Row]]:
    record, steps, name = fragments("add-a-row.md")
    before = [(module, dict(vars(module))) for module in (rows, link, semel)]
    known, listed = dict(link.STEPS), [(m, list(m.__all__)) for m in (rows, semel)]
    exec(record, vars(rows))
    vars(link)["PreparedFill"] = vars(rows)["PreparedFill"]  # the import at its top
    exec(steps, vars(link))
    exec(name, vars(semel))
    made: type[Row] = getattr(semel, "PreparedFill")  # noqa: B009  (no checker knows it)
    yield made
    for module, names in before:
        vars(module).clear()
        vars(module).update(names)
    link.STEPS.clear()
    link.STEPS.update(known)
    for module, names_of in listed:
        module.__all__[:] = names_of


def _filled(fill: Any, threads: int, times: int | None = None) -> ExecutionPlan:
    """`pattern` and a kernel's copy of `x`, one behind the other; the fill reads the latter."""
    builder = ExecutionPlanBuilder("cpu")
    given, pattern, filled = (
        builder.add_buffer(i, Buffer.empty((size,), "uint8")) for i, size in enumerate((3, 3, 12))
    )
    builder.declare_input("x", given, TensorType((3,), UINT8))
    builder.set_output_buffer(filled)
    inside = (PreparedCopy(1, (pattern, given)), fill(2, (filled, pattern)))
    for row in inside if times is None else [PreparedLoop(0, "i", times, inside)]:
        builder.add_op(row)
    return builder.build(threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("times", [None, 2])
def test_a_row(fill: Any, threads: int, times: int | None, tmp_path: Path) -> None:
    plan = _filled(fill, threads, times)
    assert [row.kind for row in plan.prepared_ops][-2:] == ["copy", "fill"]
    array = np.array([7, 0, 9], np.uint8)
    clone = plan.clone()
    plan.save(tmp_path / "plan.semel")
    for each in (plan, clone, semel.load_plan(tmp_path / "plan.semel")):
        for k in range(3):
            np.testing.assert_array_equal(each(x=array + k), np.tile(array + k, 4))
    assert "fill" in str(plan.explain()) and "fill" in str(plan.execute_profiled(limits=False))
    assert plan.op_dependencies[-1] == (len(plan.prepared_ops) - 2,)  # found from bytes


def test_a_row_says_what_it_needs(fill: Any) -> None:
    builder = ExecutionPlanBuilder("cpu")
    for i, size in enumerate((12, 5)):
        builder.add_buffer(i, Buffer.empty((size,), "uint8"))
    builder.set_output_buffer(0)
    builder.add_op(fill(7, (0, 1)))
    with pytest.raises(PlanError, match=r"\[op 7\] a fill needs .* got 12 and 5 bytes"):
        builder.build()


def test_rows_are_listed_once_for_people() -> None:
    named = {name for name in semel.__all__ if name.startswith("Prepared")}
    assert named == set(rows.__all__) - {"PreparedOp"}
    assert set(rows.__all__) <= set(semel.plan.__all__)
    assert {cls.__name__ for cls in get_args(rows.PreparedOp)} == named
    assert all(getattr(semel, name) is getattr(rows, name) for name in named)


def test_without_its_line_in_the_table_there_is_no_device() -> None:
    with pytest.raises(semel.UnsupportedError, match="mirror"):
        semel.prepare(Tensor.input("x", (2,)), device="mirror")


@pytest.mark.parametrize(
    ("page", "heading", "count"),
    [
        ("add-an-op.md", "An elementwise op", 2),
        ("add-an-op.md", "A reduction", 2),
        ("add-a-device.md", "", 2),
        ("add-a-row.md", "", 3),
    ],
)
def test_each_takes_few_files(page: str, heading: str, count: int) -> None:
    assert len(fragments(page, heading)) == count
