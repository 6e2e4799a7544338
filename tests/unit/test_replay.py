"""The replay of the corpus: the same tree writes the same bytes, and differences are all listed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.corpus import CORPUS
from benchmarks.replay import (
    HERE,
    SUMMARY,
    Difference,
    Replayed,
    compare,
    compare_trees,
    lines,
    main,
    read_corpus,
    write_corpus,
    write_tree,
)

GRAPHS = ("softmax", "cond", "cache")
TARGET = "x86-64-v2"  # which every machine that runs these tests can compile for


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_same_tree_writes_the_same_bytes(tmp_path: Path) -> None:
    once, again = tmp_path / "once", tmp_path / "again"
    for folder in (once, again):
        folder.mkdir()
        write_tree(HERE, folder, GRAPHS, TARGET)  # a process of its own
        assert [each.error for each in read_corpus(folder)] == [""] * len(GRAPHS)
    assert _files(once) == _files(again)
    products = set(read_corpus(once)[0].products)
    assert {"02-schedule.txt", "kernels.txt", "plan.txt"} <= products
    assert any("-kernel-" in product for product in products)
    assert all(0 < each.header_bytes < each.file_bytes for each in read_corpus(once))


def test_what_was_made_before_in_the_process_changes_no_product(tmp_path: Path) -> None:
    (first,) = write_corpus(tmp_path / "a", ["cond"], TARGET)
    write_corpus(tmp_path / "b", ["repeated_layers"], TARGET)
    (again,) = write_corpus(tmp_path / "c", ["cond"], TARGET)
    assert first.products == again.products


def test_the_plan_of_a_graph_is_told_row_by_row(tmp_path: Path) -> None:
    write_corpus(tmp_path, ["cond"], TARGET)
    told = (tmp_path / "cond" / "plan.txt").read_text()
    assert "PreparedBranch" in told and "steps [[[" in told and "arena_bytes " in told


def test_what_differs_is_named() -> None:
    same = Replayed("same", {"plan.txt": "1"}, 10, 90)
    then = Replayed("other", {"plan.txt": "1", "03-kernel-0.txt": "1"}, 10, 90)
    now = replace(then, products={"plan.txt": "2", "03-kernel-0.txt": "2"}, code_bytes=140)
    failed = Replayed("failed", error="AttributeError: no attribute 'cond'")
    new = Replayed("failed", {"plan.txt": "1"}, 1, 1)
    found = compare([same, then, failed], [same, now, new, replace(same, name="later")])
    assert found == [
        Difference("same", (), 1.0),
        Difference("other", ("kernel texts", "plan"), 1.5),
        Difference("failed", missing="old: AttributeError: no attribute 'cond'"),
        Difference("later", missing="old: it has not been written there"),
    ]
    told = "\n".join(lines(found, 200, 250))
    assert "other" in told and "1.50x  differs: kernel texts, plan" in told
    assert "failed" in told and "no attribute 'cond'" in told
    assert "2 graphs compared, 1 the same; 2 not built" in told
    assert "header and code: 250 bytes, 200 before, 1.250x" in told


def test_a_graph_that_cannot_be_built_is_listed_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> None:
        raise AttributeError("no such name")

    monkeypatch.setitem(CORPUS, "unknown", unknown)
    (found,) = write_corpus(tmp_path, ["unknown"], TARGET)
    assert found == Replayed("unknown", error="AttributeError: no such name")


def test_trees_are_compared_by_processes_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["write", str(tmp_path / "old"), "add", "--target", TARGET]) == 0
    assert "1 graphs written" in capsys.readouterr().out
    told = compare_trees(tmp_path / "old", tmp_path / "kept", ["add"], TARGET)
    assert told[0] == "1 graphs compared, 1 the same; 0 not built"
    assert (tmp_path / "kept" / "new" / SUMMARY).exists()


def test_the_corpus_is_large_enough_to_see_things() -> None:
    assert len(CORPUS) >= 60
