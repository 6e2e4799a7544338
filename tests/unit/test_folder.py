"""A private folder: nobody but us can change what we find in it, nor put another in its place."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.odd_files import ODD_FILES, SPARSE_BYTES

from semel.cache.folder import PrivateFolder
from semel.errors import CacheError

LIMIT = 1000
STRANGER = 12345


def _folder(path: Path) -> PrivateFolder:
    return PrivateFolder(path)


def _handle(folder: PrivateFolder) -> int:
    assert folder._held is not None
    return folder._held.handle


def _open_files() -> set[str]:
    gc.collect()
    return set(os.listdir("/proc/self/fd"))


def _pretend_owner(monkeypatch: pytest.MonkeyPatch, path: Path, uid: int = STRANGER) -> None:
    """Let `path` belong to another user, as far as this process can see."""
    identity = os.lstat(path).st_ino
    names = [name for name in dir(os.lstat(path)) if name.startswith("st_")]

    def changed(look: Any) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            info = look(*arguments, **options)
            if info.st_ino != identity:
                return info
            return SimpleNamespace(**{n: getattr(info, n) for n in names} | {"st_uid": uid})

        return wrapped

    for call in ("stat", "fstat"):
        monkeypatch.setattr(os, call, changed(getattr(os, call)))


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


# --------------------------------------------------------------------------------- use


def test_what_is_replaced_is_read(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a" / "b")
    with pytest.raises(FileNotFoundError, match="No such file"):
        folder.read("x", LIMIT)
    folder.replace("x", b"old")
    folder.replace("x", b"new")
    assert _folder(tmp_path / "a" / "b").read("x", LIMIT) == b"new"
    assert [name for name, _ in folder.entries("")] == ["x"]
    folder.remove("x")
    assert folder.entries("") == []


def test_a_relative_path_starts_where_we_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    _folder(Path("../there/f")).replace("x", b"data")
    assert (tmp_path / "there" / "f" / "x").read_bytes() == b"data"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_the_umask_does_not_decide_who_may_do_what(tmp_path: Path, mask: int) -> None:
    with _umask(mask):
        folder = _folder(tmp_path / "a" / "b")
        folder.replace("x", b"data")
        assert folder.read("x", LIMIT) == b"data"
    modes = [p.stat().st_mode & 0o7777 for p in (tmp_path / "a", tmp_path / "a/b")]
    assert modes == [0o700, 0o700]
    assert (tmp_path / "a/b/x").stat().st_mode & 0o7777 == 0o600


def test_a_name_that_no_file_can_have_is_an_error_of_the_system(tmp_path: Path) -> None:
    for name in ("a\0b", "x" * 300, "\ud800"):
        with pytest.raises(OSError, match=r"Invalid argument|too long"):
            _folder(tmp_path / name).replace("x", b"")


# ----------------------------------------------------------------------------- the way


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o722])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_an_ancestor_that_others_may_write_is_refused(
    tmp_path: Path, mode: int, depth: int
) -> None:
    path = tmp_path / "a" / "b" / "c"
    _folder(path).replace("x", b"data")
    bad = [path, *path.parents][depth]
    bad.chmod(mode)
    with pytest.raises(CacheError, match=rf"{bad} must not be writable by others, got mode"):
        _folder(path).read("x", LIMIT)
    bad.chmod(0o700)
    assert _folder(path).read("x", LIMIT) == b"data"


def test_a_sticky_ancestor_is_accepted_as_tmp_is(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o1777)
    _folder(tmp_path / "a" / "b").replace("x", b"data")
    assert _folder(tmp_path / "a" / "b").read("x", LIMIT) == b"data"


def test_a_sticky_folder_is_still_not_ours_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o1777)
    with pytest.raises(CacheError, match="must not be writable by others, got mode 1777"):
        _folder(tmp_path / "a").replace("x", b"data")


@pytest.mark.parametrize("depth", [1, 2])
def test_an_ancestor_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    path = tmp_path / "a" / "b" / "c"
    _folder(path).replace("x", b"data")
    _pretend_owner(monkeypatch, path.parents[depth - 1])
    with pytest.raises(CacheError, match="must be ours or root's, but belongs to user 12345"):
        _folder(path).read("x", LIMIT)


def test_an_ancestor_of_root_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a" / "b"
    _folder(path).replace("x", b"data")
    _pretend_owner(monkeypatch, path.parent, 0)
    assert _folder(path).read("x", LIMIT) == b"data"


def test_the_folder_itself_must_be_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _folder(tmp_path / "a").replace("x", b"data")
    _pretend_owner(monkeypatch, tmp_path / "a")
    with pytest.raises(CacheError, match="must be ours"):
        _folder(tmp_path / "a").read("x", LIMIT)


def test_our_own_links_are_followed_and_their_targets_checked(tmp_path: Path) -> None:
    _folder(tmp_path / "real" / "f").replace("x", b"data")
    (tmp_path / "one").symlink_to("real")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    assert _folder(tmp_path / "two" / "f").read("x", LIMIT) == b"data"
    (tmp_path / "real").chmod(0o777)
    with pytest.raises(CacheError, match=r"real must not be writable by others"):
        _folder(tmp_path / "two" / "f").read("x", LIMIT)


def test_the_link_of_another_user_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _folder(tmp_path / "real" / "f").replace("x", b"data")
    (tmp_path / "link").symlink_to("real")
    _pretend_owner(monkeypatch, tmp_path / "link")
    with pytest.raises(CacheError, match="link must be ours or root's, but is user 12345's link"):
        _folder(tmp_path / "link" / "f").read("x", LIMIT)


@pytest.mark.usefixtures("settled")
def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    before = _open_files()
    with pytest.raises(OSError, match="Too many levels"):
        _folder(tmp_path / "a" / "f").replace("x", b"data")
    assert _open_files() == before


# ----------------------------------------------------------------------- the descriptor


def test_a_folder_put_in_its_place_is_not_used(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "cache" / "f")
    folder.replace("x", b"ours")
    (tmp_path / "cache").rename(tmp_path / "aside")
    _folder(tmp_path / "cache" / "f").replace("x", b"planted")
    assert folder.read("x", LIMIT) == b"ours"
    folder.replace("y", b"ours too")
    assert (tmp_path / "aside/f/y").read_bytes() == b"ours too"
    folder.remove("x")
    assert (tmp_path / "cache/f/x").read_bytes() == b"planted"
    assert [name for name, _ in folder.entries("")] == ["y"]


def test_a_folder_that_is_given_away_later_is_refused(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "f")
    folder.replace("x", b"data")
    (tmp_path / "f").chmod(0o777)
    for use in (lambda: folder.read("x", LIMIT), lambda: folder.replace("x", b"")):
        with pytest.raises(CacheError, match="must not be writable by others"):
            use()


def test_one_who_drops_privileges_loses_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _folder(tmp_path / "f")
    folder.replace("x", b"data")
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    with pytest.raises(CacheError, match="must be ours"):
        folder.read("x", LIMIT)


def test_a_folder_that_vanishes_is_made_again(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a" / "f")
    folder.replace("x", b"data")
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(FileNotFoundError, match="No such file"):
        folder.read("x", LIMIT)
    folder.replace("y", b"data")
    assert (tmp_path / "a/f/y").read_bytes() == b"data"


def test_the_descriptor_does_not_reach_programs_that_we_start(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "f")
    folder.replace("x", b"data")
    assert not os.get_inheritable(_handle(folder))


@pytest.mark.usefixtures("settled")
def test_nothing_stays_open(tmp_path: Path) -> None:
    before = _open_files()
    for _ in range(3):
        folder = _folder(tmp_path / "f")
        folder.replace("x", b"data")
        folder.read("x", LIMIT)
        folder.entries("")
        assert len(_open_files() - before) == 1
    del folder
    assert _open_files() == before


def test_a_descriptor_that_somebody_closed_is_opened_again(tmp_path: Path) -> None:
    """Daemons close everything; the number may be another file's by the time we look."""
    folder = _folder(tmp_path / "f")
    folder.replace("x", b"data")
    number = _handle(folder)
    os.close(number)
    assert folder.read("x", LIMIT) == b"data"
    number = _handle(folder)
    os.close(number)
    other = os.open(tmp_path, os.O_RDONLY)
    os.dup2(other, number)
    assert folder.read("x", LIMIT) == b"data"
    assert os.path.samestat(os.fstat(number), os.stat(tmp_path))  # theirs, and still open
    for handle in {other, number}:
        os.close(handle)


