"""Compiled code by content, in memory and on disk; devices and the compiler both use it."""
