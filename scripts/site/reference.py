"""The pages of the reference, written from what is public.

    public.py  --pages(): Markdown with `::: name` in it-->  mkdocstrings  -->  HTML

The lists come from the names that an import has; what stands under a name is read from the
sources, so that nothing runs.
"""

from __future__ import annotations

import argparse
from typing import Any

from scripts.site import public
from scripts.site.public import Function

import semel
from semel import DType, Tensor

_OPERATORS = (
    ("`x + y`, `-`, `*`, `/`", "arithmetic; integers divided by `/` give float32"),
    ("`x // y`, `x % y`, `divmod(x, y)`", "the quotient rounded down, and what it leaves"),
    ("`x ** y`, `-x`, `abs(x)`", "powers, signs"),
    ("`x @ y`", "[`matmul`][semel.matmul]"),
    ("`x & y`, `|`, `^`, `~x`, `<<`, `>>`", "bits of integers and bool"),
    ("`x == y`, `!=`, `<`, `<=`, `>`, `>=`", "by element; a bool tensor"),
    ("`x[...]`", "numbers, slices, `None`, `...`, index arrays, masks, as in NumPy"),
    ("`x[...] = y`, `x += y`", "another value behind this name; tensors made before keep theirs"),
    ("`len(x)`, `for row in x`, `y in x`", "the first axis; membership computes"),
    ("`bool(x)`, `int(x)`, `float(x)`", "the value of one element, computed now"),
    ("`np.asarray(x)`, `memoryview(x)`", "the value, computed now"),
)


def navigation() -> list[Any]:
    """The reference in the site's navigation."""
    families = [{public.title_of(m): family_page(m)} for m in public.families()]
    classes = [{t: f"reference/{k}.md"} for k, (t, _) in public.pages_of_classes().items()]
    return [
        "reference/index.md",
        {"Classes": classes},
        {"Functions": families},
        {"Errors": "reference/errors.md"},
        {"Commands": "reference/commands.md"},
    ]


def pages() -> dict[str, str]:
    """Every generated page by its path."""
    made = {"reference/index.md": index(), "reference/errors.md": errors()}
    made["reference/commands.md"] = commands()
    for key, (title, names) in public.pages_of_classes().items():
        made[f"reference/{key}.md"] = class_page(title, names)
    for module, functions in public.families().items():
        made[family_page(module)] = functions_page(module, functions)
    return made


def promised() -> list[str]:
    """The anchors that the built reference must have."""
    names = [n for f in public.functions().values() for n in anchors(f)]
    for name, owner in public.classes().items():
        names += [f"semel.{name}", *(f"semel.{name}.{m}" for m in own_members(owner))]
    return sorted([*names, *(f"semel.{n}" for n in public.errors()), *dtypes()])


def family_page(module: str) -> str:
    """Where the functions of a module stand."""
    return f"reference/functions/{module.rpartition('.')[2]}.md"


def anchors(function: Function) -> list[str]:
    """The names of a function as links say them."""
    return [n if n.startswith("semel.") else f"semel.{n}" for n in function.names]


def own_members(owner: type) -> list[str]:
    """The members that stand under a class: of `Tensor` those that are no function of elsewhere."""
    members = public.members_of(owner)
    if owner is Tensor:
        return [n for n in members if public.is_defined_in(Tensor, n)]
    return [n for n in members if not public.is_other_name(owner, n)]


def dtypes() -> list[str]:
    """The names of dtypes."""
    return [f"semel.{n}" for n in semel.__all__ if isinstance(getattr(semel, n), DType)]


def errors() -> str:
    """All errors, with whom they are one of."""
    lines = ["# Errors\n", "[Errors and what to do](../errors.md) says when they come.\n"]
    lines += [_directive(f"semel.{name}", members=False) for name in public.errors()]
    return "\n".join(lines)


