"""What reading a model imports: nothing that only some models need."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import numpy as np
from onnx import TensorProto, helper
import semel
kind = TensorProto.FLOAT
x, y = (helper.make_tensor_value_info(name, kind, [2]) for name in "xy")
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
model.ir_version = 8
(y,) = semel.load(model.SerializeToString()).run(x=np.float32([-1, 2]))
assert y.tolist() == [0.0, 2.0]
print([name for name in ("onnx.reference", "semel.frontends.onnx.host_ops") if name in sys.modules])
"""


def test_a_model_without_text_needs_no_reference_evaluator() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
