"""Runs plans; knows nothing of how graphs are made."""
