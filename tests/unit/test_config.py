"""Settings: parsing, scopes, and messages that name the variable and the value."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from semel import Buffer, ExecutionPlanBuilder, Session, Tensor, config
from semel.config import Settings, override, read_settings, set_num_threads, settings
from semel.errors import UnsupportedError, UserError


def test_an_empty_environment_gives_the_defaults() -> None:
    found = read_settings({})
    assert found == Settings()
    assert found.threads is None
    assert found.cache
    assert found.fusion
    assert not found.verify
    assert found.cache_bytes == 512 << 20


def test_every_variable_reaches_its_field() -> None:
    found = read_settings(
        {
            "SEMEL_THREADS": "3",
            "SEMEL_CACHE": "0",
            "SEMEL_CACHE_DIR": "/somewhere",
            "SEMEL_CACHE_BYTES": "2G",
            "SEMEL_DEBUG": "poison, jitter",
            "SEMEL_DUMP": "/dump",
            "SEMEL_LOG": "schedule,memory",
            "SEMEL_VERIFY": "1",
            "SEMEL_FUSION": "off",
            "SEMEL_CPU_PARTITIONS": "4",
            "SEMEL_SPIN_US": "7",
        }
    )
    assert found == Settings(
        threads=3,
        cache=False,
        cache_dir=Path("/somewhere"),
        cache_bytes=2 << 30,
        debug=frozenset({"poison", "jitter"}),
        dump=Path("/dump"),
        log=frozenset({"schedule", "memory"}),
        verify=True,
        fusion=False,
        cpu_partitions=4,
        spin_us=7,
    )


def test_every_field_has_a_parser_and_a_line_of_documentation() -> None:
    for name in Settings.__dataclass_fields__:
        assert name in config._PARSERS
        assert f"SEMEL_{name.upper()} " in (config.__doc__ or "")


def test_an_empty_value_counts_as_unset() -> None:
    assert read_settings({"SEMEL_THREADS": "", "SEMEL_DUMP": " "}) == Settings()


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("4k", 4096), ("3M", 3 << 20), ("1g", 1 << 30)]
)
def test_sizes_take_units(text: str, size: int) -> None:
    assert read_settings({"SEMEL_CACHE_BYTES": text}).cache_bytes == size


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert Settings().cache_dir == Path("/xdg/semel")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/me")
    assert Settings().cache_dir == Path("/home/me/.cache/semel")


def test_a_user_without_a_home_has_a_cache_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert Settings().cache_dir == Path(f"/tmp/semel-{os.getuid()}")


@pytest.mark.parametrize(
    ("name", "value", "must"),
    [
        ("SEMEL_THREADS", "many", "an integer"),
        ("SEMEL_THREADS", "0", r"an integer in \[1, 1024\]"),
        ("SEMEL_CACHE", "maybe", "0 or 1"),
        ("SEMEL_CACHE_BYTES", "5T", "a number of bytes"),
        ("SEMEL_CACHE_BYTES", "-1", "an integer in"),
        ("SEMEL_DEBUG", "posion", "jitter, poison"),
        ("SEMEL_VERIFY", "2", "0 or 1"),
        ("SEMEL_SPIN_US", "-5", "an integer in"),
        ("SEMEL_DUMP", "~no-such-user/dump", "a path below a home that exists"),
        ("SEMEL_CACHE_DIR", "~no-such-user", "a path below a home that exists"),
    ],
)
def test_a_bad_value_names_variable_and_value(name: str, value: str, must: str) -> None:
    with pytest.raises(UserError, match=rf"^\[config\] {name} must .*{must}.*got '?{value}'?\.$"):
        read_settings({name: value})


def test_override_is_undone_even_after_an_error() -> None:
    before = settings()
    with pytest.raises(RuntimeError, match="on purpose"), override(threads=5, fusion=False):
        assert settings().threads == 5
        assert not settings().fusion
        raise RuntimeError("on purpose")
    assert settings() is before


def test_overrides_nest() -> None:
    with override(threads=2), override(fusion=False):
        assert (settings().threads, settings().fusion) == (2, False)


def test_override_refuses_unknown_fields() -> None:
    with (
        pytest.raises(UserError, match=r"fields must be among threads, .*got colour"),
        override(colour=1),
    ):
        pass


def test_set_num_threads_lasts_until_the_scope_ends() -> None:
    with override(threads=1):
        set_num_threads(4)
        assert settings().threads == 4
    assert settings().threads != 4


@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "2", 5000, None])
def test_set_num_threads_refuses(bad: object) -> None:
    with pytest.raises(UserError, match=r"\[set_num_threads\] n must be an integer in \[1, 1024\]"):
        set_num_threads(bad)  # type: ignore[arg-type]


def test_settings_are_the_same_in_every_thread() -> None:
    seen: list[int | None] = []
    with override(threads=9):
        thread = threading.Thread(target=lambda: seen.append(settings().threads))
        thread.start()
        thread.join()
    assert seen == [9]


def test_the_environment_is_read_late_and_once() -> None:
    program = (
        "import os, semel.config as c; os.environ['SEMEL_THREADS'] = '3'; a = c.settings().threads;"
        "os.environ['SEMEL_THREADS'] = '4'; assert (a, c.settings().threads) == (3, 3)"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SEMEL_")}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=240)


def test_the_device_of_what_names_none() -> None:
    assert read_settings({"SEMEL_DEVICE": "cpu:1"}).device == "cpu:1"
    with config.override(device="cpu:1"):
        x = Tensor.input("x", (4,))
        assert (x + 1).prepare().device == "cpu:1"
        assert (x + 1).prepare(device="cpu").device == "cpu"
        assert Session().device == "cpu:1"
        assert Buffer.empty((4,), "float32").device == Buffer(np.zeros(4)).device == "cpu:1"
        assert ExecutionPlanBuilder().device == "cpu:1"
    with (
        config.override(device="abacus"),
        pytest.raises(UnsupportedError, match=r"must be one of cpu.*got 'abacus'"),
    ):
        (x + 1).prepare()
