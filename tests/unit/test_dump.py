"""SEMEL_DUMP: a file for every stage, or an error that names the variable."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import semel
from semel import Tensor, config
from semel.errors import UserError


def _prepare(directory: Path) -> None:
    with config.override(dump=directory):
        semel.prepare(Tensor.input("x", (4,)) + 1, threads=1)


def test_every_stage_has_its_file_in_order(tmp_path: Path) -> None:
    _prepare(tmp_path / "deep" / "er")
    names = [path.name for path in sorted((tmp_path / "deep" / "er").iterdir())]
    assert names == ["00-input.txt", "01-graph.txt", "02-schedule.txt", "03-kernel-0-add.txt"]
    assert "add" in (tmp_path / "deep" / "er" / "00-input.txt").read_text()


def test_a_file_in_the_place_of_the_directory_is_the_callers_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        message = (
            rf"^\[config\] SEMEL_DUMP must be a directory that we may write, got '{directory}'"
        )
        with pytest.raises(UserError, match=message):
            _prepare(directory)
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_disk_that_refuses_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(*arguments: Any, **options: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(UserError, match=rf"SEMEL_DUMP must be .*: .*{os.strerror(code)}"):
        _prepare(tmp_path)
