"""Lazy tensors: write NumPy, get compiled kernels; a value is computed when it is asked for.

Run it: python examples/02_lazy_tensor.py
"""

import numpy as np

import semel
from semel import Tensor

a = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
print("lazy:    ", a @ a.T)
print("computed:", (a @ a.T).softmax(-1).numpy())

# Broadcasting, slicing, reductions: compiled together, computed once.
centred = (a - a.mean(0)) / (a.std(0) + 1e-6)
print("centred:", centred[:, ::-1].tolist())

# Dtypes follow the arrays; Python numbers adapt to them.
small = Tensor([1, 2, 3], dtype="int8")
print("dtypes: ", (small + 1).dtype, (small + 0.5).dtype, (small / 2).dtype, small.sum().dtype)

# Assignment rebinds the name; what was made before keeps its value.
before = a * 1
a[0, 1] = 100.0
print("before: ", before.tolist())
print("after:  ", a.tolist())

# Gather, sort and top-k are generated code too.
scores = Tensor([0.1, 0.7, 0.2, 0.9])
best, where = scores.topk(2)
print("top 2:  ", best.tolist(), "at", where.tolist())

# Random numbers come from a key: the same key, the same numbers, on every machine.
key = semel.key(42)
noise = Tensor.randn(2, 2, key=key)
print("noise:  ", noise.tolist())
