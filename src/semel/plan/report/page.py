"""A profiled run as one HTML page that needs nothing but itself.

    report as plain data, records  --render_page-->  str

Style, script and data are inside the page, and its content policy allows nothing from
outside: it opens from a mail attachment, offline. Opened with `?selftest` it clicks through
itself and writes the outcome into the element `selftest`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from semel.plan.report.assembly import disassemble
from semel.plan.report.records import KernelProfile
from semel.runtime.kernel import CachedKernel


def render_page(report: Mapping[str, Any], profiles: Sequence[KernelProfile]) -> str:
    """The page for a report as plain data, and the records whose kernels it shows."""
    numbers, sources = kernel_sources(profiles)
    ops = [{**op, "source": n} for op, n in zip(report["ops"], numbers, strict=True)]
    data = json.dumps({**report, "ops": ops, "sources": sources}, separators=(",", ":"))
    parts = {
        "/*CSS*/": _read("page.css"),
        "/*JS*/": _read("page.js"),
        # Inside a script element only "<" could end the data early.
        "/*DATA*/": data.replace("<", "\\u003c"),
    }
    page = _read("page.html")
    for mark, text in parts.items():
        page = page.replace(mark, text, 1)
    return page


def kernel_sources(profiles: Sequence[KernelProfile]) -> tuple[list[int], list[dict[str, str]]]:
    """For each record the number of its source (-1: none), and the distinct sources."""
    numbers: dict[tuple[CachedKernel, str], int] = {}
    found: list[int] = []
    for profile in profiles:
        kernel = profile.kernel
        if kernel is None:
            found.append(-1)
        else:
            found.append(numbers.setdefault((kernel, profile.name), len(numbers)))
    return found, [_source(kernel, name) for kernel, name in numbers]


def _source(kernel: CachedKernel, name: str) -> dict[str, str]:
    """What a kernel is made of; its symbol, which is a hash, as the name of the call."""
    shown = {"kernel": kernel.text}
    if kernel.code is not None:
        shown["assembly"] = disassemble(kernel.code).replace(kernel.entry_point, name)
    return shown


def _read(name: str) -> str:
    return files("semel.plan.report").joinpath(name).read_text("utf-8")
