"""Matrix products: MatMul and Gemm.  Meaning: the ONNX operator specification."""

from __future__ import annotations

from toolkit.ir.compute import compute, reduce_axis, sum, Tensor
from toolkit.ir.expr import const, Expr
from toolkit.ops.elementwise import broadcast_load, broadcast_shape
from toolkit.ops.op import Ctx, Op


def _matmul(ctx: Ctx, a: Tensor, b: Tensor) -> Tensor:
    """[.., M, K] x [.., K, N] -> [.., M, N], leading axes broadcast; 1-D operands as NumPy does."""
    if a.rank == 0 or b.rank == 0:
        raise ctx.refuse("operands must have at least one axis.")
    inner_b = b.shape[0] if b.rank == 1 else b.shape[-2]
    if a.shape[-1] != inner_b:
        raise ctx.refuse(
            f"inner extents differ: {a.shape[-1]} of {list(a.shape)}, {inner_b} of {list(b.shape)}."
        )
    lead = broadcast_shape(ctx, a.shape[:-2], b.shape[:-2])
    rows = a.shape[-2:-1] if a.rank > 1 else ()
    cols = b.shape[-1:] if b.rank > 1 else ()
    k = reduce_axis(a.shape[-1], "k")

    def element(*i: Expr) -> object:
        batch = i[: len(lead)]
        rest = list(i[len(lead) :])
        left: list[Expr] = [rest.pop(0), k] if rows else [k]
        right: list[Expr] = [k, rest.pop(0)] if cols else [k]
        return sum(_batched(a, batch, left) * _batched(b, batch, right), k)

    return compute((*lead, *rows, *cols), element, "matmul")  # type: ignore[arg-type]


def _batched(x: Tensor, batch: tuple[Expr, ...], matrix: list[Expr]) -> Expr:
    lead = x.shape[: x.rank - len(matrix)]
    used = batch[len(batch) - len(lead) :]
    return x[(*(0 if n == 1 else i for n, i in zip(lead, used, strict=True)), *matrix)]


def _gemm(ctx: Ctx, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """alpha * A' B' + beta * C, with A' and B' transposed as the attributes say."""
    alpha, beta = ctx.attr("alpha", 1.0), ctx.attr("beta", 1.0)
    trans_a, trans_b = bool(ctx.attr("transA", 0)), bool(ctx.attr("transB", 0))
    if a.rank != 2 or b.rank != 2:
        raise ctx.refuse("operands must be matrices.")
    m, depth = a.shape[::-1] if trans_a else a.shape
    depth_b, n = b.shape[::-1] if trans_b else b.shape
    if depth != depth_b:
        raise ctx.refuse(f"inner extents differ: {depth} and {depth_b}.")
    k = reduce_axis(depth, "k")
    product = compute(
        (m, n),
        lambda i, j: sum((a[k, i] if trans_a else a[i, k]) * (b[j, k] if trans_b else b[k, j]), k),
        "gemm",
    )
    if c is None and alpha == 1.0:
        return product

    def element(i: Expr, j: Expr) -> Expr:
        value: Expr = product[i, j]
        if alpha != 1.0:
            value = value * const(alpha, a.dtype)
        if c is not None and beta != 0.0:
            bias: Expr = broadcast_load(c, (i, j))
            value = value + (bias if beta == 1.0 else bias * const(beta, a.dtype))
        return value

    return compute((m, n), element, "gemm_out")


MATMUL_OPS: dict[str, Op] = {"MatMul": Op(_matmul), "Gemm": Op(_gemm)}
