"""Models written with plain Tensor operations: what examples, tests and benchmarks run.

    arrays by name (a checkpoint's names, or drawn from a seed)  -->  Tensor

Each builder takes tensors and a mapping of arrays under the names that checkpoints of the
model use, so that weights read from a file go in as they are. Nothing here is special to the
compiler: a user's own code gets the same kernels.
"""
