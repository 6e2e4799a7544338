"""Functions of `semel` called as NumPy's of the same name, and what both give."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import semel
from semel import Tensor
from semel.ir.graph import Graph
from semel.ops.evaluate import evaluate

Array = np.ndarray[Any, Any]


def run(tensor: Tensor, **values: Any) -> Array:
    """The tensor by the NumPy references of its ops."""
    return evaluate(Graph((tensor.node,)), values)[0]


def check(got: Any, want: Any, rtol: float = 2e-6, atol: float = 1e-6, **values: Any) -> None:
    """Shapes are equal and elements close: of a tensor, or of several."""
    if isinstance(want, (tuple, list)) and not np.isscalar(want):
        assert len(got) == len(want)
        for one, wanted in zip(got, want, strict=True):
            check(one, wanted, rtol, atol, **values)
        return
    found = run(got, **values)
    assert found.shape == np.shape(want)
    np.testing.assert_allclose(found, want, rtol=rtol, atol=atol)


def same(name: str, *args: Any, rtol: float = 2e-6, **options: Any) -> None:
    """The function of this name gives what NumPy's does for the same arguments."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        want = getattr(np, name)(*args, **options)
    check(getattr(semel, name)(*args, **options), want, rtol)


def agree(
    functions: dict[str, tuple[Callable[[Any], Tensor], Callable[[Any], Any]]],
    x: Tensor,
    arrays: list[Array],
    rtol: float = 1e-5,
) -> None:
    """One plan of all the functions gives what NumPy's give, for arrays of several sizes."""
    plan = semel.prepare([ours(x) for ours, _ in functions.values()], tune=False)
    for array in arrays:
        for made, (name, (_, numpys)) in zip(plan(x=array), functions.items(), strict=True):
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                want = numpys(array)
            np.testing.assert_allclose(made, want, rtol=rtol, atol=1e-6, err_msg=name)
