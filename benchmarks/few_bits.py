"""`python -m benchmarks.few_bits`: products with weights of 4 bits, against ONNX Runtime.

    rows, K, N, block  -->  a rotation of both on one MatMulNBits file

Both get the same file of one node. ONNX Runtime also runs it with `accuracy_level=4`, which lets it
quantise the activations to 8 bits: that is another result, and stands beside.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.onnx_models import rotation
from benchmarks.report import align

_SIZES = ((2048, 2048), (4096, 4096))
_ROWS, _BLOCKS = (1, 4, 32), (32, 128)


def model(rows: int, depth: int, columns: int, block: int, level: int = 0) -> Any:
    """An ONNX model of one MatMulNBits."""
    rng = np.random.default_rng(17)
    blocks = depth // block
    packed = rng.integers(0, 256, (columns, blocks, block // 2), dtype=np.uint8)
    scales = (rng.random((columns, blocks), dtype=np.float32) + 0.5) / 100
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft",
        K=depth, N=columns, bits=4, block_size=block, accuracy_level=level,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, columns])],
        [numpy_helper.from_array(packed, "w"), numpy_helper.from_array(scales, "s")],
    )
    versions = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=10)


def _onnxruntime(made: onnx.ModelProto, feed: dict[str, Any], threads: int) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    return lambda: session.run(None, feed)


def measure(rows: int, size: tuple[int, int], block: int, threads: int) -> list[str]:
    """One line of the table."""
    import semel

    depth, columns = size
    feed = {"x": np.random.default_rng(3).standard_normal((rows, depth)).astype(np.float32)}
    compiled = semel.load(model(rows, depth, columns, block), threads=threads)
    ort = _onnxruntime(model(rows, depth, columns, block), feed, threads)
    runs: dict[str, Callable[[], Any]] = {
        "semel": lambda: compiled.run(feed),
        "ort": ort,
        "ort, 8 bits": _onnxruntime(model(rows, depth, columns, block, 4), feed, threads),
    }
    error = np.abs(compiled.run(feed)["y"] - ort()[0]).max() / np.abs(ort()[0]).max()
    found = rotation(runs)
    ours = found["semel"]
    read = depth * columns // 2 + 4 * depth * columns // block
    return [
        f"{rows} x {depth} x {columns}, blocks of {block}", str(threads),
        *(f"{found[name] * 1e6:.0f}" for name in runs),
        f"{ours / found['ort']:.2f}", f"{ours / found['ort, 8 bits']:.2f}",
        f"{read / ours / 1e9:.1f}", f"{error:.0e}",
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rows", default=",".join(map(str, _ROWS)))
    given = parser.parse_args(argv)
    rows: list[list[str]] = []
    for size in _SIZES:
        for block in _BLOCKS:
            for count in map(int, given.rows.split(",")):
                for threads in map(int, given.threads.split(",")):
                    rows.append(measure(count, size, block, threads))
                    print(f"... {rows[-1]}", file=sys.stderr, flush=True)
    head = ["product", "thr", "semel", "ort", "ort, 8 bits", "ratio", "ratio, 8 bits", "GB/s"]
    print(align([[*head, "difference"], *rows]))
    print("Times in us, p10; GB/s of packed weights and scales that semel reads.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
