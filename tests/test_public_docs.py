"""What is public says what it is: docstrings, their examples, and the site that shows them."""

from __future__ import annotations

import doctest
import inspect
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from scripts.site import public, settings

import semel
from semel.config import Settings

ROOT = Path(__file__).parent.parent


def test_a_text_that_repeats_a_name_is_found() -> None:
    assert not public.says_more("num_outputs", "The num outputs.")
    assert not public.says_more("device", "")
    assert public.says_more("add", "x + other.")


def test_every_public_name_says_what_it_is() -> None:
    assert not public.silent()
    assert len(public.functions()) > 200


def test_every_function_is_in_one_family() -> None:
    listed = [f.path for functions in public.families().values() for f in functions]
    assert sorted(listed) == sorted(public.functions())


# ---------------------------------------------------------------- examples


#: What examples may use without an import.
_KNOWN = ("Buffer", "Graph", "Session", "Tensor", "Variable", "prepare")


def documented() -> list[tuple[str, Any]]:
    """Everything public whose docstring has an example."""
    found: list[tuple[str, Any]] = [(f.names[0], f.value) for f in public.functions().values()]
    for name, owner in {**public.classes(), **public.errors()}.items():
        found.append((name, owner))
        for member, value in public.members_of(owner).items():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(function, FunctionType):
                found.append((f"{name}.{member}", function))
    return [(name, value) for name, value in found if ">>>" in (inspect.getdoc(value) or "")]


def test_the_examples_of_docstrings_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"semel": semel, "np": np} | {n: getattr(semel, n) for n in _KNOWN}
    parser, said = doctest.DocTestParser(), list[str]()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    found = documented()
    for name, value in found:
        known = {**names, value.__name__: value}
        test = parser.get_doctest(inspect.getdoc(value) or "", known, name, None, None)
        runner.run(test, out=said.append)
    assert not said, "".join(said)
    assert len(found) > 10


# ---------------------------------------------------------------- settings


def test_the_page_of_settings_says_what_the_code_does() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    assert settings.table() in page, "run: python -m scripts.site.settings"


def test_every_setting_has_words() -> None:
    assert list(settings.described()) == [f"SEMEL_{f.name.upper()}" for f in fields(Settings)]


# ---------------------------------------------------------------- the site


def _built(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """What building the site of that tree said. With `--quiet`, `--strict` would count nothing."""
    if not find_spec("mkdocstrings"):
        pytest.skip("the extra semel[docs] is not installed")
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(site)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root / "src"), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Dead links and anchors, names that the reference lacks, pages in no menu are warnings."""
    done = _built(ROOT, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    html = (tmp_path / "index.html").read_text()
    assert not re.findall(r'(?:src|href)="(?://|https?://)[^"]*\.(?:js|css|woff2?)', html)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["dead links", "a name without words"])
def test_the_site_does_not_build_with(fault: str, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info")
    shutil.copytree(ROOT, root, ignore=ignored)
    reasons: tuple[str, ...]
    if fault == "dead links":
        reasons = ("not-there.md", "../src/not_there.py")
        with (root / "docs" / "index.md").open("a") as page:
            page.write("\n[a page](not-there.md), [a file](../src/not_there.py)\n")
    else:
        reasons = ("'semel.fft.fftshift' has a docstring that says nothing, or none",)
        source = root / "src" / "semel" / "fft.py"
        text = source.read_text()
        silent = re.sub(r'(def fftshift\(.*\n)    """.*"""\n', r"\1", text)
        assert silent != text
        source.write_text(silent)
    done = _built(root, tmp_path / "site")
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    for reason in reasons:
        assert reason in said, said