def index() -> str:
    """Every public name with a line."""
    lines = [
        "# Reference\n",
        "Every public name. A function that takes a tensor first is a method too, under the same "
        'name: `semel.softmax(x, 1)` is `x.softmax(1)`. A default `same_as("axis")` in a signature '
        "says that the argument is another name for that one.\n",
    ]
    for key, (title, names) in public.pages_of_classes().items():
        lines += [f"## [{title}]({key}.md)\n", "| | |", "|---|---|"]
        known = public.classes()
        lines += [_row(f"semel.{n}", n, public.first_line(known[n])) for n in names]
        lines.append("")
    for module, functions in public.families().items():
        page = family_page(module).removeprefix("reference/")
        lines += [f"## [{public.title_of(module)}]({page})\n", "| | |", "|---|---|"]
        lines += [_row(anchors(f)[0], f.names[0], f.summary) for f in functions]
        lines.append("")
    lines += ["## [Errors](errors.md)\n", "| | |", "|---|---|"]
    lines += [_row(f"semel.{n}", n, public.first_line(e)) for n, e in public.errors().items()]
    return "\n".join(lines) + "\n"


def _row(target: str, name: str, text: str) -> str:
    escaped = text.replace("|", "\\|")
    return f"| [`{name.removeprefix('semel.')}`][{target}] | {escaped} |"


def functions_page(module: str, functions: list[Function]) -> str:
    """One family."""
    lines = [f"# {public.title_of(module)}\n", f"{public.intro_of(module)}\n"]
    for function in functions:
        first, *others = anchors(function)
        lines += [f"[](){{#{name}}}" for name in others]
        is_listed = first.count(".") == 1 or first.startswith("semel.Tensor.") is False
        target = first if is_listed else function.path
        if not is_listed:
            lines.append(f"[](){{#{first}}}")
        names = ", ".join(f"`{n}`" for n in function.names)
        lines += ["", _directive(target), f"Names: {names}\n"]
    return "\n".join(lines)


def class_page(title: str, names: list[str]) -> str:
    """Some classes."""
    lines = [f"# {title}\n"]
    for name in names:
        if name == "Tensor":
            lines += [_directive("semel.Tensor", members=own_members(Tensor)), _tensor_table()]
        else:
            lines.append(_directive(f"semel.{name}"))
        if name == "DType":
            lines += ["", "The dtypes:\n", "| | bits | |", "|---|---|---|"]
            lines += [_dtype_row(path.removeprefix("semel.")) for path in dtypes()]
            lines.append("")
    return "\n".join(lines)


def _dtype_row(name: str) -> str:
    dtype = getattr(semel, name)
    kinds = {"b": "bool", "i": "signed integer", "u": "unsigned integer", "f": "float"}
    narrow = ", stored and cast only" if dtype.is_narrow else ""
    return (
        f'| <a id="semel.{name}"></a>`semel.{name}` | {dtype.bits} | {kinds[dtype.kind]}{narrow} |'
    )


def _tensor_table() -> str:
    lines = ["### Operators\n", "| | |", "|---|---|"]
    lines += [f"| {written} | {meaning} |" for written, meaning in _OPERATORS]
    lines += ["", "### Methods by family\n", "| | |", "|---|---|"]
    for module, functions in public.families().items():
        names = sorted(
            (n.removeprefix("Tensor."), anchors(f)[0])
            for f in functions
            for n in f.names
            if n.startswith("Tensor.")
        )
        if names:
            links = ", ".join(f"[`{short}`][{target}]" for short, target in names)
            page = family_page(module).removeprefix("reference/")
            lines.append(f"| [{public.title_of(module)}]({page}) | {links} |")
    return "\n".join(lines) + "\n"


def _directive(path: str, members: list[str] | bool | None = None) -> str:
    lines = [f"::: {path}", "    options:", "      heading_level: 2"]
    if members is not None:
        shown = str(members).lower() if isinstance(members, bool) else str(members)
        lines.append(f"      members: {shown}")
    return "\n".join(lines) + "\n"


def commands() -> str:
    """What every command says of itself."""
    from semel.cli.main import build_parser

    parser = build_parser()
    lines = [
        "# Commands\n",
        "What `semel COMMAND --help` says. [The command line](../commands.md)\n",
    ]
    for name, command in subcommands(parser).items():
        lines += [f"## semel {name}\n", "```text", command.format_help().rstrip(), "```\n"]
    return "\n".join(lines)


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of the commands by name."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found
