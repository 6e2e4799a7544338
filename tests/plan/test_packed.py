"""Weights in panels: every element where the kernel looks for it, whatever the sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import semel
from semel import Tensor
from semel.ir.types import as_dtype
from semel.plan.plan import ExecutionPlan

Array = np.ndarray[Any, Any]
DTYPES = ("float32", "float64", "float16", "bfloat16")
#: Columns and depth: panels and a column, many panels, less than a block of either, odd ones. None
#: is a single panel on any machine: that would be the matrix as it is.
SHAPES = [(257, 2), (70, 7), (129, 8), (96, 64), (301, 33), (320, 1030)]


def draw(seed: int, shape: tuple[int, ...], dtype: str) -> Array:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape).astype(as_dtype(dtype).numpy)


def packed(plan: ExecutionPlan) -> Array:
    """The one weight that the plan has made."""
    (recipe,) = (r for r in plan.program.recipes if r.formula is not None)
    weight = plan.program.values[recipe.value].weight
    assert weight is not None
    return weight.array


def panels(matrix: Array, lanes: int) -> Array:
    """(depth, columns) as (panels, depth, lanes)."""
    depth, columns = matrix.shape
    wide = np.pad(matrix, [(0, 0), (0, -columns % lanes)])
    return wide.reshape(depth, -1, lanes).transpose(1, 0, 2)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_matrix(dtype: str, turned: bool) -> None:
    for columns, depth in SHAPES:
        shape = (columns, depth) if turned else (depth, columns)
        w = draw(columns, shape, dtype)
        param = Tensor.param("w", w)
        with semel.config.override(debug=frozenset({"poison"})):
            plan = (Tensor.input("x", (3, depth), dtype) @ (param.T if turned else param)).prepare()
        for again in (w, draw(depth, shape, dtype)):
            plan.set_param("w", again)
            got = packed(plan)
            np.testing.assert_array_equal(
                got, panels(again.T if turned else again, got.shape[-1]), err_msg=f"{shape}"
            )


#: Columns of weights side by side: in panels of their own, the last one padded, in shared panels.
JOINED = [(32, 64), (64, 32, 96), (64, 128, 21), (40, 120), (17, 64, 33), (64, 64, 64, 64, 64)]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_matrices_side_by_side(dtype: str, turned: bool) -> None:
    depth = 45
    for widths in JOINED:
        parts = [draw(k, (n, depth) if turned else (depth, n), dtype) for k, n in enumerate(widths)]
        names = [f"w{k}" for k in range(len(parts))]
        params = [Tensor.param(n, p) for n, p in zip(names, parts, strict=True)]
        right = semel.concat(params, 0).T if turned else semel.concat(params, 1)
        plan = (Tensor.input("x", (3, depth), dtype) @ right).prepare()
        want = np.concatenate([p.T if turned else p for p in parts], 1)
        got = packed(plan)
        np.testing.assert_array_equal(got, panels(want, got.shape[-1]), err_msg=f"{widths}")
        plan.set_params({name: 2 * part for name, part in zip(names, parts, strict=True)})
        got = packed(plan)
        np.testing.assert_array_equal(got, panels(2 * want, got.shape[-1]), err_msg=f"{widths}")


def test_weights_that_share_no_panel_are_packed_one_by_one() -> None:
    """By one formula, for all sizes: of their panels none is a fixed number."""
    formulas = set()
    for widths in ((192, 384, 576), (768, 192, 384)):
        params = [Tensor.param(f"w{n}", np.ones((n, 50), np.float32)) for n in widths]
        plan = (Tensor.input("x", (3, 50)) @ semel.concat(params, 0).T).prepare()
        (recipe,) = (r for r in plan.program.recipes if r.formula is not None)
        formulas.add(recipe.formula)
    assert len(formulas) == 1
