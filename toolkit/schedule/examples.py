"""Small functions that the examples of schedule steps start from."""

from __future__ import annotations

from toolkit.ir.build import build
from toolkit.ir.compute import compute, placeholder, Reduce, reduce_axis, sum
from toolkit.ir.expr import all_of, cast, const, Expr, maximum, select
from toolkit.ir.loop import PrimFunc


def copy_rows(rows: int = 6, columns: int = 8) -> PrimFunc:
    """y[i, j] = a[i, j] * 2 in loops `i`, `j`."""
    a = placeholder((rows, columns), "float32", "a")
    return build([compute((rows, columns), lambda i, j: a[i, j] * 2.0, "y")], [a])


def chosen_rows(rows: int = 6, columns: int = 8) -> PrimFunc:
    """y[i, j] = a[i, j] for all rows but the last two, which are 0, in loops `i`, `j`."""
    a = placeholder((rows, columns), "float32", "a")
    zero = const(0.0, "float32")
    return build(
        [compute((rows, columns), lambda i, j: select(i < rows - 2, a[i, j], zero), "y")], [a]
    )


def two_stages() -> PrimFunc:
    """t = a + 1 in loops `i`, `j`; then y = t * t in loops `i_2`, `j_2`."""
    a = placeholder((4, 6), "float32", "a")
    t = compute((4, 6), lambda i, j: a[i, j] + 1.0, "t")
    return build([compute((4, 6), lambda i, j: t[i, j] * t[i, j], "y")], [a])


def matmul(rows: int = 4, columns: int = 8, depth: int = 6) -> PrimFunc:
    """t = a @ w, `w` constant, in `i`, `j`, `k`; then y = max(t, 0) in `i_2`, `j_2`."""
    a = placeholder((rows, depth), "float32", "a")
    # The value does not matter: it says that `w` is known when compiling.
    w = placeholder((depth, columns), "float32", "w", data=0)
    k = reduce_axis(depth, "k")
    t = compute((rows, columns), lambda i, j: sum(a[i, k] * w[k, j], k), "t")
    return build([compute((rows, columns), lambda i, j: maximum(t[i, j], 0.0), "y")], [a, w])


def byte_products() -> PrimFunc:
    """t[j] = sum over k of a[k] * w[j, k] in loops `j`, `k`, bytes into int32."""
    a = placeholder((4,), "int8", "a")
    w = placeholder((4, 4), "int8", "w", data=0)
    k = reduce_axis(4, "k")
    return build(
        [compute((4,), lambda j: sum(cast(a[k], "int32") * cast(w[j, k], "int32"), k), "t")],
        [a, w],
    )


def row_sums() -> PrimFunc:
    """y[i] = sum over k of a[i, k] in loops `i`, `k`."""
    a = placeholder((4, 12), "float32", "a")
    k = reduce_axis(12, "k")
    return build([compute((4,), lambda i: sum(a[i, k], k), "y")], [a])


def padded_windows() -> PrimFunc:
    """y[i] = sum over k of a[i + k - 1] within `a`, in loops `i`, `k`."""
    a = placeholder((8,), "float32", "a")
    k = reduce_axis(3, "k")

    return build(
        [
            compute(
                (8,),
                lambda i: sum(a[i + k - 1], k, where=all_of(i + k >= 1, i + k < 9)),
                "y",
            )
        ],
        [a],
    )


def convolution(down: int = 5, across: int = 4, inner: int = 2, outer: int = 3) -> PrimFunc:
    """y = 3x3 windows of x, padded by 1, with constant w, in `n`, `h`, `v`, `o`, `kh`, `kw`, `c`;
    then z = max(y, 0) in `n_2`, `h_2`, `v_2`, `o_2`."""
    x = placeholder((1, down, across, inner), "float32", "x")
    w = placeholder((3, 3, inner, outer), "float32", "w", data=0)
    kh, kw, c = reduce_axis(3, "kh"), reduce_axis(3, "kw"), reduce_axis(inner, "c")
    shape = (1, down, across, outer)

    def element(n: Expr, h: Expr, v: Expr, o: Expr) -> Reduce:
        at = (h + kh - 1, v + kw - 1)
        tests = [at[0] >= 0, at[0] < down, at[1] >= 0, at[1] < across]
        return sum(x[n, at[0], at[1], c] * w[kh, kw, c, o], (kh, kw, c), where=all_of(*tests))

    y = compute(shape, element, "y")
    return build([compute(shape, lambda n, h, v, o: maximum(y[n, h, v, o], 0.0), "z")], [x, w])


def pairs_of_taps() -> PrimFunc:
    """y[i] = sum over k, c of a[(i + k) * 2 + c] * w[k, c], `w` constant, in `i`, `k`, `c`."""
    a, w = placeholder((12,), "int32", "a"), placeholder((3, 2), "int32", "w", data=0)
    k, c = reduce_axis(3, "k"), reduce_axis(2, "c")
    y = compute((4,), lambda i: sum(a[(i + k) * 2 + c] * w[k, c], (k, c)), "y")
    return build([y], [a, w])
