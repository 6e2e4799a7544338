"""What is public: every name of `semel`, what it is, and where it is written down.

    semel.__all__, Tensor's methods  --functions(), classes()-->  pages of the reference, tests

One function may have many names: `semel.softmax` and `Tensor.softmax` are one, and so are `view`
and `reshape`. It has one entry, in the family of the module that defines it.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

import semel
from semel import Tensor

#: What a family of functions is called, where its module's name does not say it well.
FAMILIES = {
    "activations": "Activations",
    "arrange": "Arranging elements",
    "assign": "Assignment and scatter",
    "attention": "Attention",
    "casts": "Casts",
    "contract": "Products of matrices",
    "control": "Loops and branches",
    "convolution": "Convolutions",
    "creation": "Making tensors",
    "differences": "Differences and integrals",
    "distance": "Distances",
    "draws": "Draws and random orders",
    "dtypes": "Asking of dtypes",
    "elementwise": "Two or more tensors, element by element",
    "elimination": "Linear algebra: solving",
    "fft": "Fourier transforms",
    "grid": "Sampling images",
    "habits": "PyTorch's short words",
    "handle": "Bits",
    "indexing": "Indexing and gathering",
    "late": "Sizes that the data decides",
    "linalg": "Linear algebra",
    "loss": "Losses",
    "movement": "Shape and place of elements",
    "nn": "Softmax and norms",
    "others": "Files, settings, custom functions",
    "norms": "Linear algebra: norms",
    "order": "Sorting and running totals",
    "patches": "Patches of images",
    "pieces": "Pieces of tensors",
    "place": "Devices of tensors",
    "pool": "Pooling",
    "products": "Other products, and comparisons",
    "quantise": "Quantised numbers",
    "random": "Random numbers",
    "realize": "Plans and values",
    "recurrent": "Recurrent cells",
    "reduce": "Reductions",
    "reflections": "Linear algebra: QR",
    "resample": "Resizing",
    "rope": "Rotary positions",
    "rotations": "Linear algebra: eigenvalues, SVD",
    "search": "Searching and counting",
    "special": "Special functions",
    "spectra": "Linear algebra: what follows from these",
    "standard": "Names of the array API standard",
    "statistics": "Statistics",
    "unary": "One tensor, element by element",
}

#: Functions that are no functions of tensors.
OTHERS = "others"

#: The classes, by page. A public class that is in none is on the last one.
CLASSES = {
    "tensors": ("Tensors", ("Tensor", "Variable", "DType")),
    "plans": (
        "Plans",
        ("ExecutionPlan", "Snapshot", "Explanation", "ProfileReport", "KernelProfile"),
    ),
    "graphs": (
        "Graphs and sessions",
        (
            "Graph",
            "Session",
            "CompiledGraph",
            "ExecutableGraph",
            "Outputs",
            "BucketedCompileCache",
            "ExpertResidency",
            "ExpertPool",
        ),
    ),
    "devices": (
        "Devices and the executor",
        (
            "Buffer",
            "UnifiedExecutor",
            "DeviceContext",
            "DeviceRegistry",
            "DeviceSpec",
            "SyncStrategy",
            "TimelineSignal",
        ),
    ),
    "by-hand": (
        "Plans built by hand",
        (
            "ExecutionPlanBuilder",
            "PreparedKernel",
            "PreparedCopy",
            "PreparedBufferView",
            "PreparedCustomFunction",
            "PreparedLoop",
            "PreparedBranch",
            "PreparedRebind",
            "PreparedSignal",
            "PreparedWait",
            "RuntimeVar",
            "CachedKernel",
        ),
    ),
    "others": ("Others", ()),
}


@dataclass
class Function:
    """One function: where it is defined, and every name under which people find it."""

    value: FunctionType
    names: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Where it is defined, as the reference names it."""
        # A decorator may leave another module behind: the name is found where it is looked up.
        return f"{self.value.__module__}.{self.value.__qualname__}"

    @property
    def short_name(self) -> str:
        """The first of its names, without what it is in."""
        return self.names[0].rpartition(".")[2]

    @property
    def summary(self) -> str:
        """The first sentence of what it says of itself."""
        return first_line(self.value)


def first_line(value: Any) -> str:
    """The first line of a docstring."""
    text = inspect.getdoc(value) or ""
    return " ".join(text.partition("\n\n")[0].split())


@cache
def functions() -> dict[str, Function]:
    """Every public function by the path of its definition, in the order of names."""
    found: dict[int, Function] = {}

    def add(value: Any, name: str) -> None:
        value = inspect.unwrap(value) if inspect.isfunction(value) else value
        if isinstance(value, FunctionType):
            found.setdefault(id(value), Function(value)).names.append(name)

    for prefix, owner in namespaces().items():
        for name in names_of(owner):
            add(getattr(owner, name), f"{prefix}.{name}")
    for name in tensor_names():
        if not is_defined_in(Tensor, name):
            add(getattr(Tensor, name), f"Tensor.{name}")
    return {f.path: f for f in sorted(found.values(), key=lambda f: f.names[0])}


