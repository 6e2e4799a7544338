"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.faults import backend
from tests.faults.backend import FAULTS, FaultyDevice, faulty

from semel.runtime import device as table


@pytest.fixture(autouse=True)
def device() -> Iterator[FaultyDevice]:
    """The faulty device, which is gone afterwards and hangs no more."""
    made = faulty()
    FAULTS.plan("")
    yield made
    made.reset()
    table.MODULES.pop("faulty", None)
    table._imported.pop(backend.__name__, None)
    table._open.pop("faulty", None)
