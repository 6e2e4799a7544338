"""The CPU: native code through llvmlite, memory, worker pool."""
