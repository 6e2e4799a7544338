"""The documentation is true: links lead somewhere, code runs, printed text is what is printed.

Fences say what a block is. The `python` blocks of a page run one after the other in one namespace
and a folder of their own; `text output` behind one is what it prints, with `...` for lines or
parts of lines left out. `python needs NAME` runs where that package is installed; where it is onnx,
the folder has a model.onnx. `python fragment` only compiles; `text <stage>` of architecture.md
is what that stage prints for the page's example. Lines of `sh` blocks that begin with `semel` are
command lines that the parser takes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semel.cli.main import build_parser
from semel.codegen.emit import emit_kernel
from semel.ir.target import AVX2, AVX512, target_for
from semel.ir.text import format_graph
from semel.kernel.math import FUNCTIONS
from semel.kernel.text import format_kernel
from semel.lower import lower_schedule
from semel.lower.register_tiles import panel_width
from semel.passes import all_passes, run_passes
from semel.schedule.groups import build_schedule
from semel.tensor.realize import build_graph

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))

_FENCE = re.compile(r"^ *```(?P<info>[^\n`]*)\n(?P<body>.*?)^ *```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path) -> list[tuple[str, str]]:
    """(info, body) of every fenced block, without the indentation of a list around it."""
    found = []
    for match in _FENCE.finditer(path.read_text()):
        indent = len(match.group()) - len(match.group().lstrip(" "))
        lines = [line[indent:] for line in match.group("body").splitlines()]
        found.append((match.group("info").strip(), "\n".join(lines) + "\n"))
    return found


def code(info: str) -> list[Any]:
    """The blocks of all pages in docs that are marked `info`, as test parameters."""
    return [
        pytest.param(body, id=f"{name(page)}-{number}")
        for page in PAGES
        if page.is_relative_to(DOCS)
        for number, (found, body) in enumerate(blocks(page))
        if found == info
    ]


# ---------------------------------------------------------------- links


def links(path: Path) -> list[str]:
    prose = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", path.read_text()))
    return [link for link in _LINK.findall(prose) if "://" not in link]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    broken = [link for link in links(page) if not (page.parent / link.partition("#")[0]).exists()]
    assert not broken, f"{name(page)} links to {broken}"


def test_links_are_found_and_a_broken_one_shows(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[a](gone.md) and `[b](code.md)`\n```text\n[c](block.md)\n```\n")
    assert links(page) == ["gone.md"]
    assert any(links(p) for p in PAGES)


def anchors(page: Path) -> set[str]:
    """What a link may name on a page: its headings, as a host of Git and the site spell them."""
    text = _FENCE.sub("", page.read_text())
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[`*_]|\[([^\]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads)
    return {re.sub(r"[^\w -]", "", head).strip().replace(" ", "-") for head in plain}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_anchors_lead_to_a_heading(page: Path) -> None:
    found = [link.partition("#") for link in links(page) if "#" in link]
    broken = [
        f"{to}#{anchor}"
        for to, _, anchor in found
        if anchor not in anchors((page.parent / to) if to else page)
    ]
    assert not broken


def test_pages_that_the_sources_mention_exist() -> None:
    pattern = re.compile(r"docs/[\w/-]+\.md")
    sources = [p for d in ("src", "examples", "benchmarks") for p in (ROOT / d).rglob("*.py")]
    missing = {
        (name(path), found)
        for path in sources
        for found in pattern.findall(path.read_text())
        if not (ROOT / found).exists()
    }
    assert not missing


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            waiting += [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
    unreached = {name(page) for page in PAGES if page not in seen and page not in DECISIONS}
    assert not unreached


# ---------------------------------------------------------------- code


def command_lines() -> list[str]:
    """The lines of pages in which a command of ours is written out."""
    shells = [b for page in PAGES for info, b in blocks(page) if info == "sh"]
    indented = [re.sub(r"^    ", "", p.read_text(), flags=re.MULTILINE) for p in PAGES]
    prose = [text for page, text in zip(PAGES, indented, strict=True) if page.stem == "commands"]
    lines = [line.strip() for body in shells + prose for line in body.splitlines()]
    return [line.rpartition("&& ")[2] for line in lines if re.match(r"(.*&& )?semel ", line)]


def test_commands_are_such_that_the_parser_takes(capsys: pytest.CaptureFixture[str]) -> None:
    found, wrong = command_lines(), list[str]()
    for line in found:
        try:
            build_parser().parse_args(shlex.split(line, comments=True)[1:])
        except SystemExit:
            wrong.append(f"{line}: {capsys.readouterr().err}")
    assert not wrong, "\n".join(wrong)
    assert len(found) > 8


@dataclass(frozen=True)
class Block:
    """A `python` block of a page: what it needs, and what the page shows that it prints."""

    page: Path
    line: int
    body: str
    needs: str
    shown: str | None


def running_blocks(path: Path) -> list[Block]:
    """The blocks of a page that run, in order."""
    found: list[Block] = []
    text = path.read_text()
    fences = [(m, m["info"].strip()) for m in _FENCE.finditer(text)]
    bodies = [body for _, body in blocks(path)]
    for number, (match, info) in enumerate(fences):
        kind, _, needs = info.partition(" needs ")
        if kind != "python":
            continue
        after = fences[number + 1][1] if number + 1 < len(fences) else ""
        shown = bodies[number + 1] if after == "text output" else None
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(path, line, bodies[number], needs, shown))
    return found


def running_pages() -> list[Path]:
    return [p for p in PAGES if p.is_relative_to(DOCS) and running_blocks(p)]


#: Runs blocks in one namespace; what each prints goes to a file, one text a block.
_RUNNER = """
import contextlib, io, json, linecache, sys, types
from pathlib import Path

