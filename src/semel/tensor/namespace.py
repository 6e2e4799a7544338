"""What the array API standard asks a namespace about itself.

    semel.__array_namespace_info__()  -->  Info        tensor.__array_namespace__()  -->  semel

The namespace of the standard is the package: there is no second one with other rules. Where the
two disagree is listed, each with its reason, in docs/arrays.md.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from semel.errors import GraphError
from semel.ir.types import DTYPES, FLOAT32, INT64, DType
from semel.locks import importing
from semel.runtime.free import HOST_DEVICE
from semel.tensor.dtypes import isdtype
from semel.tensor.place import default_device, take_device

if TYPE_CHECKING:
    from semel.tensor.tensor import Tensor

#: The version of the standard that is followed, and those whose programs run unchanged.
VERSION = "2025.12"
VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", VERSION)
MOST_AXES = 64
_IN_STANDARD = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float32", "float64",
}  # fmt: skip


class Info:
    """What can be asked of the namespace: capabilities, devices, dtypes and their defaults."""

    def capabilities(self) -> dict[str, Any]:
        """What may depend on data, and how many axes NumPy can show."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": MOST_AXES,
        }

    def default_device(self) -> str:
        """Where tensors are computed if nobody says otherwise."""
        return default_device()

    def devices(self) -> tuple[str, ...]:
        """The devices of this machine that compute."""
        with importing:
            from semel.runtime.registry import DeviceRegistry

        return tuple(map(str, DeviceRegistry().devices(HOST_DEVICE)))

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """The dtypes of Python's numbers; those of indices."""
        _check(device)
        return {"real floating": FLOAT32, "integral": INT64, "indexing": INT64}

    def dtypes(
        self, *, device: Any = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The standard's dtypes by name, of a kind if one is given; there are no complex ones."""
        _check(device)
        known = {dtype.name: dtype for dtype in DTYPES if dtype.name in _IN_STANDARD}
        return {n: d for n, d in known.items() if kind is None or isdtype(d, kind)}


def _check(device: Any) -> None:
    if device is not None:
        take_device("__array_namespace_info__", device)


def array_namespace_info() -> Info:
    """The array API standard's questions about this namespace, as methods."""
    return Info()


def namespace_of(x: Tensor, /, *, api_version: str | None = None) -> ModuleType:
    """The array API standard's way from an array to its functions: the package itself."""
    if api_version is not None and api_version not in VERSIONS:
        raise GraphError(
            "__array_namespace__",
            f"api_version must be one of {', '.join(VERSIONS)}, got {api_version!r}.",
        )
    return sys.modules["semel"]
