"""The null device: compiles everything, computes nothing."""
