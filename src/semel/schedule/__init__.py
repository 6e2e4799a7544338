"""Graph to Schedule: groups of nodes, one kernel each."""
