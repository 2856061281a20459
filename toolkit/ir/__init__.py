"""The three frozen values that cross layers: `Graph`, `PrimFunc`, `Program`; and compute expressions."""
