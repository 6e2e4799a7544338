"""A prepare in a process of its own that goes wrong says what the process said."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from semel.cli import prepare
from semel.cli.encoder import EncoderSize
from semel.errors import CompileError

HEAD = r"^\[demo\] a prepare in a new process must end well, it said: "


def test_the_last_words_of_the_process_are_told(tmp_path: Path) -> None:
    uneven = EncoderSize(layers=1, width=16, heads=3, hidden=16)
    with pytest.raises(CompileError, match=r"(?s)it said: .*\[reshape\].*3") as caught:
        prepare.prepare_in_new_process(uneven, tmp_path, 1)
    assert "exit status" not in str(caught.value)


def test_a_process_that_cannot_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(CompileError, match=HEAD + r".*No such file"):
        prepare.prepare_in_new_process(EncoderSize(), tmp_path, None)


def test_a_process_that_takes_too_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "_TIMEOUT_S", 0.01)
    with pytest.raises(CompileError, match=HEAD + r".*timed out after 0\.01 seconds"):
        prepare.prepare_in_new_process(EncoderSize(), tmp_path, None)
