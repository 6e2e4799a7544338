"""Every example runs from a clean process, and so does the tour in the README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MAX_LINES = 70


def run(*command: str, cache_dir: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={"PYTHONPATH": str(ROOT / "src"), "SEMEL_CACHE_DIR": str(cache_dir), "LC_ALL": "C"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_runs_and_says_something(path: Path, session_cache_dir: Path) -> None:
    assert run(str(path), cache_dir=session_cache_dir).strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_fits_a_screen(path: Path) -> None:
    assert len(path.read_text().splitlines()) < MAX_LINES


def test_examples_show_what_they_promise(session_cache_dir: Path) -> None:
    inside = run(str(ROOT / "examples" / "03_look_inside.py"), cache_dir=session_cache_dir)
    for part in ("softmax", "the schedule: 1 kernel", "tiles", "define void @softmax", "machine"):
        assert part in inside
    sizes = run(str(ROOT / "examples" / "04_variable_sizes.py"), cache_dir=session_cache_dir)
    assert "compiled 1 time" in sizes
    assert "must lie in [1, 512], got 513" in sizes
    by_hand = run(str(ROOT / "examples" / "06_hand_built_plan.py"), cache_dir=session_cache_dir)
    assert by_hand.startswith("[ 0.  4.  8. 12. 16.]")
    loops = run(str(ROOT / "examples" / "07_loops.py"), cache_dir=session_cache_dir)
    assert "compiled 1 time" in loops and "lstm: steps times" in loops
    decoder = run(str(ROOT / "examples" / "decoder.py"), cache_dir=session_cache_dir)
    assert "{'cursor': 31}" in decoder


def test_the_tour_of_the_readme_runs_and_prints_what_it_says(session_cache_dir: Path) -> None:
    (tour,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    said = run("-c", tour, cache_dir=session_cache_dir)
    assert "(37, 384)\n(8, 384) compiled 1 time\n" in said
    assert "[plan] variable 'n' must lie in [1, 512], got 513." in said


def test_the_readme_gives_exactly_two_commands() -> None:
    commands = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert commands == [
        "pip install . && semel demo\n",
        "pip install '.[dev]' && python -m pytest -n 2\n",
    ]
