"""The official suite of ONNX, case by case.

All 2,033 cases take minutes, so that the usual run has a part of them, chosen by name and always
the same; SEMEL_ONNX_SUITE=all runs all. What cannot pass is listed in `skips.txt`, with the reason;
a listed case that passes is an error here, and so is one that is not listed and fails.

The same holds of the symbolised suite, where every dim of every input is a variable and each case
runs at two sizes: a smaller part here, all of it there, `symbolic_skips.txt` for what is its own.
And of the suite without anything to fold, where constants are inputs: `unfolded_skips.txt`.
`scripts/onnx` runs all of all three.
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
PARTS, SYMBOLIC_PARTS, UNFOLDED_PARTS = 4, 40, 40


def read_skips(file: str) -> dict[str, str]:
    """Reasons by the name of a case."""
    text = Path(__file__).with_name(file).read_text()
    lines = (line.partition(":") for line in text.splitlines())
    return {name.strip(): why.strip() for name, _, why in lines if name and name[0] != "#"}


SKIPS = read_skips("skips.txt")
SYMBOLIC_SKIPS = SKIPS | read_skips("symbolic_skips.txt")
UNFOLDED_SKIPS = SKIPS | read_skips("unfolded_skips.txt")


def some_names(parts: int) -> list[str]:
    """One case of so many, or all."""
    return [n for n in suite.cases() if IS_ALL or zlib.crc32(n.encode()) % parts == 0]


@pytest.mark.parametrize("name", some_names(PARTS))
def test_case(name: str) -> None:
    with np.errstate(all="ignore"):
        if name not in SKIPS:
            suite.check(suite.cases()[name])
            return
        with pytest.raises(Exception, match=r"(?s)."):
            suite.check(suite.cases()[name])


def symbolic_names() -> list[str]:
    """A few of those whose sizes can be variables, or all: telling which reads their models."""
    found = some_names(SYMBOLIC_PARTS)
    return [n for n in found if suite.num_symbols(suite.cases()[n].model)]


@pytest.mark.parametrize("name", symbolic_names())
def test_symbolised_case(name: str) -> None:
    with np.errstate(all="ignore"):
        if name in SYMBOLIC_SKIPS:
            with pytest.raises(Exception, match=r"(?s)."):
                suite.check(suite.cases()[name], symbolic=True)
            return
        suite.check(suite.cases()[name], symbolic=True)


@pytest.mark.parametrize("name", some_names(UNFOLDED_PARTS))
def test_case_without_constants(name: str) -> None:
    with np.errstate(all="ignore"):
        if name in UNFOLDED_SKIPS:
            with pytest.raises(Exception, match=r"(?s)."):
                suite.check(suite.cases()[name], unfolded=True)
            return
        suite.check(suite.cases()[name], unfolded=True)


def test_constants_are_inputs_where_nothing_is_folded() -> None:
    """A Reshape by a constant shape is a size of the run then, and a case has its kernel."""
    helper, numpy_helper = suite.onnx.helper, suite.numpy_helper
    model = suite.onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[6] x) => (float[a, b] y)
        <int64[2] shape = {2, 3}> {
            one = Constant <value_float = 1.0> ()
            z = Add (x, one)
            y = Reshape (z, shape)
        }"""
    )
    made, found = suite.with_inputs_only(model)
    assert [node.op_type for node in made.graph.node] == ["Add", "Reshape"]
    assert [given.name for given in made.graph.input] == ["x", "shape", "one"]
    assert helper.tensor_dtype_to_np_dtype(made.graph.input[2].type.tensor_type.elem_type) == "f4"
    np.testing.assert_array_equal(found["shape"], numpy_helper.to_array(model.graph.initializer[0]))


def test_skips_are_cases_with_reasons() -> None:
    for skips in (SKIPS, SYMBOLIC_SKIPS, UNFOLDED_SKIPS):
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
