"""`semel.load`: one door for everything that comes as a file.

load("model.plan")   -->  session.files       what `save` wrote
load("model.onnx")   -->  frontends.onnx      compiled here
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.errors import InputError, UnsupportedError
from semel.locks import importing

if TYPE_CHECKING:
    from semel.session.compiled import CompiledGraph

#: The names under which models arrive.
_MODELS = (".onnx", ".ort", ".onnx.pb")


def load(
    source: Any,
    *,
    dims: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
    device: Any = None,
    **options: Any,
) -> CompiledGraph:
    """A compiled graph from a file: one that `save` wrote, or an ONNX model.

    An ONNX model is a path, its bytes, or a ModelProto, and is compiled here. `dims` says what its
    dims are: a pair of numbers bounds one, a number fixes it, the name of another makes it that
    one. `values` fixes what inputs hold, which are inputs no more. `device` and the other
    options are those of `Session` and `Session.compile`. Needs the extra `semel[onnx]`.

    A file that `save` wrote is code: load only what you trust, or with `trust=False`. Its options
    are those of `semel.load_plan`, and `experts`; states have their first values.
    """
    if _is_model(source):
        # One whose inputs decide what is computed has these members too, and is no subclass.
        return _models().load_onnx(source, dims=dims, values=values, device=device, **options)  # type: ignore[no-any-return]
    for name, given in (("dims", dims), ("values", values), ("device", device)):
        if given is not None:
            raise InputError("load", f"{name} are chosen when a model is compiled; {source} is.")
    with importing:
        from semel.session import files
    return files.load(source, **options)


def _is_model(source: Any) -> bool:
    if isinstance(source, (str, os.PathLike)):
        return str(Path(source)).lower().endswith(_MODELS)
    return True  # what it may be, the reader of models says


def load_held(source: Any, **options: Any) -> tuple[Any, Any]:
    """What `load` makes of it, and of an ONNX model what holds its weights as they came, if any."""
    if not _is_model(source):
        return load(source, **options), None
    found: tuple[Any, Any] = _models().load_held(source, **options)
    return found


def _models() -> Any:
    try:
        with importing:
            return import_module("semel.frontends.onnx.model")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("onnx", "google"):
            raise
        raise UnsupportedError(
            "load", "ONNX models need the package onnx.", hint="pip install 'semel[onnx]'"
        ) from error
