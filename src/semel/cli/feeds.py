"""Inputs for a run: what the command line gives, and the rest made up.

    specs, ["ids=ids.npy", "photo.png"]  --read_inputs-->  arrays by name
    specs, arrays, {"seq": 128}          --fill_inputs-->  arrays of all inputs

What is made up comes from a seed: numbers around 0 for floats; ones for masks and zeros for other
whole numbers, which are legal indices everywhere. A dim that nobody names has the size that given
arrays have there, else 1 if it is a batch, else 64, or as near as its bounds allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from semel.cli.grammar import parse_json
from semel.errors import InputError, UnsupportedError
from semel.ir.expr import Variable, evaluate, variables
from semel.ir.types import Shape

_DEFAULT_SIZE = 64
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input; `dtype` is None for text, `shape` None where only an array tells it."""

    name: str
    dtype: np.dtype[Any] | None
    shape: Shape | None

    def __str__(self) -> str:
        kind = "text" if self.dtype is None else self.dtype.name
        dims = "?" if self.shape is None else ", ".join(map(str, self.shape))
        return f"{self.name}: {kind} [{dims}]"


# ---------------------------------------------------------------- what is given


def read_inputs(
    specs: Sequence[InputSpec], texts: Sequence[str], sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Arrays of the inputs that are given; `sizes` are those that images are brought to."""
    by_name = {spec.name: spec for spec in specs}
    found: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if sign and name in by_name:
            found[name] = read_value(by_name[name], value, sizes)
        elif text.endswith(".npz"):
            found |= _read_members(by_name, text)
        elif len(specs) == 1 and (not sign or Path(text).exists()):
            found[specs[0].name] = read_value(specs[0], text, sizes)
        else:
            known = ", ".join(by_name) or "none"
            raise InputError("command", f"an input must be NAME=VALUE of {known}, got {text!r}.")
    return found


def _read_members(specs: Mapping[str, InputSpec], path: str) -> dict[str, Any]:
    arrays = _load(path)
    unknown = sorted(arrays.keys() - specs.keys())
    if unknown:
        raise InputError(
            "command", f"{path}: must hold inputs ({', '.join(specs)}), got {unknown}."
        )
    return {name: _as_kind(specs[name], array) for name, array in arrays.items()}


def read_value(spec: InputSpec, text: str, sizes: Mapping[str, int]) -> Any:
    """What a file holds, or what JSON says."""
    suffix = Path(text).suffix.lower()
    if suffix in _IMAGES:
        return _read_image(spec, text, sizes)
    if suffix == ".npy":
        return _as_kind(spec, _load(text))
    if suffix == ".npz":
        arrays = _load(text)
        if spec.name not in arrays and len(arrays) != 1:
            raise InputError("command", f"{text}: has no array {spec.name!r}.")
        return _as_kind(spec, arrays.get(spec.name, next(iter(arrays.values()))))
    if spec.dtype is None:
        return np.asarray(parse_json(text, spec.name) if text[:1] in '["' else [text], object)
    try:
        return np.asarray(parse_json(text, spec.name), spec.dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError("command", f"{spec} cannot be {text}: {error}.") from error


def _load(path: str) -> Any:
    try:
        found = np.load(path, allow_pickle=False)
        return dict(found) if path.endswith(".npz") else found
    except (OSError, ValueError) as error:
        raise InputError("command", f"{path}: must be a file of arrays: {error}.") from error


def _as_kind(spec: InputSpec, array: Any) -> Any:
    """The array in the input's dtype if that is one of its kind; what is not, the run refuses."""
    if spec.dtype is not None and np.can_cast(array.dtype, spec.dtype, "same_kind"):
        return array.astype(spec.dtype, copy=False)
    return array


def _read_image(spec: InputSpec, path: str, sizes: Mapping[str, int]) -> Any:
    """Pixels in the layout that the input's dims tell; floats are between 0 and 1."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError as error:
        hint = "pip install 'semel[images]'"
        raise UnsupportedError("command", "images need the package pillow.", hint=hint) from error
    if spec.shape is None or spec.dtype is None or not 2 <= len(spec.shape) <= 4:
        raise InputError("command", f"{spec} is no image: it must have 2 to 4 dims.")
    dims = [_known_size(dim, sizes) for dim in spec.shape]
    inner = dims[-3:] if len(dims) > 2 else [*dims, 1]
    is_first = len(dims) > 2 and inner[0] in (1, 3) and inner[2] not in (1, 3)
    channels = inner[0] if is_first else inner[2]
    height, width = inner[1:] if is_first else inner[:2]
    if channels not in (1, 3):
        raise InputError("command", f"{spec} is no image: it must have 1 or 3 channels.")
    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB" if channels == 3 else "L")
    except (OSError, UnidentifiedImageError) as error:
        raise InputError("command", f"{path}: must be an image: {error}.") from error
    image = image.resize((width or image.width, height or image.height))
    pixels = np.asarray(image).reshape(image.height, image.width, channels)
    if spec.dtype.kind not in "iu":
        pixels = (pixels / 255).astype(spec.dtype)
    if is_first:
        pixels = pixels.transpose(2, 0, 1)
    shape = pixels.shape[:2] if len(dims) == 2 else (1,) * (len(dims) - 3) + pixels.shape
    return np.ascontiguousarray(pixels.reshape(shape), spec.dtype)


def _known_size(dim: Any, sizes: Mapping[str, int]) -> int | None:
    if isinstance(dim, int):
        return dim
    known = all(v.name in sizes for v in variables(dim))
    return evaluate(dim, sizes) if known else None


# ---------------------------------------------------------------- what is made up


def fill_inputs(
    specs: Sequence[InputSpec], given: Mapping[str, Any], sizes: Mapping[str, int], seed: int
) -> dict[str, Any]:
    """All inputs: those that are given, and others of these sizes."""
    bound = find_sizes(specs, given, sizes)
    rng = np.random.default_rng(seed)
    return {
        spec.name: given[spec.name] if spec.name in given else _made_up(spec, bound, rng)
        for spec in specs
    }


def find_sizes(
    specs: Sequence[InputSpec], given: Mapping[str, Any], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Values of all variables in shapes; what is asked for comes before what arrays have."""
    found: dict[str, int] = {}
    for spec in specs:
        if spec.shape is not None and spec.name in given:
            pairs = zip(spec.shape, np.shape(given[spec.name]), strict=False)
            found |= {dim.name: size for dim, size in pairs if isinstance(dim, Variable)}
    found |= sizes
    used = {v for spec in specs for dim in spec.shape or () for v in variables(dim)}
    return found | {v.name: default_size(v) for v in used if v.name not in found}


def default_size(variable: Variable) -> int:
    """The size of a dim that nobody names."""
    size = 1 if "batch" in variable.name.lower() else _DEFAULT_SIZE
    return max(variable.min, size if variable.max is None else min(size, variable.max))


def _made_up(spec: InputSpec, bound: Mapping[str, int], rng: np.random.Generator) -> Any:
    if spec.dtype is None or spec.shape is None:
        raise InputError(
            "command",
            f"{spec} cannot be made up.",
            hint=f"Give it: --input {spec.name}=FILE, or JSON.",
        )
    shape = tuple(evaluate(dim, bound) for dim in spec.shape)
    if np.issubdtype(spec.dtype, np.inexact) or spec.dtype.kind == "V":
        return rng.standard_normal(shape).astype(spec.dtype)
    return np.full(shape, "mask" in spec.name.lower()).astype(spec.dtype)
