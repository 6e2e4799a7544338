"""The weights that the models are measured with: trained ones if installed, else from a seed."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from tests.models.checkpoints import trained_minilm

from semel.models.minilm import minilm_weights


@cache
def bench_minilm_weights() -> dict[str, np.ndarray[Any, Any]]:
    """MiniLM's arrays; which ones makes no difference to the time, only to the outputs."""
    trained = trained_minilm()
    return minilm_weights() if trained is None else trained
