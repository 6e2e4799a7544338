"""Linear algebra: `semel.linalg.solve(a, b)`, under NumPy's names.

    cholesky lu qr             triangles            solve solve_triangular inv lstsq pinv   systems
    eigh eigvalsh svd svdvals  spectra              det slogdet cond matrix_rank norm       numbers
    diagonal trace             of the last axes     matmul vecdot tensordot cross outer     products

All of it is lazy and runs as loops of the plan, over stacks of matrices [.., m, n] whose sizes may
be symbolic. Integers become float32. What NumPy raises for the values of a matrix can only be found
in a run: a singular matrix has an inverse of inf and NaN, one that is not positive definite a
root with NaN, and others of the stack are right.

>>> import semel
>>> semel.linalg.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 2.0]).tolist()
[1.0, 0.5]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.tensor.contract import matmul, outer
from semel.tensor.hints import of_module
from semel.tensor.matrices.diagonal import diagonal, trace
from semel.tensor.matrices.elimination import (
    cholesky,
    cholesky_solve,
    det,
    inv,
    lu,
    lu_factor,
    slogdet,
    solve,
    solve_triangular,
)
from semel.tensor.matrices.norms import matrix_norm, norm, vector_norm
from semel.tensor.matrices.reflections import qr
from semel.tensor.matrices.rotations import eigh, eigvalsh, svd, svdvals
from semel.tensor.matrices.spectra import (
    cond,
    expm,
    lstsq,
    matrix_power,
    matrix_rank,
    multi_dot,
    pinv,
)
from semel.tensor.movement import matrix_transpose
from semel.tensor.products import cross, tensordot
from semel.tensor.standard import vecdot

__all__ = [
    "cholesky",
    "cholesky_solve",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "expm",
    "inv",
    "lstsq",
    "lu",
    "lu_factor",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = of_module(__name__, __all__)
