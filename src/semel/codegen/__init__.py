"""Kernel to LLVM IR; needs no device."""
