"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.executor.rig import executor_of

from semel import UnifiedExecutor


@pytest.fixture
def executor() -> Iterator[UnifiedExecutor]:
    """Two parts of the CPU; whatever a test has left is waited for."""
    made = executor_of()
    yield made
    for context in made._contexts.values():
        context.close()
