"""A damaged cache on disk: whatever lies there, the right code or a miss; no hang, no leak.

The default run is short and always the same; `tests.fuzz.long` says how to get a long one.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.fuzz.forgery import forge
from tests.fuzz.long import long, search

from semel.cache import kernels as cache_module
from semel.cache.kernels import KernelCache, load_cached
from semel.compiler.tuning_store import ChoiceMemory, Remembered
from semel.devices.cpu.elf import load_object
from semel.devices.cpu.toolchain import compile_ir, host_target

COUNT = 3
CALLS = ("open", "fstat", "read", "stat", "replace", "unlink")
WON = Remembered("panels=1", 0.75, "matmul", 2, {"n": 64})


@pytest.fixture(scope="module")
def codes() -> list[bytes]:
    """Object code of functions that tell who they are."""
    text = "define i64 @k{0}() nounwind {{\n  ret i64 {0}\n}}"
    return [compile_ir(text.format(number), host_target()) for number in range(COUNT)]


def _run(number: int, code: bytes) -> int:
    """Load and call, as a plan would."""
    loaded = load_object(code)  # holds the code while it runs
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(loaded.address(f"k{number}"))())


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _same(value: KernelCache) -> KernelCache:
    return value


class Meanwhile:
    """Damage that is done in the middle of what is being done: at one of our system calls."""

    def __init__(self, patch: pytest.MonkeyPatch, after: int, damage: Callable[[], Any]) -> None:
        self._left = after
        self._damage: Callable[[], Any] | None = damage
        for name in CALLS:
            patch.setattr(os, name, self._wrapped(getattr(os, name)))

    def _wrapped(self, call: Any) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left < 0 and self._damage is not None:
                damage, self._damage = self._damage, None
                damage()
            return call(*arguments, **options)

        return wrapped


def check_seed(seed: int, place: Path, codes: list[bytes]) -> None:
    """Damage a folder of good entries, use it, damage it while it is used, use it again."""
    rng = Random(seed)
    done: list[str] = []
    try:
        _check(rng, place, codes, done)
    except Exception as error:
        raise AssertionError(f"{done}: {error!r}") from error


def _check(rng: Random, place: Path, codes: list[bytes], done: list[str]) -> None:
    first = KernelCache(place)
    for number, code in enumerate(codes):
        first.put(f"k{number}", code)
    ChoiceMemory(place, {}).add({"key": WON})
    kernels, tuned = place / "kernels-1", place / "tuned-1"
    done += [forge(rng, kernels) for _ in range(rng.randint(0, 4))]
    done += [forge(rng, tuned) for _ in range(rng.randint(0, 2))]
    held = rng.choice([first, None])  # one who has the folder open already, or a newcomer
    del first
    for _ in range(2):
        before = _open_files()
        cache = held or KernelCache(place)
        cache._memory.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache_module, "default_cache", partial(_same, cache))
            Meanwhile(patch, rng.randrange(60), lambda: done.append(forge(rng, kernels)))
            for number in rng.sample(range(COUNT), COUNT):
                _, answer = load_cached(
                    f"k{number}", partial(codes.__getitem__, number), partial(_run, number)
                )
                assert answer == number
        found = ChoiceMemory(place, {}).entries()
        assert all(isinstance(value, Remembered) for value in found.values()), json.dumps(found)
        assert isinstance(cache.status.reason, str)
        assert cache.disk_entries >= 0
        if rng.random() < 0.3:
            cache.clear()
        del cache
        # One who holds the folder may have opened it anew.
        assert _open_files() <= before + (held is not None)


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_cache_gives_the_right_code_or_none(
    seed: int, tmp_path: Path, codes: list[bytes]
) -> None:
    check_seed(seed, tmp_path / "cache", codes)


@long
def test_newly_damaged_caches_give_the_right_code_or_none(
    tmp_path: Path, codes: list[bytes]
) -> None:
    def check(seed: int) -> None:
        place = tmp_path / str(seed)
        check_seed(seed, place, codes)
        place.chmod(0o700)
        shutil.rmtree(place)

    search(check)
