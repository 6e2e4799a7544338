"""A start in a process of its own that goes wrong says what the process said."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from semel.cli.demo import second_start
from semel.errors import PlanError

HEAD = r"^\[demo\] a start in a new process must end well, it said: "


def test_the_last_words_of_the_process_are_told(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"(?s)" + HEAD + r".*none\.plan") as caught:
        second_start.start_again(tmp_path / "none.plan", [1], 1, 1)
    assert "exit status" not in str(caught.value)


def test_a_process_that_cannot_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(PlanError, match=HEAD + r".*No such file"):
        second_start.start_again(tmp_path / "none.plan", [1], 1, 1)


def test_a_process_that_takes_too_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_start, "_TIMEOUT_S", 0.01)
    with pytest.raises(PlanError, match=HEAD + r".*timed out after 0\.01 seconds"):
        second_start.start_again(tmp_path / "none.plan", [1], 1, 1)
