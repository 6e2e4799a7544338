"""The dtypes under the names users write: `semel.float32`.

    semel.ir.types.FLOAT32  -->  float32

Anything that takes a dtype takes these, their names as strings and NumPy's dtypes alike.
"""

from __future__ import annotations

from semel.ir import types

bool_ = types.BOOL
int8, int16, int32, int64 = types.INT8, types.INT16, types.INT32, types.INT64
uint8, uint16, uint32, uint64 = types.UINT8, types.UINT16, types.UINT32, types.UINT64
float16, bfloat16 = types.FLOAT16, types.BFLOAT16
float32, float64 = types.FLOAT32, types.FLOAT64
