"""Lanes in LLVM's vectors, for any machine that has them; made of the scalar parts."""
