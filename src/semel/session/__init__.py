"""Compiled graphs: runs by name, params, states, handles and asynchronous runs, on one plan."""
