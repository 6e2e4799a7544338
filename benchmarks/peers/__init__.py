"""The runtimes that are measured, one file each.

Every module has `VERSION`, `setup(threads)` and `BUILD`, a table from row name to a function
that takes the inputs and returns `(run, result)`: `run()` is timed, `result()` reads what the
last run computed as a NumPy array. Where runs leave a state behind there is a third function,
which puts it back before each sample and is not timed. Importing a module imports its runtime: a
worker process imports exactly one, after its threads are set in the environment.
"""

NAMES = ("semel", "numpy", "onnxruntime", "openvino", "torch", "jax")
