"""Arguments and results as trees: dicts, lists, tuples, named tuples and dataclasses of leaves.

    value  --flatten-->  Spec (hashable), leaves with their paths  --rebuild-->  value

A spec says everything but the leaves: two values with equal specs differ in their leaves alone.
What is neither a tree nor a leaf is part of the spec: it is static, and must be hashable. Dicts
are the same in any order of their keys, which come back sorted where they are text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from semel.errors import InputError

#: The part of a spec where a leaf is.
LEAF = ("leaf",)


@dataclass(slots=True)
class Static:
    """A value that is part of the spec: equal to those of its type that are equal."""

    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Static) or type(self.value) is not type(other.value):
            return False
        return self.value is other.value or bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


Spec = tuple[Any, ...]
Leaves = list[tuple[str, Any]]


def flatten(value: Any, path: str, leaves: Leaves, is_leaf: Callable[[Any], bool]) -> Spec:
    """The spec of a value; its leaves are added to `leaves`, each with how it is reached."""
    if is_leaf(value):
        leaves.append((path, value))
        return LEAF
    kind = type(value)
    if isinstance(value, dict):
        keys = _sorted_keys(value)
        parts = tuple(flatten(value[k], f"{path}[{k!r}]", leaves, is_leaf) for k in keys)
        return ("dict", kind, tuple(keys), parts)
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        names = kind._fields
        fields = zip(names, value, strict=True)
        return ("named", kind, tuple(flatten(v, f"{path}.{n}", leaves, is_leaf) for n, v in fields))
    if isinstance(value, (list, tuple)):
        items = enumerate(value)
        return ("items", kind, tuple(flatten(v, f"{path}[{i}]", leaves, is_leaf) for i, v in items))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(f.name for f in dataclasses.fields(value))
        parts = tuple(flatten(getattr(value, n), f"{path}.{n}", leaves, is_leaf) for n in names)
        return ("record", kind, names, parts)
    return ("static", Static(value))


def check_static(spec: Spec, where: str, path: str) -> None:
    """Refuse a spec with a value that cannot be compared with that of another call."""
    try:
        hash(spec)
    except TypeError:
        kind = next((type(v).__name__ for v in _statics(spec) if not _is_hashable(v)), "?")
        raise InputError(
            where,
            f"argument '{path}' must be made of arrays, numbers and hashable values, got one of "
            f"type {kind}.",
            hint="Pass arrays, or dicts, lists, tuples and dataclasses of them.",
        ) from None


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _statics(spec: Spec) -> Iterator[Any]:
    if spec[0] == "static":
        yield spec[1].value
    elif spec[0] != "leaf":
        for part in spec[-1]:
            yield from _statics(part)


def static_texts(spec: Spec, path: str = "") -> Iterator[str]:
    """`path=value` of each static value in a spec of arguments."""
    if spec[0] == "static":
        yield f"{_argument(path)}={_shown(spec)}"
    elif spec[0] != "leaf":
        for i, part in enumerate(spec[-1]):
            yield from static_texts(part, path + _step(spec, i))


def _argument(path: str) -> str:
    """How a path into the tree of all arguments is written: `['x'][0]` is x[0]."""
    name, _, rest = path.removeprefix("['").partition("']")
    return name + rest


def _sorted_keys(value: dict[Any, Any]) -> list[Any]:
    return sorted(value) if all(type(key) is str for key in value) else list(value)


def rebuild(spec: Spec, leaves: Iterator[Any]) -> Any:
    """The value of a spec with these leaves in their places."""
    match spec:
        case ("leaf",):
            return next(leaves)
        case ("static", Static(value)):
            return value
        case ("dict", kind, keys, parts):
            made = {k: rebuild(p, leaves) for k, p in zip(keys, parts, strict=True)}
            return made if kind is dict else _like(kind, made)
        case ("named", kind, parts):
            return kind(*[rebuild(part, leaves) for part in parts])
        case ("items", kind, parts):
            items = [rebuild(part, leaves) for part in parts]
            return items if kind is list else kind(items)
        case ("record", kind, names, parts):
            return _record(kind, names, [rebuild(part, leaves) for part in parts])
    raise AssertionError(spec)


def _like(kind: Any, made: dict[Any, Any]) -> Any:
    """A dict of another class: an OrderedDict; one that takes no dict stays a dict."""
    try:
        return kind(made)
    except TypeError:
        return made


def _record(kind: Any, names: tuple[str, ...], values: list[Any]) -> Any:
    """A dataclass with these fields, whatever its `__init__` takes: nothing is computed again."""
    made = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made


def differences(a: Spec, b: Spec, path: str = "") -> Iterator[str]:
    """In words, where two specs of arguments differ: what it was, and what it is."""
    if a == b:
        return
    if a[0] in ("static", "leaf") or a[:-1] != b[:-1] or len(a[-1]) != len(b[-1]):
        yield f"argument '{_argument(path)}' was {_shown(a)}, is {_shown(b)}"
    else:
        for i, (mine, other) in enumerate(zip(a[-1], b[-1], strict=True)):
            yield from differences(mine, other, f"{path}{_step(a, i)}")


def _step(spec: Spec, i: int) -> str:
    match spec[0]:
        case "dict":
            return f"[{spec[2][i]!r}]"
        case "named":
            return f".{spec[1]._fields[i]}"
        case "record":
            return f".{spec[2][i]}"
    return f"[{i}]"


def _shown(spec: Spec) -> str:
    match spec:
        case ("leaf",):
            return "an array or a number"
        case ("static", Static(value)):
            text = repr(value)
            return text if len(text) <= 60 else f"a {type(value).__name__}"
        case ("dict", _, keys, _):
            return f"a dict with keys {list(keys)}"
        case ("items", kind, parts):
            return f"a {kind.__name__} of {len(parts)}"
    return f"a {spec[1].__name__}"
