"""What `import semel` gives, and what it must not do."""

from __future__ import annotations

import json
import subprocess
import sys

import semel

_PROBE = """
import json, os, sys, threading

def threads():
    try:
        return len(os.listdir("/proc/self/task"))
    except FileNotFoundError:
        return threading.active_count()

opened = []
ALLOWED = (".py", ".pyc", ".so", ".pth", ".dylib")

def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and "semel" in arguments[0]:
        if not arguments[0].endswith(ALLOWED) and ".pyc." not in arguments[0]:
            opened.append(arguments[0])

import numpy, ml_dtypes  # third parties may start what they like
before = threads()
sys.addaudithook(watch)
import semel
print(json.dumps({
    "llvmlite": sorted(m for m in sys.modules if m.split(".")[0] == "llvmlite"),
    "threads": threads() - before,
    "opened": opened,
}))
"""


def _probe() -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], check=True, capture_output=True, text=True, timeout=60
    )
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_all_is_sorted_and_without_repeats() -> None:
    assert list(semel.__all__) == sorted(set(semel.__all__))


def test_every_public_name_is_importable() -> None:
    missing = [name for name in semel.__all__ if not hasattr(semel, name)]
    assert not missing


def test_every_public_name_is_listed() -> None:
    hidden = [
        name
        for name, value in vars(semel).items()
        if not name.startswith("_")
        and name not in semel.__all__
        and name != "annotations"
        and getattr(value, "__name__", "") != f"semel.{name}"  # a submodule
    ]
    assert not hidden


def test_importing_is_light() -> None:
    """No llvmlite, no thread, no file but its own modules."""
    assert _probe() == {"llvmlite": [], "threads": 0, "opened": []}