runner, main = sys.modules["__main__"], types.ModuleType("__main__")
sys.modules["__main__"] = main  # functions of a page can be pickled, as those of a program
printed = []
for label, body in json.loads(Path(sys.argv[1]).read_text()):
    out = io.StringIO()
    linecache.cache[label] = (len(body), None, body.splitlines(True), label)
    with contextlib.redirect_stdout(out):
        exec(compile(body, label, "exec"), main.__dict__)
    printed.append(out.getvalue())
Path(sys.argv[2]).write_text(json.dumps(printed))
"""


def write_model(path: Path) -> None:
    """The model.onnx that pages speak of: rows times a weight, and a mask for each."""
    onnx = pytest.importorskip("onnx")
    helper, real = onnx.helper, onnx.TensorProto.FLOAT
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Unsqueeze", ["mask", "last"], ["m"]),
            helper.make_node("Mul", ["h", "m"], ["y"]),
        ],
        "model",
        [value("x", real, ["batch", "seq", 8]), value("mask", real, ["batch", "seq_1"])],
        [value("y", real, ["batch", "seq", 4])],
        [
            onnx.numpy_helper.from_array(np.ones((8, 4), np.float32), "w"),
            onnx.numpy_helper.from_array(np.array([2]), "last"),
        ],
    )
    imports = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)


def run_blocks(found: list[Block], cache_dir: Path, folder: Path) -> list[str]:
    """What each block prints."""
    labels = [f"{name(b.page)} line {b.line}" for b in found]
    given, got = folder / "blocks.json", folder / "printed.json"
    given.write_text(json.dumps(list(zip(labels, (b.body for b in found), strict=True))))
    work = folder / "work"
    work.mkdir()
    if any(b.needs == "onnx" for b in found):
        write_model(work / "model.onnx")
    run_program(_RUNNER, cache_dir, str(given), str(got), folder=work)
    texts: list[str] = json.loads(got.read_text())
    return texts


@pytest.mark.parametrize("page", running_pages(), ids=name)
def test_the_code_of_a_page_runs_and_prints_what_it_shows(
    page: Path, session_cache_dir: Path, tmp_path: Path
) -> None:
    found = running_blocks(page)
    missing = sorted({b.needs for b in found if b.needs and not find_spec(b.needs)})
    runs = [b for b in found if b.needs not in missing or not b.needs]
    for block, printed_text in zip(
        runs, run_blocks(runs, session_cache_dir, tmp_path), strict=True
    ):
        if block.shown is not None:
            said = first_difference(block.shown, printed_text)
            assert not said, f"{name(page)}, line {block.line}: {said}"
    if missing:
        pytest.skip(f"{missing[0]} is not installed: a page is run without its blocks")


@pytest.mark.parametrize("body", code("python fragment"))
def test_a_fragment_is_python(body: str) -> None:
    compile(body, "fragment", "exec")


#: Python warns of every fork of a process with threads; ours find locks and LLVM at rest.
_WARNINGS = ("-W", "error", "-W", "ignore:This process:DeprecationWarning")


def run_program(body: str, cache_dir: Path, *arguments: str, folder: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *_WARNINGS, "-c", body, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=folder,
        env={
            "PYTHONPATH": str(ROOT / "src"),
            "SEMEL_CACHE_DIR": str(cache_dir),
            "LC_ALL": "C",
            "PATH": os.environ["PATH"],
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---------------------------------------------------------------- the example of the architecture

ARCHITECTURE = blocks(DOCS / "architecture.md")
STAGES = ("input", "graph", "schedule", "kernel-0", "kernel-1", "llvm")
#: Numbers of nodes and of SSA values depend on what else a process has made.
_NUMBERS = {"schedule": re.compile(r"(?<=%)\d+"), "llvm": re.compile(r"(?<=[a-z_])\d+\b")}


def shown(stage: str) -> str:
    (body,) = (body for info, body in ARCHITECTURE if info == f"text {stage}")
    return body


def program() -> str:
    (body,) = (body for info, body in ARCHITECTURE if info == "python")
    return body


@cache
def printed() -> dict[str, str]:
    """What every stage prints for the example, on the machine that the page names."""
    names: dict[str, Any] = {}
    exec(program().partition("plan = ")[0], names)
    target = target_for("x86_64", (*AVX2, *AVX512, "avx"))
    panel = panel_width(target)
    asked = build_graph(names["y"])
    graph = run_passes(asked, all_passes(target, panel))
    schedule = build_schedule(graph, panel=panel)
    kernels = [lowered.kernel for lowered in lower_schedule(schedule, target)]
    return {
        "input": format_graph(asked),
        "graph": format_graph(graph),
        "schedule": "\n".join(schedule.log),
        "kernel-0": format_kernel(kernels[0]),
        "kernel-1": format_kernel(kernels[1]),
        "llvm": emit_kernel(kernels[1], target, "softmax"),
    }


def first_difference(shown_text: str, printed_text: str) -> str:
    """Empty if the shown text is the printed one with lines left out at `...`."""
    waiting: Iterator[str] = iter(printed_text.rstrip("\n").splitlines())
    may_skip = False
    for line in shown_text.rstrip("\n").splitlines():
        if line.strip() == "...":
            may_skip = True
            continue
        fits = re.compile(".*".join(map(re.escape, line.split("...")))).fullmatch
        found = next((got for got in waiting if not may_skip or fits(got)), None)
        if found is None or not fits(found):
            return f"the page has {line!r}, the code prints {found!r}"
        may_skip = False
    rest = [] if may_skip else list(waiting)
    return f"the page lacks {rest[0]!r}" if rest else ""


@pytest.mark.parametrize("stage", STAGES)
def test_the_architecture_shows_what_a_stage_prints(stage: str) -> None:
    texts = [shown(stage), printed()[stage]]
    if stage in _NUMBERS:
        texts = [_NUMBERS[stage].sub("", text) for text in texts]
    assert not first_difference(*texts), f"architecture.md, {stage}"


def test_the_architecture_shows_what_its_example_prints(session_cache_dir: Path) -> None:
    assert run_program(program(), session_cache_dir) == shown("output")


def test_a_page_that_shows_something_else_is_found() -> None:
    assert not first_difference("a\n...\nd\n", "a\nb\nc\nd\n")
    assert not first_difference("a\n...\n", "a\nb\n")
    assert first_difference("a\n...\ne\n", "a\nb\nc\nd\n")
    assert first_difference("a\nc\n", "a\nb\nc\n")
    assert first_difference("a\n", "a\nb\n")
    assert not first_difference("took ... us\n", "took 12 us\n")
    assert first_difference("took ... us\n", "took 12 ms\n")


# ---------------------------------------------------------------- words and numbers


def glossary() -> list[tuple[str, Path]]:
    """(word, the file it lives in) of every row."""
    rows = re.findall(
        r"^\| ([\w ]+) \| .*\]\(([^)]+)\) \|$", (DOCS / "glossary.md").read_text(), re.MULTILINE
    )
    return [(word, (DOCS / link).resolve()) for word, link in rows]


@pytest.mark.parametrize(("word", "path"), [pytest.param(*row, id=row[0]) for row in glossary()])
def test_a_word_of_the_glossary_is_used_where_it_says(word: str, path: Path) -> None:
    # Names count too: KernelSignature and tile_stride use two words each, a file its own name.
    text = re.sub(r"(?<=[a-z])(?=[A-Z])|_|/", " ", f"{name(path)} {path.read_text()}").lower()
    assert re.search(rf"\b{word}", text), f"'{word}' does not occur in {name(path)}"


def test_the_glossary_explains_each_word_once() -> None:
    words = [word for word, _ in glossary()]
    assert len(words) > 50
    assert sorted(words) == sorted(set(words))


def test_the_table_of_errors_is_that_of_the_code() -> None:
    page = (DOCS / "decisions" / "0012-math.md").read_text()
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert {row[0]: (float(row[1]), float(row[2])) for row in rows} == {
        word: (f.float32_ulp, f.float64_ulp) for word, f in FUNCTIONS.items()
    }


@pytest.mark.parametrize("page", DECISIONS, ids=name)
def test_a_decision_has_a_number_of_its_own(page: Path) -> None:
    text = page.read_text()
    number = page.name[:4]
    assert text.startswith(f"# {number}. ")
    assert sum(other.name.startswith(number) for other in DECISIONS) == 1
