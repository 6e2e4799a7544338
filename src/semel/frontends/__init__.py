"""Readers of other programs' files: bytes in, arrays or tensors out."""
