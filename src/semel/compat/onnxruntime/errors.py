"""What ONNX Runtime raises, by its names; every one is also an error of ours."""

# ruff: noqa: N818  (the names that programs catch)

from __future__ import annotations

from semel.errors import InputError, ModelError, UnsupportedError


class InvalidArgument(InputError):
    """A run was given names, types or shapes that the model does not have."""


class Fail(ModelError):
    """A model that says what cannot be."""


class NoSuchFile(ModelError):
    """There is no file where a model should be."""


class InvalidProtobuf(ModelError):
    """A file that is damaged, or no model."""


class InvalidGraph(ModelError):
    """A graph that means nothing."""


class NotImplemented(UnsupportedError):
    """An operator, or a way to use it, that is not supported."""
