"""Kernels and programs to C text: Python decides, Jinja lays out."""
