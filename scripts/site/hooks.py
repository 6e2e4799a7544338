"""What the site has besides the pages of docs: the reference, sources that pages link to, lists.

    docs/*.md  --on_files: more pages-->  --on_page_markdown: links, fences-->  site

A page may link to any file of the repository, as on a host of plain Git; the site shows that
file as a page of its own. A link to what does not exist is a warning, and `--strict` makes it
an error. So is a public name that the built reference does not have.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from scripts.site import public, reference  # noqa: E402  (beside us, wherever this is run from)

log = logging.getLogger("mkdocs.hooks.semel")

_FENCED = re.compile(r"^ *(```+).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^( *```)(python|text|sh|toml) +([\w -]+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]\n]*)\]\(([^)\s]+)\)")
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".sh": "bash"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add what is generated to the navigation."""
    nav: list[Any] = config.nav or []
    at = next(i for i, part in enumerate(nav) if "Contribute" in part)
    nav[at]["Contribute"] += [{"Decisions": "decisions/index.md"}, {"Changes": "changelog.md"}]
    nav.insert(at, {"Reference": reference.navigation()})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and a page for each file of the repository that a page links to."""
    made = {
        **reference.pages(),
        "decisions/index.md": decisions(),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "]("),
    }
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    linked = {
        target
        for file in list(files.documentation_pages())
        for _, target in outer_links(file.src_uri, file.content_string)
        if target.exists()
    }
    for target in sorted(linked):
        files.append(File.generated(config, source_page(target), content=show_source(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at pages of the site, and say of fences only what the highlighter knows."""
    here = page.file.src_uri
    if here.startswith("source/"):
        return markdown

    def relink(match: re.Match[str]) -> str:
        target = outside(here, match[2])
        if target is None:
            return match[0]
        if not target.exists():
            log.warning("%s links to '%s', which does not exist", here, match[2])
            return match[0]
        return f"[{match[1]}]({os.path.relpath(source_page(target), Path(here).parent)})"

    parts, at = [], 0
    for block in _FENCED.finditer(markdown):
        parts += [_LINK.sub(relink, markdown[at : block.start()]), fence(block[0])]
        at = block.end()
    return "".join([*parts, _LINK.sub(relink, markdown[at:])])


def fence(block: str) -> str:
    """A block of code whose info is ours: `python fragment`, `text output`."""
    first, _, rest = block.partition("\n")

    def known(match: re.Match[str]) -> str:
        kind = "output" if match[2] == "text" else match[3].split()[0]
        return f"{match[1]} {{ .{match[2]} .{kind} }}"

    return f"{_FENCE.sub(known, first)}\n{rest}"


def outside(here: str, link: str) -> Path | None:
    """The file or folder that a link of the page `here` means, if that is no page of docs."""
    path = link.partition("#")[0]
    if not path or "://" in path or path.startswith(("mailto:", "/")):
        return None
    target = Path(os.path.normpath(ROOT / "docs" / Path(here).parent / path))
    if target == ROOT / "docs" / "decisions":
        return target
    return None if target.is_relative_to(ROOT / "docs") else target


def outer_links(here: str, markdown: str) -> Iterator[tuple[str, Path]]:
    """The links of a page that lead out of docs."""
    for match in _LINK.finditer(_FENCED.sub("", markdown)):
        target = outside(here, match[2])
        if target is not None and target != ROOT / "docs" / "decisions":
            yield match[2], target


def source_page(target: Path) -> str:
    """Where the site shows a file or folder of the repository."""
    if target == ROOT / "docs" / "decisions":
        return "decisions/index.md"
    return f"source/{target.relative_to(ROOT).as_posix()}.md"


def show_source(target: Path) -> str:
    """A file as a page."""
    name = target.relative_to(ROOT).as_posix()
    head = f"---\ntitle: {name}\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n# {name}\n\n"
    if target.is_dir():
        inside = sorted(
            p.name + "/" * p.is_dir() for p in target.iterdir() if p.name[0] not in "_."
        )
        return head + "".join(f"- `{entry}`\n" for entry in inside)
    language = _LANGUAGES.get(target.suffix, "text")
    return f'{head}`````{{ .{language} linenums="1" }}\n{target.read_text()}`````\n'


def decisions() -> str:
    """The list of all decisions."""
    lines = ["# Decisions\n", "Why things are as they are; each page says what else was tried.\n"]
    for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def on_post_build(config: MkDocsConfig) -> None:
    """See to it that the reference has every public name, and words for it."""
    site = Path(config.site_dir)
    html = "".join(p.read_text() for p in sorted((site / "reference").rglob("*.html")))
    anchors = set(re.findall(r'\bid="([\w.]+)"', html))
    for name in reference.promised():
        if name not in anchors:
            log.warning("the reference lacks '%s'", name)
    for name in public.silent():
        log.warning("'%s' has a docstring that says nothing, or none", name)
