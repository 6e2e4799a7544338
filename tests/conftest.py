"""What every test gets: a kernel cache of its own run, and settings put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from semel import config


@pytest.fixture(scope="session")
def session_cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache per run: no test depends on, or leaves behind, kernels of another run."""
    return tmp_path_factory.mktemp("kernel-cache")


@pytest.fixture(autouse=True)
def _own_settings(session_cache_dir: Path) -> Iterator[None]:
    with config.override(cache_dir=session_cache_dir):
        yield