def namespaces() -> dict[str, ModuleType]:
    """`semel`, and the public modules in it, such as one of linear algebra."""
    found = {"semel": semel}
    for name in semel.__all__:
        if isinstance(value := getattr(semel, name), ModuleType):
            found[f"semel.{name}"] = value
    return found


def names_of(module: ModuleType) -> list[str]:
    """The public names of a module."""
    listed = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
    return sorted(n for n in listed if not n.startswith("_"))


def tensor_names() -> list[str]:
    """The public members of `Tensor`."""
    return [n for n in dir(Tensor) if not n.startswith("_")]


def is_defined_in(owner: type, name: str) -> bool:
    """Whether a member is written in the class itself, and no function of elsewhere."""
    member = inspect.getattr_static(owner, name)
    function = getattr(member, "__func__", member)
    qualname = getattr(getattr(function, "fget", function), "__qualname__", "")
    return qualname.startswith(f"{owner.__name__}.") or not callable(getattr(owner, name))


def classes() -> dict[str, type]:
    """The public classes by name, without the errors."""
    found = {n: getattr(semel, n) for n in semel.__all__ if isinstance(getattr(semel, n), type)}
    return {n: c for n, c in found.items() if not issubclass(c, BaseException)}


def errors() -> dict[str, type]:
    """The public errors by name."""
    found = {n: getattr(semel, n) for n in semel.__all__ if isinstance(getattr(semel, n), type)}
    return {n: c for n, c in found.items() if issubclass(c, BaseException)}


def pages_of_classes() -> dict[str, tuple[str, list[str]]]:
    """Page by page: its title and its classes."""
    known = classes()
    pages = {k: (t, [n for n in names if n in known]) for k, (t, names) in CLASSES.items()}
    placed = {n for _, names in pages.values() for n in names}
    pages["others"][1].extend(n for n in known if n not in placed)
    return {k: page for k, page in pages.items() if page[1]}


def families() -> dict[str, list[Function]]:
    """The functions by family, titles in order: the module that defines them, or `others`."""
    found: dict[str, list[Function]] = {}
    for function in sorted(functions().values(), key=lambda f: f.short_name):
        found.setdefault(family_of(function), []).append(function)
    return dict(sorted(found.items(), key=lambda item: title_of(item[0])))


def family_of(function: Function) -> str:
    """A module of functions of tensors, or everything else."""
    module = function.value.__module__
    return module if module.startswith("semel.tensor.") else OTHERS


def title_of(family: str) -> str:
    """What a family is called."""
    name = family.rpartition(".")[2]
    return FAMILIES.get(name, name.replace("_", " ").capitalize())


def intro_of(family: str) -> str:
    """What the module says first of itself."""
    return "" if family == OTHERS else first_line(import_module(family))


def members_of(owner: type) -> dict[str, Any]:
    """The public members of a class that are its own or of bases of ours."""
    found = {}
    for name in dir(owner):
        if name.startswith("_"):
            continue
        home = next(k for k in owner.__mro__ if name in vars(k))
        if home.__module__.startswith("semel"):
            found[name] = inspect.getattr_static(owner, name)
    return found


def is_other_name(owner: type, name: str) -> bool:
    """Whether a member is one of the others under another name."""
    value = getattr(owner, name)
    return inspect.isfunction(value) and value.__name__ != name and hasattr(owner, value.__name__)


_FIELD_COMMENT = r"^ +(?:self\.)?{name}\b.*#: ?(.*)$|^ +#: ?(.*)\n +(?:self\.)?{name}\b"


def doc_of_member(owner: type, name: str) -> str:
    """What is said of a member: its docstring, the comment behind a field, or the class's words."""
    member = inspect.getattr_static(owner, name)
    function = getattr(member, "__func__", getattr(member, "fget", member))
    if inspect.isfunction(function):
        return inspect.getdoc(function) or inspect.getdoc(getattr(owner, name)) or ""
    if isinstance(member, type):
        return inspect.getdoc(member) or ""
    for base in owner.__mro__:
        if not base.__module__.startswith("semel"):
            continue
        source = inspect.getsource(base)
        if match := re.search(_FIELD_COMMENT.format(name=name), source, re.MULTILINE):
            return match[1] or match[2]
        if re.search(rf"`{name}\b[^`]*`", inspect.getdoc(base) or ""):
            return inspect.getdoc(base) or ""
    return ""


def silent() -> list[str]:
    """Every public name whose docstring says nothing, or no more than the name does."""
    texts = {f.names[0]: (f.short_name, f.summary) for f in functions().values()}
    for name, kind in {**classes(), **errors()}.items():
        texts[f"semel.{name}"] = (name, inspect.getdoc(kind) or "")
    for name, owner in classes().items():
        for member in members_of(owner):
            texts[f"semel.{name}.{member}"] = (member, doc_of_member(owner, member))
    return [name for name, (short, text) in texts.items() if not says_more(short, text)]


def says_more(name: str, text: str) -> bool:
    """Whether a text has words beside those of the name itself."""
    own = _words(name.replace("_", " ")) | {"a", "an", "the", "of", "this", "function", "returns"}
    return bool(_words(text) - own) or bool(re.search(r"[^\w\s.]", text))


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower()))
