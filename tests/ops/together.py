"""Many results compared at once: one plan computes all of them, which takes one compile."""

from __future__ import annotations

from typing import Any

import numpy as np

import semel
from semel import Tensor


class Together:
    """Tensors beside what they should be; `check` computes and compares them."""

    def __init__(self, tolerance: float = 2e-5) -> None:
        self.tolerance = tolerance
        self.names: list[str] = []
        self.tensors: list[Tensor] = []
        self.wanted: list[Any] = []

    def add(self, name: str, tensor: Tensor, wanted: Any) -> None:
        self.names.append(name)
        self.tensors.append(tensor)
        self.wanted.append(np.asarray(wanted))

    def check(self) -> None:
        found = semel.prepare(self.tensors)()
        for name, have, want in zip(self.names, found, self.wanted, strict=True):
            assert have.dtype == want.dtype, name
            np.testing.assert_allclose(
                have, want, rtol=self.tolerance, atol=self.tolerance, err_msg=name
            )