def test_a_forked_child_uses_the_folder_and_leaves_it_to_the_parent(tmp_path: Path) -> None:
    program = f"""
import os, sys
from pathlib import Path
from semel.cache.folder import PrivateFolder
folder = PrivateFolder(Path({str(tmp_path)!r}) / "f")
folder.replace("x", b"data")
child = os.fork()
if child == 0:
    ok = folder.read("x", 9) == b"data" and len(folder.entries("")) == 1
    folder.replace("y", b"child")
    sys.exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
assert folder.read("y", 9) == b"child" and len(folder.entries("")) == 2
"""
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": path},
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_threads_list_the_folder_at_once(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "f")
    for number in range(50):
        folder.replace(f"x{number}", b"")
    counts: list[int] = []

    def work() -> None:
        counts.extend(len(folder.entries("")) for _ in range(30))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(counts) == {50}


# ---------------------------------------------------------------------------- the files


WHY = {
    "sparse": f"must have at most {LIMIT} bytes, got {SPARSE_BYTES}",
    "writable": "must not be writable by others, got mode 666",
}


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("kind", ODD_FILES)
def test_what_is_no_file_of_ours_is_refused_and_can_be_removed(tmp_path: Path, kind: str) -> None:
    folder = _folder(tmp_path / "f")
    folder.replace("y", b"data")
    ODD_FILES[kind](tmp_path / "f" / "x")
    before = _open_files()
    with pytest.raises(CacheError, match=WHY.get(kind, "must be a plain file")):
        folder.read("x", LIMIT)
    assert _open_files() == before
    folder.remove("x")
    assert not os.path.lexists(tmp_path / "f" / "x")


