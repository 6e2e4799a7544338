"""The official suite of ONNX, case by case.

All 2,033 cases take minutes, so that the usual run has a part of them, chosen by name and always
the same; SEMEL_ONNX_SUITE=all runs all. What cannot pass is listed in `skips.txt`, with the reason;
a listed case that passes is an error here, and so is one that is not listed and fails.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
suite = pytest.importorskip("tests.onnx.suite")

LISTED = Path(__file__).with_name("skips.txt")
IS_ALL = os.environ.get("SEMEL_ONNX_SUITE") == "all"
PARTS = 4


def read_skips() -> dict[str, str]:
    """Reasons by the name of a case."""
    lines = (line.partition(":") for line in LISTED.read_text().splitlines())
    return {name.strip(): why.strip() for name, _, why in lines if name and name[0] != "#"}


SKIPS = read_skips()
NAMES = [n for n in suite.cases() if IS_ALL or zlib.crc32(n.encode()) % PARTS == 0]


@pytest.mark.parametrize("name", NAMES)
def test_case(name: str) -> None:
    with np.errstate(all="ignore"):
        if name not in SKIPS:
            suite.check(suite.cases()[name])
            return
        with pytest.raises(Exception, match=r"(?s)."):
            suite.check(suite.cases()[name])


def test_skips_are_cases_with_reasons() -> None:
    assert all(SKIPS.values()) and SKIPS.keys() <= suite.cases().keys()
    assert len(SKIPS) <= 0.03 * len(suite.cases()), "97 % must pass"
