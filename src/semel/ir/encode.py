"""Dims and kernel signatures as plain JSON values, and back.

    Dim              --DimWriter-->         int, or [entry of the table]  --DimReader-->  Dim
    KernelSignature  --encode_signature-->  lists and strings  --decode_signature-->  the same

Plan files are read from disk, so nothing here evaluates text or trusts what it finds: every
constructor checks its arguments, and what does not fit is a `GraphError`. Reading rebuilds
an expression with the algebra itself, so that it is canonical whatever the file says; what
was canonical comes back equal. A table of the distinct expressions keeps shared parts shared.

A small table can stand for an expression of any size, since entries refer to entries. So each is
measured before it is built, written out in full: what is too large, too deep or has numbers past
64 bits is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from semel.errors import GraphError
from semel.ir.expr import Atom, Dim, Expr, Fn, Index, Variable, add_products
from semel.ir.signature import BufferSpec, CheckInfo, KernelSignature
from semel.ir.types import DTYPES, DType, TensorType

#: Atoms and terms of one expression, written out; factors of a term; nesting of functions.
MAX_DIM_SIZE, MAX_FACTORS, MAX_DIM_DEPTH = 1 << 14, 16, 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}", re.ASCII)
_FUNCTIONS = ("floordiv", "mod", "min", "max")
_ACCESSES = ("r", "w", "rw", "s")
_DTYPES = {d.name: d for d in DTYPES}


class DimWriter:
    """Turns dims into references; `entries` is the table that a `DimReader` needs."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self._known: dict[Dim, int] = {}

    def __call__(self, dim: Dim) -> Any:
        if isinstance(dim, int):
            return int(dim)
        if dim not in self._known:
            entry = self._entry(dim)
            self._known[dim] = len(self.entries)
            self.entries.append(entry)
        return [self._known[dim]]

    def all(self, dims: Sequence[Dim]) -> list[Any]:
        """The references of several dims."""
        return [self(dim) for dim in dims]

    def _entry(self, dim: Dim) -> list[Any]:
        match dim:
            case Variable(name=name, min=low, max=high):
                return ["variable", name, low, high]
            case Index(name=name, extent=extent):
                return ["index", name, self(extent)]
            case Fn(kind=kind, args=args):
                return [kind, *self.all(args)]
            case Expr(terms=terms):
                return ["sum", *([factor, *self.all(atoms)] for atoms, factor in terms)]
        raise GraphError("encode", f"a dim must be an int or an expression, got {dim!r}.")


class DimReader:
    """Turns references back into dims; an entry may refer to earlier ones only."""

    def __init__(self, entries: Any) -> None:
        self._dims: list[Dim] = []
        self._sizes: list[int] = []
        self._depths: list[int] = []
        for entry in as_list(entries):
            self._measure(as_list(entry))
            self._dims.append(self._read(entry))

    def __call__(self, reference: Any) -> Dim:
        if not isinstance(reference, list):
            return as_int64(reference)
        return self._dims[self._number(reference)]

    def all(self, references: Any) -> tuple[Dim, ...]:
        """The dims of several references."""
        return tuple(self(r) for r in as_list(references))

    def index(self, reference: Any) -> Index:
        """A reference that must be to an index."""
        found = self(reference)
        if not isinstance(found, Index):
            raise GraphError("decode", f"an index must be referred to, got {found}.")
        return found

    def variable(self, reference: Any) -> Variable:
        """A reference that must be to a variable."""
        found = self(reference)
        if not isinstance(found, Variable):
            raise GraphError("decode", f"a variable must be referred to, got {found}.")
        return found

    def _number(self, reference: Any) -> int:
        (number,) = as_list(reference, 1)
        return as_index(number, len(self._dims), "dim")

    def _measure(self, entry: list[Any]) -> None:
        """Size and depth of an entry, from those of the entries that it refers to."""
        kind, *rest = entry or (None,)
        terms = [as_list(term)[1:] for term in rest] if kind == "sum" else [rest]
        used = [self._number(r) for term in terms for r in term if isinstance(r, list)]
        size = len(terms) + sum(self._sizes[i] for i in used)
        depth = (kind != "sum") + max((self._depths[i] for i in used), default=0)
        for what, found, most in (
            ("atoms and terms", size, MAX_DIM_SIZE),
            ("factors in a term", max(map(len, terms), default=0), MAX_FACTORS),
            ("functions inside each other", depth, MAX_DIM_DEPTH),
        ):
            if found > most:
                raise GraphError("decode", f"a dim must have at most {most} {what}, got {found}.")
        self._sizes.append(1 if kind == "index" else size)  # its extent is not written with it
        self._depths.append(depth)

    def _read(self, entry: list[Any]) -> Dim:
        match entry:
            case ["variable", str(name), low, high]:
                top = None if high is None else as_int64(high)
                return Variable(name, as_int64(low), top)
            case ["index", str(name), extent]:
                return Index(as_name(name), self(extent))
            case ["sum", *terms]:
                return add_products(self._term(as_list(term)) for term in terms)
            case [str(kind), a, b] if kind in _FUNCTIONS:
                return Fn(kind, (self(a), self(b)))
        raise GraphError("decode", f"a dim must be of a known kind, got {entry!r:.80}.")

    def _term(self, term: list[Any]) -> tuple[int, list[Atom]]:
        """A number and atoms: a sum in a product would have to be multiplied out."""
        factor, *references = term
        factors: list[Atom] = []
        for atom in map(self, references):
            if not isinstance(atom, (Variable, Index, Fn)):
                raise GraphError("decode", f"a factor must be an atom, got {atom!s:.80}.")
            factors.append(atom)
        return as_int64(factor), factors


