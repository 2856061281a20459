"""Tuning runs: the only package that joins search to measurement."""
