"""The table of settings in docs/settings.md, from semel.config: python -m scripts.site.settings.

the docstring of config, fields of Settings  --table()-->  docs/settings.md
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from semel import config

PAGE = Path(__file__).parent.parent.parent / "docs" / "settings.md"
_BEGIN, _END = "<!-- settings:begin -->\n", "<!-- settings:end -->\n"
#: "; default: all our cores", or "cpu (the default)"
_DEFAULT = re.compile(r"; default:? ([^;,]+)(?=[;,]|$)|(?<=: )([\w.]+) \(the default\),")
_ENTRY = re.compile(r"^    (SEMEL_\w+) +(.*(?:\n {5,}.*)*)", re.MULTILINE)


def described() -> dict[str, str]:
    """What the docstring says of each variable of the environment."""
    found = _ENTRY.findall(config.__doc__ or "")
    return {name: " ".join(text.split()) for name, text in found}


def table() -> str:
    """All settings as Markdown."""
    words = described()
    lines = ["| variable | default | what it does |", "|---|---|---|"]
    for item in fields(config.Settings):
        name = f"SEMEL_{item.name.upper()}"
        text = words[name].replace("|", "\\|")
        told = _DEFAULT.search(text)
        default = _default(item) or (told[1] or told[2] if told else "none")
        lines.append(f"| `{name}` | {default} | {_DEFAULT.sub('', text)} |")
    return "\n".join(lines) + "\n"


def _default(item: Any) -> str:
    """The default as one writes it; empty where it depends, and the words say on what."""
    match item.default:
        case None:
            return ""
        case value if value is MISSING:
            return ""
        case bool() as value:
            return f"`{int(value)}`"
        case frozenset() as words:
            return f"`{','.join(sorted(words))}`" if words else "none"
        case int() as number if number >= 1 << 20:
            return f"`{number >> 20}M`"
        case value:
            return f"`{value}`"


def main() -> None:
    """Write the table to the page."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    PAGE.write_text(before + _BEGIN + table() + _END + rest.partition(_END)[2])


if __name__ == "__main__":
    main()
