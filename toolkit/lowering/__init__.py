"""Fused groups to scheduled kernels, and the program that calls them on a planned arena."""
