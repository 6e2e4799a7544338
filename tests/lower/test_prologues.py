"""What stands in front of a contraction is computed once per tile, into scratch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from semel import IndexRangeError, Tensor, Variable

RNG = np.random.default_rng(5)
TABLE = RNG.standard_normal((50, 70)).astype(np.float32)
WEIGHT = RNG.standard_normal((70, 90)).astype(np.float32)
SIZES = (1, 2, 4, 5, 12, 13, 25, 60)

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: (x + x * 0.5).relu() @ Tensor(WEIGHT),
    "scale": lambda x: (x * Tensor(WEIGHT[:, 0])) @ Tensor(WEIGHT),
    "cast": lambda x: x.cast("float16").cast("float32") @ Tensor(WEIGHT),
    "halves": lambda x: (x.cast("float16") * 0.5) @ Tensor(WEIGHT.astype(np.float16)),
    "one column": lambda x: (x * 0.3) @ Tensor(WEIGHT[:, :1]),
    "one k": lambda x: (x[:, :1] * 0.3) @ Tensor(WEIGHT[:1]),
    "no k": lambda x: (x[:, :0] * 0.3) @ Tensor(WEIGHT[:0]),
    "batch": lambda x: (
        (x.reshape(x.shape[0], 7, 10) * 2) @ Tensor(WEIGHT[:40].reshape(1, 10, 360))[..., :90]
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_computed_left_operand_gives_the_bits_of_a_stored_one(name: str) -> None:
    function = FUNCTIONS[name]
    n = Variable("n", 1, 64)
    plans = [function(Tensor.input("x", (n, 70))).prepare(threads=t) for t in (1, 2)]
    apart = function(Tensor.input("x", (n, 70))).prepare(fusion=False)
    for rows in SIZES:
        x = RNG.standard_normal((rows, 70)).astype(np.float32)
        expected = apart(x=x).tobytes()
        assert [plan(x=x).tobytes() for plan in plans] == [expected, expected], rows


def test_elementwise_work_in_front_of_a_narrow_matmul_is_no_kernel_of_its_own() -> None:
    x, y = Tensor.input("x", (40, 70)), Tensor.input("y", (40, 70))
    assert len(((x + y).relu() @ Tensor(WEIGHT)).prepare().prepared_ops) == 1


def test_rows_are_gathered_by_the_matmul_that_reads_them() -> None:
    n = Variable("n", 1, 64)
    ids = Tensor.input("ids", (n,), "int64")
    plan = (Tensor(TABLE)[ids] @ Tensor(WEIGHT)).prepare(threads=2)
    assert len(plan.prepared_ops) == 1
    x = Tensor.input("x", (n, 70))
    stored = (x @ Tensor(WEIGHT)).prepare()
    for rows in SIZES:
        chosen = RNG.integers(0, 50, rows)
        np.testing.assert_array_equal(plan(ids=chosen), stored(x=TABLE[chosen]))


def test_a_row_that_is_not_there_is_reported() -> None:
    ids = Tensor.input("ids", (20,), "int64")
    plan = (Tensor(TABLE)[ids] @ Tensor(WEIGHT)).prepare()
    wrong: Any = np.zeros(20, np.int64)
    wrong[7] = 50
    with pytest.raises(IndexRangeError, match="50"):
        plan(ids=wrong)


def test_a_norm_stays_with_the_reduction_of_its_rows() -> None:
    plan = (Tensor.input("x", (40, 70)).rms_norm() @ Tensor(WEIGHT)).prepare()
    assert len(plan.prepared_ops) == 2


def test_bytes_are_quantised_on_their_way_into_a_product() -> None:
    x = RNG.standard_normal((33, 64)).astype(np.float32)
    q = RNG.integers(-128, 128, (64, 40)).astype(np.int8)
    t = Tensor.input("x", x.shape)
    plan = (t * 50).floor().cast("int8").matmul_integer(q).prepare()
    assert len(plan.prepared_ops) == 1
    left = np.clip(np.floor(x * np.float32(50)), -128, 127).astype(np.int64)
    np.testing.assert_array_equal(plan(x=x), left @ q.astype(np.int64))


def test_what_follows_a_contraction_is_its_epilogue_and_not_the_next_ones_prologue() -> None:
    n = Variable("n", 1, 64)
    y = Tensor.input("x", (n, 32))
    for _ in range(3):
        y = (y @ Tensor(RNG.standard_normal((32, 32)).astype(np.float32))).relu()
    assert {kernel.name for kernel in y.prepare().kernels} == {"matmul_relu"}
