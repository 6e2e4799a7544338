"""Semel against its peers and against the machine: `python -m benchmarks --help`."""
