"""ONNX models: `semel.load("model.onnx")`.

    file.py        the file: read, checked, weights beside it
    build.py       inputs, weights, outputs: a semel.Graph
    walk.py        node after node
    arithmetic.py  shapes, computed while the model is imported
    ops/           what each operator becomes
    model.py       what a caller runs

Needs the extra `semel[onnx]`.
"""
