"""The frozen values that cross layers: `Graph`, `PrimFunc`, `Program`, and expressions."""
