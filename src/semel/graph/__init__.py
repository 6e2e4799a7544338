"""Graphs with names: inputs, params, constants, states and outputs, prepared together."""

from semel.graph.builder import Graph
from semel.graph.state import Cursor, State

__all__ = ["Cursor", "Graph", "State"]
