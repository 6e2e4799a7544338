"""Functions: one compile for all sizes, what Python asks becomes a condition, state goes round.

Run it: python examples/11_jit.py
"""

import numpy as np

import semel
from semel import Tensor

rng = np.random.default_rng(0)


@semel.jit
def attend(p, x, temperature=1.0):
    """Attention of one head over a dict of weights."""
    q, k, v = (x @ p[name] for name in ("q", "k", "v"))
    scores = q @ k.mT / (np.sqrt(q.shape[-1]) * temperature)
    return {"out": scores.softmax(-1) @ v, "rows": x.shape[0]}


weights = {name: rng.standard_normal((32, 16), dtype=np.float32) for name in ("q", "k", "v")}
for rows, temperature in ((3, 1.0), (50, 0.5), (1, 2.0)):
    result = attend(weights, rng.standard_normal((rows, 32), dtype=np.float32), temperature)
    print(result["rows"], result["out"].shape, "forms:", attend.compile_count)
print(attend.forms[0])

# Other dtypes are another form; in a hot loop that can be forbidden.
with semel.no_recompiles():
    try:
        attend(weights, np.ones((3, 32)))
    except semel.RecompileError as error:
        print(error)


@semel.jit(donate="state")
def momentum(state, gradient, rate):
    """The old state's memory takes the new one."""
    return state * 0.9 - gradient * rate


state = Tensor(np.zeros(1000, np.float32))
for i in range(5):
    state = momentum(state, rng.standard_normal(1000, dtype=np.float32), 0.1 / (i + 1))
print("state:", state.shape, "forms:", momentum.compile_count)
print(momentum.plan)
