"""A plugin of pytest that runs the official suite for a library without complex numbers.

    python -m pytest -p without_complex array_api_tests

The suite knows dtypes that are missing, but takes the widest complex one of an empty list: here
that is the widest real one. What its special cases say of complex numbers is skipped.
"""

from __future__ import annotations

import builtins
import importlib
import os
from typing import Any

import pytest

REASON = "there are no complex dtypes"
os.environ["ARRAY_API_TESTS_SKIP_DTYPES"] = "complex64,complex128"
_max = builtins.max
_suite = importlib.import_module("array_api_tests")


def _max_or_real(*values: Any, **options: Any) -> Any:
    try:
        return _max(*values, **options)
    except ValueError:
        return _suite.xp.float64, 64


builtins.max = _max_or_real
try:
    importlib.import_module("array_api_tests.dtype_helpers")
finally:
    builtins.max = _max


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        case = item.name.partition("[")[2]
        is_special = "special_cases" in item.nodeid and ("real(" in case or "imag(" in case)
        if is_special or case.startswith(("dtype-complex", "data_type-complex")):
            item.add_marker(pytest.mark.skip(reason=REASON))