def test_the_file_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _folder(tmp_path / "f")
    folder.replace("x", b"data")
    _pretend_owner(monkeypatch, tmp_path / "f" / "x")
    with pytest.raises(CacheError, match="x must be ours, but belongs to user 12345"):
        folder.read("x", LIMIT)


def test_the_limit_is_the_last_size_that_is_read(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "f")
    folder.replace("x", bytes(LIMIT))
    assert len(folder.read("x", LIMIT)) == LIMIT
    with pytest.raises(CacheError, match="must have at most 999 bytes, got 1000"):
        folder.read("x", LIMIT - 1)


def test_removing_a_link_leaves_its_target(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "f")
    folder.replace("y", b"data")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "x").write_text("kept")
    (tmp_path / "f" / "x").symlink_to(tmp_path / "precious")
    folder.remove("x")
    assert (tmp_path / "precious" / "x").read_text() == "kept"


def test_a_full_folder_in_the_place_of_a_file_is_left_alone(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "f")
    folder.replace("y", b"data")
    (tmp_path / "f" / "x").mkdir()
    (tmp_path / "f" / "x" / "precious").write_text("kept")
    with pytest.raises(OSError, match="not empty"):
        folder.remove("x")
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        folder.replace("x", b"data")
    assert (tmp_path / "f" / "x" / "precious").read_text() == "kept"
    assert not list((tmp_path / "f").glob(".*"))


def test_a_file_that_shrinks_while_it_is_read_ends_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _folder(tmp_path / "f")
    folder.replace("x", b"12345678")
    read = os.read

    def cut(handle: int, size: int) -> bytes:
        os.truncate(tmp_path / "f" / "x", 5)
        return read(handle, min(size, 3))

    monkeypatch.setattr(os, "read", cut)
    assert folder.read("x", LIMIT) == b"12345"


def test_what_others_write_beside_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two containers may have equal process numbers, and a name must not be shared."""
    monkeypatch.setattr("secrets.token_hex", lambda size: "same")
    folder = _folder(tmp_path / "f")
    folder.replace("x", b"old")
    (tmp_path / "f" / ".same.tmp").write_text("another writer's")
    with pytest.raises(FileExistsError, match="exists"):
        folder.replace("x", b"new")
    assert (tmp_path / "f" / ".same.tmp").read_text() == "another writer's"


def test_importing_opens_nothing() -> None:
    program = "import os, semel; print(os.listdir('/proc/self/fd'))"
    path = os.pathsep.join(sys.path)
    plain = "import os, numpy, ml_dtypes; print(os.listdir('/proc/self/fd'))"
    said = [
        subprocess.run(
            [sys.executable, "-c", text],
            env={"PYTHONPATH": path, "SEMEL_CACHE_DIR": "/nonexistent/x"},
            capture_output=True,
            timeout=240,
            check=True,
        ).stdout
        for text in (program, plain)
    ]
    assert said[0] == said[1]
