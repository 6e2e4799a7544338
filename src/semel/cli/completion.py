"""`semel completion`: what a shell needs to complete our command lines.

    the parser  --script_for(shell)-->  a script for bash, zsh or fish

The script is made from the parser itself, so that it knows every command and option of this
version. To use it: `eval "$(semel completion bash)"`, the same for zsh, `semel completion fish |
source`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass

from semel.cli.grammar import Commands, add_command

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command: its spellings, what may follow it, and what it is for."""

    names: tuple[str, ...]
    takes_value: bool
    choices: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command as a shell must know it; `words` are the choices of its arguments."""

    name: str
    text: str
    options: tuple[Option, ...]
    words: tuple[str, ...]
    takes_file: bool


def describe_parser(parser: argparse.ArgumentParser) -> tuple[CommandLine, ...]:
    """All commands of a parser."""
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    texts = {action.dest: action.help or "" for action in commands._choices_actions}
    return tuple(_describe(name, texts[name], made) for name, made in commands.choices.items())


def _describe(name: str, text: str, parser: argparse.ArgumentParser) -> CommandLine:
    options: list[Option] = []
    words: list[str] = []
    takes_file = False
    for action in parser._actions:
        choices = tuple(str(choice) for choice in action.choices or ())
        if action.option_strings:
            takes_value = action.nargs != 0
            names = tuple(action.option_strings)
            options.append(Option(names, takes_value, choices, action.help or ""))
        else:
            words += choices
            takes_file = takes_file or not choices
    return CommandLine(name, text, tuple(options), tuple(words), takes_file)


def script_for(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script that teaches a shell."""
    make = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]
    return make(describe_parser(parser))


def _bash(commands: tuple[CommandLine, ...]) -> str:
    lines = [
        "_semel() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        "    local words='' files=''",
        "    if [ $COMP_CWORD -eq 1 ]; then",
        f"        words='{' '.join(c.name for c in commands)} --help --version'",
        "    else",
        '        case "${COMP_WORDS[1]}:$before" in',
    ]
    for command in commands:
        for option in command.options:
            if option.takes_value:
                pattern = "|".join(f"{command.name}:{name}" for name in option.names)
                given = f"words='{' '.join(option.choices)}'" if option.choices else "files=yes"
                lines.append(f"            {pattern}) {given} ;;")
        names = [name for option in command.options for name in option.names]
        files = "; files=yes" if command.takes_file else ""
        words = " ".join((*command.words, *names))
        lines.append(f"            {command.name}:*) words='{words}'{files} ;;")
    lines += [
        "        esac",
        "    fi",
        '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
        '    if [ -n "$files" ]; then COMPREPLY+=($(compgen -f -- "$word")); fi',
        "}",
        "complete -o filenames -F _semel semel",
    ]
    return "\n".join(lines)


def _zsh(commands: tuple[CommandLine, ...]) -> str:
    lines = [
        "#compdef semel",
        "_semel() {",
        "    if (( CURRENT == 2 )); then",
        "        local -a commands=(",
    ]
    lines += [f"            {_quoted(f'{c.name}:{c.text}')}" for c in commands]
    lines += [
        "        )",
        "        _describe command commands",
        "        return",
        "    fi",
        "    case $words[2]:$words[CURRENT-1] in",
    ]
    for command in commands:
        for option in command.options:
            if option.takes_value:
                pattern = "|".join(f"{command.name}:{name}" for name in option.names)
                given = f"compadd {' '.join(option.choices)}" if option.choices else "_files"
                lines.append(f"        {pattern}) {given} ;;")
        names = [name for option in command.options for name in option.names]
        files = "; _files" if command.takes_file else ""
        words = " ".join((*command.words, *names))
        lines.append(f"        {command.name}:*) compadd -- {words}{files} ;;")
    lines += ["    esac", "}", "compdef _semel semel"]
    return "\n".join(lines)


def _fish(commands: tuple[CommandLine, ...]) -> str:
    lines = []
    for command in commands:
        text = _quoted(command.text)
        lines.append(f"complete -c semel -n __fish_use_subcommand -f -a {command.name} -d {text}")
        seen = f"-n '__fish_seen_subcommand_from {command.name}'"
        if command.words:
            lines.append(f"complete -c semel {seen} -f -a '{' '.join(command.words)}'")
        for option in command.options:
            names = " ".join(_fish_name(name) for name in option.names)
            value = " -r" if option.takes_value else ""
            value += f" -f -a '{' '.join(option.choices)}'" if option.choices else ""
            lines.append(f"complete -c semel {seen} {names}{value} -d {_quoted(option.text)}")
    return "\n".join(lines)


def _fish_name(name: str) -> str:
    return f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def add_parser(
    commands: Commands[argparse.ArgumentParser], build: Callable[[], argparse.ArgumentParser]
) -> None:
    """The grammar of the command; `build` makes the parser that scripts are for."""

    def run(arguments: argparse.Namespace) -> int:
        script = script_for(arguments.shell, build())
        print(
            json.dumps({"shell": arguments.shell, "script": script}) if arguments.json else script
        )
        return 0

    text = "a script that lets a shell complete semel's commands and options"
    parser = add_command(commands, "completion", text, run)
    parser.add_argument("shell", choices=SHELLS)
