"""The table of all operations: every executor runs every row."""

from __future__ import annotations

from tests.ops.case import Case
from tests.ops.cases_conv import CONV
from tests.ops.cases_elementwise import ELEMENTWISE
from tests.ops.cases_reduce import REDUCE
from tests.ops.cases_shape import SHAPE

CASES: list[Case] = [*ELEMENTWISE, *SHAPE, *REDUCE, *CONV]
