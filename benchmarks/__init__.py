"""Benchmarks: fixed models, and tables of time, instructions, memory and compile time."""
