"""Tables as HTML, for notebooks: plain elements, no style, every cell escaped.

caption, head, rows  --html_table-->  <table>...</table>
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; columns that are empty throughout are left out, but for those without a head."""
    shown = [i for i, name in enumerate(head) if not name or any(row[i] for row in rows)]
    lines = [_row("th", [head[i] for i in shown])]
    lines += [_row("td", [row[i] for i in shown]) for row in rows]
    return f"<table><caption>{escape(caption)}</caption>{''.join(lines)}</table>"


def html_block(line: str, tables: Iterable[str], fact: str = "") -> str:
    """A line of code, what else there is to say, and tables below it."""
    said = f"<p>{escape(fact)}</p>" if fact else ""
    return f"<div><p><code>{escape(line)}</code></p>{said}{''.join(tables)}</div>"


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
