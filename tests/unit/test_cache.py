"""The kernel cache: whatever the disk does, a right answer or a miss."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.odd_files import ODD_FILES

from semel import config
from semel.cache import kernels as cache_module
from semel.cache.kernels import KernelCache, default_cache


def _fresh(folder: Path, max_bytes: int = 1 << 20) -> KernelCache:
    """A cache that remembers nothing: what another process would see."""
    return KernelCache(folder, max_bytes)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("kernels-*/*.kernel"))


# ----------------------------------------------------------------------------- entries


def test_what_is_put_is_found_here_and_by_others(tmp_path: Path) -> None:
    first = _fresh(tmp_path)
    assert first.get("k") is None
    first.put("k", b"code" * 100)
    assert first.get("k") == b"code" * 100
    second = _fresh(tmp_path)
    assert second.get("k") == b"code" * 100
    assert second.get("k") == b"code" * 100
    assert second.get("other") is None
    assert (second.status.disk_hits, second.status.memory_hits, second.status.misses) == (1, 1, 1)
    assert second.status.reason == ""


def test_an_entry_can_be_replaced_and_may_be_empty(tmp_path: Path) -> None:
    kernels = _fresh(tmp_path)
    kernels.put("k", b"old")
    kernels.put("k", b"")
    assert kernels.get("k") == b""
    assert _fresh(tmp_path).get("k") == b""


def test_any_key_is_a_file_name(tmp_path: Path) -> None:
    kernels = _fresh(tmp_path)
    for key in ("../../etc/passwd", "a/b", "", "ü" * 500, "\0"):
        kernels.put(key, key.encode())
    assert [_fresh(tmp_path).get(k) for k in ("../../etc/passwd", "\0")] == [
        b"../../etc/passwd",
        b"\0",
    ]
    assert len(_files(tmp_path)) == 5


def test_clear_forgets_everything(tmp_path: Path) -> None:
    kernels = _fresh(tmp_path)
    kernels.put("k", b"code")
    assert kernels.disk_bytes > 4
    kernels.clear()
    assert kernels.get("k") is None
    assert kernels.disk_bytes == 0


def test_without_a_directory_memory_still_works() -> None:
    kernels = KernelCache(None)
    kernels.put("k", b"code")
    assert kernels.get("k") == b"code"
    assert kernels.status.reason == "the disk cache is turned off"
    assert kernels.disk_bytes == 0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MEMORY_BYTES", 1000)
    kernels = KernelCache(None)
    for i in range(10):
        kernels.put(f"k{i}", bytes(300))
        kernels.get("k0")
    found = [i for i in range(10) if kernels.get(f"k{i}") is not None]
    assert found == [0, 8, 9]


def test_the_settings_choose_the_cache(tmp_path: Path) -> None:
    with config.override(cache_dir=tmp_path):
        default_cache().put("k", b"code")
        assert default_cache() is default_cache()
    assert len(_files(tmp_path)) == 1
    with config.override(cache=False, cache_dir=tmp_path):
        assert default_cache().get("k") is None


# ------------------------------------------------------------------------------- doubt


@pytest.mark.parametrize("offset", [0, 8, 12, 44, 52, 84, 90, -1])
def test_a_flipped_bit_is_a_miss_and_the_entry_goes(tmp_path: Path, offset: int) -> None:
    _fresh(tmp_path).put("k", b"code" * 10)
    (file,) = _files(tmp_path)
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)
    kernels = _fresh(tmp_path)
    assert kernels.get("k") is None
    assert "damaged" in kernels.status.reason
    assert not file.exists()


@pytest.mark.parametrize("size", [0, 10, 83, 84, 100, 123])
def test_a_cut_entry_is_a_miss(tmp_path: Path, size: int) -> None:
    _fresh(tmp_path).put("k", b"code" * 10)
    (file,) = _files(tmp_path)
    file.write_bytes(file.read_bytes()[:size])
    assert _fresh(tmp_path).get("k") is None
    assert not file.exists()


def test_an_entry_under_the_wrong_name_is_a_miss(tmp_path: Path) -> None:
    kernels = _fresh(tmp_path)
    kernels.put("a", b"code a")
    (file_a,) = _files(tmp_path)
    kernels.put("b", b"code b")
    (file_b,) = set(_files(tmp_path)) - {file_a}
    shutil.copy(file_a, file_b)
    assert _fresh(tmp_path).get("b") is None
    assert _fresh(tmp_path).get("a") == b"code a"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    _fresh(tmp_path).put("k", b"code")
    (file,) = _files(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert _fresh(tmp_path).get("k") is None


def test_an_entry_that_turns_out_to_be_unusable_goes(tmp_path: Path) -> None:
    kernels = _fresh(tmp_path)
    kernels.put("k", b"no object code")
    kernels.discard("k", "it does not load")
    assert kernels.get("k") is None
    assert kernels.status.reason == "it does not load"
    assert not _files(tmp_path)
    kernels.discard("k", "there is none")  # no harm


@pytest.mark.parametrize("kind", ODD_FILES)
def test_what_is_no_entry_is_a_miss_and_is_replaced(tmp_path: Path, kind: str) -> None:
    _fresh(tmp_path).put("k", b"code")
    (file,) = _files(tmp_path)
    file.unlink()
    ODD_FILES[kind](file)
    kernels = _fresh(tmp_path)
    assert kernels.get("k") is None
    assert "must" in kernels.status.reason
    assert not os.path.lexists(file)
    kernels.put("k", b"code")
    assert kernels.status.reason == ""
    assert _fresh(tmp_path).get("k") == b"code"


def test_what_is_no_entry_is_the_first_to_make_room(tmp_path: Path) -> None:
    kernels = _fresh(tmp_path, 10_000)
    kernels.put("k", bytes(1000))
    (file,) = _files(tmp_path)
    planted = file.with_name("0.kernel")
    planted.touch(0o600)
    os.truncate(planted, 8 << 30)
    full = file.with_name("1.kernel")
    full.mkdir()
    (full / "precious").write_text("kept")
    other = _fresh(tmp_path, 10_000)
    other.put("new", bytes(1000))
    assert not planted.exists()
    assert _fresh(tmp_path).get("k") == bytes(1000)
    assert _fresh(tmp_path).get("new") == bytes(1000)
    other.clear()
    assert _files(tmp_path) == [full]
    assert (full / "precious").read_text() == "kept"


def test_room_is_made_beyond_the_bound_alone_and_with_some_air(tmp_path: Path) -> None:
    kernels = _fresh(tmp_path)
    for i in range(8):
        kernels.put(str(i), bytes(1000))
        os.utime(sorted(_files(tmp_path), key=lambda f: f.stat().st_mtime_ns)[-1], (i + 1, i + 1))
    size = sum(f.stat().st_size for f in _files(tmp_path))
    exact = _fresh(tmp_path, size + size // 8)
    exact.put("last", bytes(1000))
    assert len(_files(tmp_path)) == 9
    bound = sum(f.stat().st_size for f in _files(tmp_path)) - 1
    _fresh(tmp_path, bound).put("0", bytes(1000))  # written again: one byte beyond the bound
    assert sum(f.stat().st_size for f in _files(tmp_path)) <= bound - bound // 8
    assert len(_files(tmp_path)) == 7


def test_clearing_follows_no_link(tmp_path: Path) -> None:
    kernels = _fresh(tmp_path / "cache")
    kernels.put("k", b"code")
    precious = tmp_path / "precious.kernel"
    precious.write_text("kept")
    (tmp_path / "cache" / "kernels-1" / "link.kernel").symlink_to(precious)
    kernels.clear()
    assert not _files(tmp_path / "cache")
    assert precious.read_text() == "kept"
    # Nor another directory that took the place of ours meanwhile.
    kernels.put("k", b"code")
    (tmp_path / "cache").rename(tmp_path / "aside")
    _fresh(tmp_path / "cache").put("k", b"another's")
    kernels.clear()
    assert _fresh(tmp_path / "cache").get("k") == b"another's"
    assert not _files(tmp_path / "aside")


# ---------------------------------------------------------------------------- the disk


def test_a_directory_swapped_under_us_is_not_read(tmp_path: Path) -> None:
    kernels = _fresh(tmp_path / "cache")
    kernels.put("mine", b"code")
    (tmp_path / "cache").rename(tmp_path / "aside")
    _fresh(tmp_path / "cache").put("k", b"planted")
    assert kernels.get("k") is None


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_parent_that_others_may_write_turns_the_disk_off(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "shared"
    _fresh(folder / "cache").put("k", b"planted")
    folder.chmod(mode)
    kernels = _fresh(folder / "cache")
    assert kernels.get("k") is None
    assert f"{folder} must not be writable by others" in kernels.status.reason
    assert "chmod go-w" in kernels.status.reason
    kernels.put("k", b"mine")
    assert kernels.get("k") == b"mine"
    assert (kernels.disk_entries, kernels.disk_bytes) == (0, 0)
    kernels.clear()
    folder.chmod(0o700)
    assert _fresh(folder / "cache").get("k") == b"planted"


def test_the_directory_is_private(tmp_path: Path) -> None:
    _fresh(tmp_path / "deep" / "er").put("k", b"code")
    (file,) = _files(tmp_path / "deep" / "er")
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_readable_directory_is_made_private(tmp_path: Path) -> None:
    folder = tmp_path / "kernels-1"
    folder.mkdir()
    folder.chmod(0o755)
    _fresh(tmp_path).put("k", b"code")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "kernels-1"
    folder.mkdir()
    folder.chmod(0o777)
    kernels = _fresh(tmp_path)
    kernels.put("k", b"code")
    assert kernels.get("k") == b"code"
    assert "must not be writable by others" in kernels.status.reason
    assert not _files(tmp_path)


def test_somebody_elses_directory_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fresh(tmp_path).put("k", b"code")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    kernels = _fresh(tmp_path)
    assert kernels.get("k") is None
    kernels.put("k", b"mine")
    assert kernels.get("k") == b"mine"
    assert "must be ours" in kernels.status.reason


def test_a_file_in_the_place_of_the_directory_is_not_fatal(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kernels = _fresh(tmp_path / "file")
    kernels.put("k", b"code")
    assert kernels.get("k") == b"code"
    assert kernels.get("other") is None
    assert kernels.status.reason


def _failing(code: int) -> Any:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("write", errno.ENOSPC),
        ("open", errno.ENOSPC),
        ("replace", errno.ENOSPC),
        ("mkdir", errno.EROFS),
        ("open", errno.EROFS),
        ("open", errno.EACCES),
        ("fstat", errno.EIO),
    ],
)
def test_a_full_or_read_only_disk_is_not_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    kernels = _fresh(tmp_path)
    monkeypatch.setattr(os, call, _failing(code))
    kernels.put("k", b"code")
    assert kernels.get("k") == b"code"
    assert kernels.get("other") is None
    assert os.strerror(code) in kernels.status.reason
    monkeypatch.undo()
    assert not _files(tmp_path)
    assert not list(tmp_path.glob("*/*.tmp"))
    kernels.put("k", b"code")
    assert kernels.status.reason == ""
    assert _fresh(tmp_path).get("k") == b"code"


def test_a_read_only_directory_can_still_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fresh(tmp_path).put("k", b"code")
    monkeypatch.setattr(os, "utime", _failing(errno.EROFS))
    assert _fresh(tmp_path).get("k") == b"code"


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:7]))
    _fresh(tmp_path).put("k", b"code" * 50)
    assert _fresh(tmp_path).get("k") == b"code" * 50


def test_a_directory_that_vanishes_is_made_again(tmp_path: Path) -> None:
    kernels = _fresh(tmp_path / "cache")
    kernels.put("a", b"code")
    shutil.rmtree(tmp_path / "cache")
    kernels.put("b", b"code")
    kernels.put("c", b"code")
    assert _fresh(tmp_path / "cache").get("c") == b"code"


# ------------------------------------------------------------------------------- bound


def test_the_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    kernels = _fresh(tmp_path, 10_000)
    for i in range(8):
        kernels.put(f"k{i}", bytes(1000))
        (newest,) = [file for file in _files(tmp_path) if file.stat().st_mtime > 2000]
        os.utime(newest, (1000 + i, 1000 + i))
    assert _fresh(tmp_path, 10_000).get("k0") is not None  # now the youngest
    _fresh(tmp_path, 10_000).put("big", bytes(3000))
    left = [i for i in range(8) if _fresh(tmp_path, 10_000).get(f"k{i}") is not None]
    assert 0 in left
    assert 1 not in left
    assert left[1:] == list(range(left[1], 8))
    assert _fresh(tmp_path, 10_000).get("big") is not None
    assert kernels.disk_bytes <= 10_000


def test_the_bound_holds_through_many_puts(tmp_path: Path) -> None:
    kernels = _fresh(tmp_path, 20_000)
    for i in range(60):
        kernels.put(f"k{i}", bytes(1000))
        assert kernels.disk_bytes <= 20_000
    assert len(_files(tmp_path)) > 10


def test_an_entry_beyond_the_bound_is_not_stored(tmp_path: Path) -> None:
    kernels = _fresh(tmp_path, 1000)
    kernels.put("k", bytes(1000))
    assert kernels.get("k") == bytes(1000)
    assert "exceeds the limit of 1000" in kernels.status.reason
    assert not _files(tmp_path)


def test_what_dead_processes_left_is_removed(tmp_path: Path) -> None:
    _fresh(tmp_path).put("k", b"code")
    old, new = (tmp_path / "kernels-1" / f".{name}.tmp" for name in ("old", "new"))
    old.write_text("")
    new.write_text("")
    os.utime(old, (0, 0))
    _fresh(tmp_path).put("k2", b"code")
    assert (old.exists(), new.exists()) == (False, True)


# ------------------------------------------------------------------------------ sharing


def _hammer(folder: str, seed: int, wrong: Any) -> None:
    kernels = KernelCache(Path(folder), 30_000)
    for turn in range(150):
        number = (turn * 7 + seed) % 40
        fresh = KernelCache(Path(folder), 30_000)
        found = fresh.get(f"k{number}")
        if found is not None and found != bytes([number]) * 1000:
            wrong.value += 1
        kernels.put(f"k{number}", bytes([number]) * 1000)
        if fresh.status.reason or kernels.status.reason:
            wrong.value += 1


def test_processes_share_a_directory(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    wrong = context.Value("i", 0)
    workers = [
        context.Process(target=_hammer, args=(str(tmp_path), seed, wrong)) for seed in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert wrong.value == 0
    assert 0 < KernelCache(tmp_path).disk_bytes <= 90_000
    assert not list(tmp_path.glob("*/*.tmp"))


def test_threads_share_a_cache(tmp_path: Path) -> None:
    kernels = _fresh(tmp_path, 30_000)
    errors: list[object] = []

    def work(seed: int) -> None:
        for turn in range(100):
            number = (turn + seed) % 20
            kernels.put(f"k{number}", bytes([number]) * 1000)
            if kernels.get(f"k{number}") != bytes([number]) * 1000:
                errors.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert kernels.status.reason == ""
