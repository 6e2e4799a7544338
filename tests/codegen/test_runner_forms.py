"""The short forms of the runner's text: what they stand for, and what is refused."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from semel.codegen.runner_forms import expand_forms
from semel.devices.cpu.elf import load_object
from semel.devices.cpu.toolchain import compile_ir, host_target
from semel.errors import InternalError
from semel.ir.abi import Header

#: Sums of a[i] * b[j] over i < n, j < m with i != j, counted in a word that is atomic.
SUMS = """
define i64 @sums(ptr %a, ptr %b, i64 %n, i64 %m, ptr %total) {
  %is_none = icmp sle i64 %n, 0
  when %is_none
  ret i64 -1
  end
  each %i from 0 to %n
  %pa = getelementptr i64, ptr %a, i64 %i
  %x = load i64, ptr %pa
  each %j from 0 to %m
  %same = icmp eq i64 %i, %j
  unless %same
  %pb = getelementptr i64, ptr %b, i64 %j
  %y = load i64, ptr %pb
  %product = mul i64 %x, %y
  %old = atomic %total acquire
  %new = add i64 %old, %product
  %won, %seen = swap %total, %old, %new seq_cst seq_cst
  %lost = xor i1 %won, true
  when %lost
  ret i64 %seen
  end
  end
  next %j
  next %i
  %sum = atomic %total monotonic
  atomic %total = 0 release
  ret i64 %sum
}
"""


def test_loops_and_conditions_nest() -> None:
    code = load_object(compile_ir(expand_forms(SUMS), host_target()))
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2,
                            ctypes.c_void_p)  # fmt: skip
    sums = kind(code.address("sums"))
    a, b = np.arange(3, 8), np.arange(10, 14)
    for n, m in ((5, 4), (1, 1), (2, 0), (0, 4)):
        total = np.zeros(1, np.int64)
        outer = np.multiply.outer(a[:n], b[:m])
        wanted = int(outer.sum() - np.diagonal(outer).sum()) if n else -1
        assert sums(a.ctypes.data, b.ctypes.data, n, m, total.ctypes.data) == wanted
        assert total[0] == 0


def test_words_have_the_places_of_their_records() -> None:
    text = expand_forms("  %x = word %h.Header.BUSY\n  set %h.Header.DIRTY = %x\n")
    assert f"ptr %h, i64 {int(Header.BUSY)}\n" in text
    assert f"ptr %h, i64 {int(Header.DIRTY)}\n" in text
    assert "  %x = load i64, ptr %at1, align 8" in text
    assert "  store i64 %x, ptr %at2, align 8" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  each %i from 0 to 3", "each %i is not closed"),
        ("  each i from 0", "must be written as the forms are, got '  each i from 0'"),
        ("  next %i", "the end of each %i .* is in nothing"),
        ("  each %i from 0 to 3\n  end", "the end of when .* is in each %i"),
        ("  each %i from 0 to 3\n  next %j", "the end of each %j .* is in each %i"),
    ],
)
def test_forms_must_be_closed_where_they_are_open(text: str, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        expand_forms(f"define void @f() {{\n{text}\n  ret void\n}}\n")
