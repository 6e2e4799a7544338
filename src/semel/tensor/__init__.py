"""The lazy front door: `Tensor`, and the functions on it.

    user code  -->  Tensor (a handle on a graph node)  -->  Graph  -->  ExecutionPlan

The functions stand in modules by family (movement, elementwise, reduce, nn, ...). Each takes
its tensor as the first argument, or what becomes one: `semel.softmax([1.0, 2.0])`. The class
(tensor.py) is the table of them all: a function in its body is a method, so that
`x.softmax()` and `semel.softmax(x)` are one function with one signature. What the functions
share (how values become tensors and ops become nodes) is in handle.py.

Nothing here computes but realize.py: every function adds nodes, and a composition such as
softmax is nodes of primitive ops, which the compiler fuses.
"""
