"""Which function converts which ONNX operator.

Each file of `ops` has a table `CONVERTERS`, {operator: function}, for the domains it names in
`DOMAIN`. A function gets the node and returns what its outputs are; the version of the operator is
`node.version`, so that one function knows every version of its operator.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from semel.frontends.onnx.node import Converter

#: The domain of the standard's own operators, whose name is often left empty.
STANDARD = ""
_ALIASES = {"ai.onnx": STANDARD}
_FILES = (
    "attention",
    "contract",
    "control",
    "detection",
    "determinant",
    "elementwise",
    "loss",
    "microsoft",
    "microsoft_attention",
    "microsoft_quantised",
    "ml",
    "movement",
    "ngrams",
    "norm",
    "optimisers",
    "preview",
    "quantised",
    "random",
    "recurrent",
    "reduce",
    "resize",
    "sampling",
    "selection",
    "sequences",
    "shape",
    "signal",
    "svm",
    "window",
)


def domain_name(domain: str) -> str:
    """A domain under its usual name."""
    return _ALIASES.get(domain, domain)


@cache
def converters() -> dict[tuple[str, str], Converter]:
    """By domain and operator."""
    found: dict[tuple[str, str], Converter] = {}
    for name in _FILES:
        module = import_module(f"semel.frontends.onnx.ops.{name}")
        domain = getattr(module, "DOMAIN", STANDARD)
        found |= {(domain, op): function for op, function in module.CONVERTERS.items()}
        others = getattr(module, "STANDARD_CONVERTERS", {})
        found |= {(STANDARD, op): function for op, function in others.items()}
    return found
