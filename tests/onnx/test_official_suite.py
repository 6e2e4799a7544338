"""The official suite of ONNX, case by case.

All 2,033 cases take minutes, so that the usual run has a part of them, chosen by name and always
the same; SEMEL_ONNX_SUITE=all runs all. What cannot pass is listed in `skips.txt`, with the reason;
a listed case that passes is an error here, and so is one that is not listed and fails.

The same holds of the symbolised suite, where every dim of every input is a variable and each case
runs at two sizes: a smaller part here, all of it there, `symbolic_skips.txt` for what is its own.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
suite = pytest.importorskip("tests.onnx.suite")

IS_ALL = os.environ.get("SEMEL_ONNX_SUITE") == "all"
PARTS, SYMBOLIC_PARTS = 4, 40


def read_skips(file: str) -> dict[str, str]:
    """Reasons by the name of a case."""
    text = Path(__file__).with_name(file).read_text()
    lines = (line.partition(":") for line in text.splitlines())
    return {name.strip(): why.strip() for name, _, why in lines if name and name[0] != "#"}


SKIPS = read_skips("skips.txt")
SYMBOLIC_SKIPS = SKIPS | read_skips("symbolic_skips.txt")
NAMES = [n for n in suite.cases() if IS_ALL or zlib.crc32(n.encode()) % PARTS == 0]


@pytest.mark.parametrize("name", NAMES)
def test_case(name: str) -> None:
    with np.errstate(all="ignore"):
        if name not in SKIPS:
            suite.check(suite.cases()[name])
            return
        with pytest.raises(Exception, match=r"(?s)."):
            suite.check(suite.cases()[name])


def symbolic_names() -> list[str]:
    """A few of those whose sizes can be variables, or all: telling which reads their models."""
    found = [n for n in suite.cases() if IS_ALL or zlib.crc32(n.encode()) % SYMBOLIC_PARTS == 0]
    return [n for n in found if suite.num_symbols(suite.cases()[n].model)]


@pytest.mark.parametrize("name", symbolic_names())
def test_symbolised_case(name: str) -> None:
    with np.errstate(all="ignore"):
        if name in SYMBOLIC_SKIPS:
            with pytest.raises(Exception, match=r"(?s)."):
                suite.check(suite.cases()[name], symbolic=True)
            return
        suite.check(suite.cases()[name], symbolic=True)


def test_skips_are_cases_with_reasons() -> None:
    for skips in (SKIPS, SYMBOLIC_SKIPS):
        assert all(skips.values()) and skips.keys() <= suite.cases().keys()
        assert len(skips) <= 0.03 * len(suite.cases()), "97 % must pass"


def test_what_ran_where_is_counted() -> None:
    """Kernels of what was compiled, and what is left to the host."""
    cases = suite.cases()
    work = suite.check(cases["test_add"], symbolic=True)
    assert (work.kernels, work.host, work.compiled, work.sizes) == (1, 0, 1, "")
    assert suite.check(cases["test_string_concat"]).host == 1
    found = {"test_add": work, "test_x": suite.Work(failure="wrong: 1 | 2")}
    assert "| test_add | 1 | 0 | 1 | passes |" in suite.report(found)
    assert "1 of 2 pass" in suite.summary(found)
