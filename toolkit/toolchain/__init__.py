"""Compilers: finding them, building with them, measuring what they made."""
