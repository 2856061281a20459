"""A matrix product and its activation as one compute expression: no model file, no ONNX.

Run it with `.venv/bin/python examples/expression.py`: it builds the expression with the system
compiler, compares it with NumPy and writes the C library to out/product.
"""

import numpy as np

import toolkit
from toolkit.ir.compute import compute, placeholder, reduce_axis, sum
from toolkit.ir.expr import maximum

M, N, K = 8, 16, 32
A = placeholder((M, K), "float32", "A")
B = placeholder((K, N), "float32", "B")
k = reduce_axis(K, "k")
product = compute((M, N), lambda i, j: sum(A[i, k] * B[k, j], k), "product")
C = compute((M, N), lambda i, j: maximum(product[i, j], 0), "C")

rng = np.random.default_rng(1)
a = rng.standard_normal((M, K)).astype(np.float32)
b = rng.standard_normal((K, N)).astype(np.float32)

compiled = toolkit.compile(C, name="product")
with toolkit.build(compiled) as library:
    [c] = library(a, b)
print(compiled)
print("largest difference from NumPy:", np.abs(c - np.maximum(a @ b, 0)).max())
compiled.write("out/product", inputs={"A": a, "B": b}, outputs={"C": c})
