"""Benchmarks and the checks behind `make lint`, run as `python -m scripts.NAME`."""
