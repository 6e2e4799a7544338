"""`semel.jit`: functions of tensors that are prepared once per form.

    function --Jit--> form of the call --trace--> Graph --prepare--> plan, called again and again

function.py is what people hold, trace.py follows a function through one call, sizes.py finds out
which sizes are one, form.py says which calls a trace is good for, and runs.py runs them.
"""
