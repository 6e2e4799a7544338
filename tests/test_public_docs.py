"""What is public says what it is: docstrings, their examples, and the site that shows them."""

from __future__ import annotations

import doctest
import inspect
import re
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


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower()))


def says_more(name: str, text: str) -> bool:
    """Whether a text has words beside those of the name itself."""
    own = words(name.replace("_", " ")) | {"a", "an", "the", "of", "this", "function", "returns"}
    return bool(words(text) - own) or bool(re.search(r"[^\w\s.]", text))


def test_a_text_that_repeats_a_name_is_found() -> None:
    assert not says_more("num_outputs", "The num outputs.")
    assert not says_more("device", "")
    assert says_more("add", "x + other.")


def test_every_public_function_says_what_it_does() -> None:
    silent = [
        f.names for f in public.functions().values() if not says_more(f.short_name, f.summary)
    ]
    assert not silent
    assert len(public.functions()) > 200


def test_every_public_class_and_error_says_what_it_is() -> None:
    known = {**public.classes(), **public.errors()}
    silent = [n for n, kind in known.items() if not says_more(n, inspect.getdoc(kind) or "")]
    assert not silent


@pytest.mark.parametrize("owner", public.classes().values(), ids=list(public.classes()))
def test_every_public_member_says_what_it_is(owner: type) -> None:
    silent = [
        name
        for name in public.members_of(owner)
        if not says_more(name, public.doc_of_member(owner, name))
    ]
    assert not silent


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


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Dead links and anchors, names that the reference lacks, pages in no menu are warnings."""
    if not find_spec("mkdocstrings"):
        pytest.skip("the extra semel[docs] is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    html = (tmp_path / "index.html").read_text()
    assert not re.findall(r'(?:src|href)="(?://|https?://)[^"]*\.(?:js|css|woff2?)', html)