# ---------------------------------------------------------------- records


def encode_signature(signature: KernelSignature, dim: DimWriter) -> dict[str, Any]:
    """All of a signature; its dims go to the table of `dim`."""
    return {
        "name": signature.name,
        "buffers": [
            [
                b.name,
                b.dtype.name,
                b.access,
                dim(b.size),
                None if b.tile_stride is None else dim(b.tile_stride),
            ]
            for b in signature.buffers
        ],
        "variables": dim.all(signature.variables),
        "tiles": dim(signature.tiles),
        "scratch_bytes": dim(signature.scratch_bytes),
        "checks": [encode_check(c, dim) for c in signature.checks],
        "flops": dim(signature.flops),
        "bytes": dim(signature.bytes),
        "serial": not signature.host_parallel_safe,
    }


def decode_signature(record: Any, dim: DimReader) -> KernelSignature:
    """The signature that `encode_signature` wrote."""
    buffers = []
    for entry in as_list(record["buffers"]):
        name, dtype, access, size, stride = as_list(entry, 5)
        buffers.append(
            BufferSpec(
                as_text(name),
                as_known_dtype(dtype),
                as_access(access),
                dim(size),
                None if stride is None else dim(stride),
            )
        )
    return KernelSignature(
        name=as_text(record["name"]),
        buffers=tuple(buffers),
        variables=tuple(dim.variable(v) for v in as_list(record["variables"])),
        tiles=dim(record["tiles"]),
        scratch_bytes=dim(record["scratch_bytes"]),
        checks=tuple(decode_check(c, dim) for c in as_list(record["checks"])),
        flops=dim(record["flops"]),
        bytes=dim(record["bytes"]),
        host_parallel_safe=not record.get("serial", False),
    )


def encode_check(check: CheckInfo, dim: DimWriter) -> list[Any]:
    """What a failed check means, as a list."""
    return [check.op, check.what, dim(check.size), check.unsigned]


def decode_check(entry: Any, dim: DimReader) -> CheckInfo:
    """The check that `encode_check` wrote."""
    fields = list(as_list(entry))
    unsigned = len(fields) == 4 and fields.pop() is True  # earlier files have three
    op, what, size = as_list(fields, 3)
    return CheckInfo(as_text(op), as_text(what), dim(size), unsigned)


def encode_type(kind: TensorType, dim: DimWriter) -> list[Any]:
    """dtype and dims of a tensor, as a list."""
    return [kind.dtype.name, *dim.all(kind.shape)]


def decode_type(entry: Any, dim: DimReader) -> TensorType:
    """The type that `encode_type` wrote."""
    dtype, *shape = as_list(entry)
    return TensorType(dim.all(shape), as_known_dtype(dtype))


# ---------------------------------------------------------------- checked JSON


def as_list(value: Any, length: int | None = None) -> list[Any]:
    """A JSON list, of this length if one is given."""
    if not isinstance(value, list) or (length is not None and len(value) != length):
        wanted = "a list" if length is None else f"a list of {length}"
        raise GraphError("decode", f"must find {wanted}, got {value!r:.80}.")
    return value


def as_int(value: Any) -> int:
    """A JSON integer; true and false are none."""
    if type(value) is not int:
        raise GraphError("decode", f"must find an int, got {value!r:.80}.")
    return value


def as_int64(value: Any) -> int:
    """A JSON integer of at most 63 bits, as machine code computes with."""
    number = as_int(value)
    if not -(1 << 62) <= number <= 1 << 62:
        raise GraphError("decode", f"a number must fit 63 bits, got {number!r:.40}.")
    return number


def as_name(value: Any) -> str:
    """A name that may stand in generated code: letters, digits, underscores, dots."""
    if not _NAME.fullmatch(as_text(value)):
        raise GraphError("decode", f"a name must be a short identifier, got {value!r:.80}.")
    return as_text(value)


def as_index(value: Any, count: int, what: str) -> int:
    """An integer in [0, count)."""
    number = as_int(value)
    if not 0 <= number < count:
        raise GraphError("decode", f"{what} must lie in [0, {count}), got {number}.")
    return number


def as_text(value: Any) -> str:
    """A JSON string."""
    if not isinstance(value, str):
        raise GraphError("decode", f"must find a string, got {value!r:.80}.")
    return value


def as_known_dtype(value: Any) -> DType:
    """The dtype of a full name."""
    if not isinstance(value, str) or value not in _DTYPES:
        raise GraphError("decode", f"dtype must be one of {', '.join(_DTYPES)}, got {value!r:.80}.")
    return _DTYPES[value]


def as_access(value: Any) -> str:
    """How a buffer is accessed: r, w, rw, or s for scratch."""
    if value not in _ACCESSES:
        raise GraphError("decode", f"access must be one of {_ACCESSES}, got {value!r:.80}.")
    return as_text(value)
