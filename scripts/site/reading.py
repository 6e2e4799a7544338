"""How our docstrings are read for the reference: examples, comments behind fields, other names.

>>> lines of a docstring      -->  a block of code
name: int  #: what it is      -->  the documentation of a field
clone_box = clone             -->  "The same as clone"
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe

_COMMENT = re.compile(r"#: ?(.*)$")


class OurDocstrings(griffe.Extension):
    """Says in griffe's terms what our sources say in ours."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring is None and (text := comment_of(attr) or other_name_of(attr)):
            attr.docstring = griffe.Docstring(text, parent=attr)


def fence_examples(text: str) -> str:
    """Every run of `>>>` lines with what they print becomes a block of code."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        starts = line.startswith(">>>")
        if starts and not inside:
            lines += ["", "```pycon"]
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


@cache
def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def comment_of(attr: griffe.Attribute) -> str:
    """The comment behind a field, or above it, that begins with `#:`."""
    if attr.lineno is None or not isinstance(attr.filepath, Path):
        return ""
    lines = _lines(attr.filepath)
    if match := _COMMENT.search(lines[attr.lineno - 1]):
        return match[1]
    above: list[str] = []
    for line in reversed(lines[: attr.lineno - 1]):
        if not line.strip().startswith("#:"):
            break
        above.insert(0, line.strip()[2:].strip())
    return " ".join(above)


def other_name_of(attr: griffe.Attribute) -> str:
    """Of a member that is another one, under another name: which."""
    value = attr.value
    if isinstance(value, griffe.ExprName) and attr.parent and value.name in attr.parent.members:
        return f"The same as `{value.name}`."
    return ""
