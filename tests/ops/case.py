"""One row of the table of operations: what to call, what NumPy says, on which data.

    Case --build--> graph over named inputs, arrays, expected result

The reference runs in float64 wherever a float goes in, so it is the truth and not NumPy's
rounding of it. Integers and bools must agree exactly, floats to the dtype's tolerance.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semel import Tensor
from semel.ir.types import as_dtype

RTOL = {"float64": 1e-12, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}


@dataclass(frozen=True)
class Spec:
    """Random data: uniform in [low, high], of a dtype and shape; `special` mixes in NaN."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float = -3.0
    high: float = 3.0
    special: tuple[float, ...] = ()

    def make(self, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        numpy_dtype = as_dtype(self.dtype).numpy
        if self.dtype == "bool":
            return rng.random(self.shape) < 0.5
        if as_dtype(self.dtype).is_integer:
            low = max(int(self.low), 0) if self.dtype.startswith("u") else int(self.low)
            return rng.integers(low, int(self.high), self.shape, endpoint=True).astype(numpy_dtype)
        data = rng.uniform(self.low, self.high, self.shape)
        if self.special and data.size:
            places = rng.choice(data.size, min(len(self.special), data.size), replace=False)
            data.reshape(-1)[places] = self.special[: len(places)]
        return np.asarray(data).astype(numpy_dtype)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Case:
    """`run` on tensors and `expected` on arrays of the same data give the same result."""

    name: str
    run: Callable[..., Any]
    expected: Callable[..., Any]
    inputs: tuple[Spec, ...]
    dtype: str | None = None  # of the result; None: the first float input's, or NumPy's own
    rtol: float | None = None  # looser only with a comment that says why
    atol: float = 0.0

    def __str__(self) -> str:
        return "-".join([self.name, *map(str, self.inputs)]).replace(" ", "")

    def arrays(self) -> list[np.ndarray]:
        seed = zlib.crc32(str(self).encode())
        return [spec.make(seed + i) for i, spec in enumerate(self.inputs)]

    def symbols(self, shapes: Sequence[Any] | None = None) -> list[Tensor]:
        """Named inputs for the data; `shapes` may put Variables in place of sizes."""
        dims = shapes or [spec.shape for spec in self.inputs]
        return [
            Tensor.input(f"x{i}", shape, spec.dtype)
            for i, (shape, spec) in enumerate(zip(dims, self.inputs, strict=True))
        ]

    def result_of(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):
            truth = np.asarray(self.expected(*(wide(a) for a in arrays)))
        floats = [s.dtype for s in self.inputs if as_dtype(s.dtype).is_float]
        dtype = self.dtype or (floats[0] if floats and truth.dtype.kind == "f" else truth.dtype)
        with np.errstate(all="ignore"):
            return truth.astype(as_dtype(dtype).numpy)

    def check(self, got: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
        want = self.result_of(arrays)
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        name = as_dtype(want.dtype).name
        if name not in RTOL:
            np.testing.assert_array_equal(got, want)
            return
        rtol = RTOL[name] if self.rtol is None else self.rtol
        tiny = float(self.atol or np.finfo(np.float32).tiny)
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=tiny
        )


def wide(array: np.ndarray) -> np.ndarray:
    """Floats as float64; everything else as it is."""
    is_float = as_dtype(array.dtype).is_float
    return array.astype(np.float64) if is_float else array
