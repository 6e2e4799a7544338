"""Semel behind the interface that `onnx.backend.test` and other tools drive backends by.

onnx_backend.prepare(model).run(inputs)     run_model     run_node     supports_device
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx.backend.base import Backend, BackendRep

from semel.frontends.load import load


class SemelRep(BackendRep):  # type: ignore[misc]  # its module has no types
    """A model that is ready to run."""

    def __init__(self, compiled: Any, outputs: Sequence[str]) -> None:
        self.compiled, self._outputs = compiled, outputs

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        """The outputs, in order."""
        found = (
            self.compiled.run(*inputs)
            if isinstance(inputs, (list, tuple))
            else self.compiled.run(inputs)
        )
        return tuple(found[name] for name in self._outputs)


class SemelBackend(Backend):  # type: ignore[misc]  # its module has no types
    """What `onnx.backend.test.BackendTest` takes."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **options: Any) -> SemelRep:
        """The model, compiled."""
        return SemelRep(load(model, **options), [output.name for output in model.graph.output])

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **options: Any
    ) -> tuple[Any, ...]:
        """The outputs of a model for these inputs."""
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **options: Any,
    ) -> tuple[Any, ...]:
        """The outputs of one node."""
        given = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in zip([n for n in node.input if n], inputs, strict=True)
        ]
        made = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", given, made)
        version = options.pop("opset", onnx.defs.onnx_opset_version())
        opsets = [onnx.helper.make_opsetid(node.domain, version)]
        return cls.run_model(onnx.helper.make_model(graph, opset_imports=opsets), inputs, **options)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models can run there."""
        return device == "CPU"


prepare = SemelBackend.prepare
run_model = SemelBackend.run_model
run_node = SemelBackend.run_node
supports_device = SemelBackend.supports_device
