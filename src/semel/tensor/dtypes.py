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
float8_e4m3fn, float8_e4m3fnuz = types.FLOAT8_E4M3FN, types.FLOAT8_E4M3FNUZ
float8_e5m2, float8_e5m2fnuz = types.FLOAT8_E5M2, types.FLOAT8_E5M2FNUZ
float8_e8m0fnu, float4_e2m1fn = types.FLOAT8_E8M0FNU, types.FLOAT4_E2M1FN
int4, uint4, int2, uint2 = types.INT4, types.UINT4, types.INT2, types.UINT2
