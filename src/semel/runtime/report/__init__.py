"""What a profiled run looks like: to people, to scripts and to trace viewers."""
