"""Element-wise operators: arithmetic, comparison, logic, activations, casts; NumPy broadcasting.

Meaning: the ONNX operator specification, newest version of each operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from toolkit.ir.compute import Axis, compute, Tensor
from toolkit.ir.expr import (
    binary,
    Call,
    call,
    cast,
    Const,
    const,
    eq,
    Expr,
    Load,
    maximum,
    minimum,
    ne,
    select,
)
from toolkit.ir.types import DTYPES, FROM_ONNX, int_range, is_float
from toolkit.ops.op import Ctx, Op


def broadcast_shape(ctx: Ctx, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the NumPy broadcast of shapes; refuse shapes that do not fit."""
    try:
        return tuple(int(n) for n in np.broadcast_shapes(*shapes))
    except ValueError:
        texts = " and ".join(str(list(s)) for s in shapes)
        raise ctx.refuse(f"shapes {texts} cannot be broadcast.") from None


def broadcast_load(x: Tensor, index: Sequence[Expr]) -> Load:
    """Return the element of `x` that broadcasting places at `index` of the result.

    Where the result has extent 1 too, its index stays: the access is plainly element by element.
    """

    def place(n: int, i: Expr) -> Expr | int:
        return 0 if n == 1 and not (isinstance(i, Axis) and i.extent == 1) else i

    trailing = index[len(index) - x.rank :]
    return x[tuple(place(n, i) for n, i in zip(x.shape, trailing, strict=True))]


def unary(fn: Callable[[Ctx, Expr], Expr], name: str) -> Op:
    """Return the operator that applies `fn` to each element."""

    def op(ctx: Ctx, x: Tensor) -> Tensor:
        return compute(x.shape, lambda *i: fn(ctx, x[i]), name)

    return Op(op)


def math_op(fn: str) -> Op:
    """Return the operator for a scalar function of `FUNCTIONS`."""
    return unary(lambda ctx, x: call(fn, x), fn)


def binary_op(fn: Callable[[Expr, Expr], Expr], name: str) -> Op:
    """Return the operator that combines two broadcast operands."""

    def op(ctx: Ctx, a: Tensor, b: Tensor) -> Tensor:
        shape = broadcast_shape(ctx, a.shape, b.shape)
        return compute(shape, lambda *i: fn(broadcast_load(a, i), broadcast_load(b, i)), name)

    return Op(op)


def variadic_op(fn: Callable[[Expr, Expr], Expr], name: str, *, mean: bool = False) -> Op:
    """Return the operator that folds any number of broadcast operands."""

    def op(ctx: Ctx, *xs: Tensor) -> Tensor:
        shape = broadcast_shape(ctx, *(x.shape for x in xs))

        def element(*i: Expr) -> Expr:
            result: Expr = broadcast_load(xs[0], i)
            for x in xs[1:]:
                result = fn(result, broadcast_load(x, i))
            return result / len(xs) if mean else result

        return compute(shape, element, name)

    return Op(op)


def _pow(a: Expr, b: Expr) -> Expr:
    """Return a ** b in a's type; b may have another type."""
    if isinstance(b, Const) and b.value in (1, 2, 3) and is_float(a.dtype):
        result = a
        for _ in range(int(b.value) - 1):
            result = result * a
        return result
    if isinstance(b, Const) and b.value == 0.5 and is_float(a.dtype):
        return call("sqrt", a)
    if b.dtype != a.dtype:
        if is_float(a.dtype) or not is_float(b.dtype):
            b = cast(b, a.dtype)
        else:
            return cast(binary("pow", cast(a, b.dtype), b), a.dtype)
    return binary("pow", a, b)


def _power(ctx: Ctx, a: Tensor, b: Tensor) -> Tensor:
    shape = broadcast_shape(ctx, a.shape, b.shape)
    exponent = scalar_of(b)

    def element(*i: Expr) -> Expr:
        y = const(exponent, b.dtype) if exponent is not None else broadcast_load(b, i)
        return _pow(broadcast_load(a, i), y)

    return compute(shape, element, "pow")


def scalar_of(x: Tensor | None) -> float | int | None:
    """Return the value of a constant tensor of one element, else None."""
    if x is None or x.data is None or math.prod(x.shape) != 1:
        return None
    value: float | int = np.asarray(x.data).reshape(()).item()
    return value


def _mod(ctx: Ctx, a: Tensor, b: Tensor) -> Tensor:
    op = "mod" if ctx.attr("fmod", 0) else "floormod"
    shape = broadcast_shape(ctx, a.shape, b.shape)
    return compute(shape, lambda *i: binary(op, broadcast_load(a, i), broadcast_load(b, i)), "mod")


def _bit_shift(ctx: Ctx, a: Tensor, b: Tensor) -> Tensor:
    op = "shl" if ctx.attr("direction") == "LEFT" else "shr"
    shape = broadcast_shape(ctx, a.shape, b.shape)
    return compute(
        shape, lambda *i: binary(op, broadcast_load(a, i), broadcast_load(b, i)), "shift"
    )


def _cast(ctx: Ctx, x: Tensor) -> Tensor:
    to = FROM_ONNX.get(ctx.attr("to"))
    if to is None:
        raise ctx.refuse(f"element type {ctx.attr('to')} is not supported.")
    return compute(x.shape, lambda *i: cast(x[i], to), "cast")


def _cast_like(ctx: Ctx, x: Tensor, like: Tensor) -> Tensor:
    return compute(x.shape, lambda *i: cast(x[i], like.dtype), "cast")


def _clip(ctx: Ctx, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    def element(*i: Expr) -> Expr:
        value: Expr = x[i]
        if low is not None and low.shape in ((), (1,)):
            value = maximum(value, low[(0,) * low.rank])
        if high is not None and high.shape in ((), (1,)):
            value = minimum(value, high[(0,) * high.rank])
        return value

    return compute(x.shape, element, "clip")


def _prelu(ctx: Ctx, x: Tensor, slope: Tensor) -> Tensor:
    broadcast_shape(ctx, x.shape, slope.shape)

    def element(*i: Expr) -> Expr:
        return select(x[i] < 0, broadcast_load(slope, i) * x[i], x[i])

    return compute(x.shape, element, "prelu")


def _where(ctx: Ctx, cond: Tensor, a: Tensor, b: Tensor) -> Tensor:
    shape = broadcast_shape(ctx, cond.shape, a.shape, b.shape)
    return compute(
        shape,
        lambda *i: select(broadcast_load(cond, i), broadcast_load(a, i), broadcast_load(b, i)),
        "where",
    )


def _dropout(
    ctx: Ctx, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None
) -> tuple[Tensor, ...]:
    if training is not None and bool(ctx.value(training, "training_mode").reshape(()).item()):
        raise ctx.refuse("training mode draws random numbers.")
    kept = compute(x.shape, lambda *i: x[i], "dropout")
    mask = compute(x.shape, lambda *i: Const("bool", True), "mask")
    return kept, mask


def _is_inf(ctx: Ctx, x: Tensor) -> Tensor:
    positive, negative = ctx.attr("detect_positive", 1), ctx.attr("detect_negative", 1)

    def element(*i: Expr) -> Expr:
        value = x[i]
        if positive and negative:
            return call("isinf", value)
        if positive:
            return eq(value, math.inf)
        return eq(value, -math.inf) if negative else Const("bool", False)

    return compute(x.shape, element, "isinf")


def _bit_cast(ctx: Ctx, x: Tensor) -> Tensor:
    to = FROM_ONNX.get(ctx.attr("to"))
    if to is None or DTYPES[to].nbytes != DTYPES[x.dtype].nbytes:
        raise ctx.refuse("bit casts need a supported type of the same size.")
    if DTYPES[to].kind in "iub" and DTYPES[x.dtype].kind in "iub":
        return compute(x.shape, lambda *i: cast(x[i], to), "bits")
    return compute(x.shape, lambda *i: Call(to, "bits", (x[i],)), "bits")


def _gelu(ctx: Ctx, x: Tensor) -> Tensor:
    def element(*i: Expr) -> Expr:
        v: Expr = x[i]
        if ctx.attr("approximate", "none") == "tanh":
            inner = math.sqrt(2 / math.pi) * (v + 0.044715 * (v * v * v))
            return 0.5 * v * (1 + call("tanh", inner))
        return 0.5 * v * (1 + call("erf", v / math.sqrt(2)))

    return compute(x.shape, element, "gelu")


def sign(x: Expr) -> Expr:
    """Return -1, 0 or 1 in x's type; NaN stays NaN."""
    if DTYPES[x.dtype].kind == "u":
        return select(eq(x, 0), const(0, x.dtype), 1)
    return select(x > 0, const(1, x.dtype), select(x < 0, const(-1, x.dtype), x))


def softplus(x: Expr) -> Expr:
    """Return log(1 + exp(x)), written so that large x does not overflow."""
    return maximum(x, 0) + call("log1p", call("exp", -call("abs", x)))


def _hard_sigmoid(ctx: Ctx, x: Expr) -> Expr:
    alpha, beta = ctx.attr("alpha", 0.2), ctx.attr("beta", 0.5)
    return maximum(minimum(x * alpha + beta, 1.0), 0.0)


def _selu(ctx: Ctx, x: Expr) -> Expr:
    alpha: float = ctx.attr("alpha", 1.67326319217681884765625)
    gamma: float = ctx.attr("gamma", 1.05070102214813232421875)
    return gamma * select(x > 0, x, alpha * call("exp", x) - alpha)


def _celu(ctx: Ctx, x: Expr) -> Expr:
    alpha = ctx.attr("alpha", 1.0)
    return maximum(x, 0.0) + minimum(alpha * (call("exp", x / alpha) - 1.0), 0.0)


def _shrink(ctx: Ctx, x: Expr) -> Expr:
    lambd, bias = ctx.attr("lambd", 0.5), ctx.attr("bias", 0.0)
    if not is_float(x.dtype):
        real = cast(x, "float32")
        return cast(
            select(real < -lambd, real + bias, select(real > lambd, real - bias, 0.0)), x.dtype
        )
    return select(x < -lambd, x + bias, select(x > lambd, x - bias, 0.0))


def _reciprocal(ctx: Ctx, x: Expr) -> Expr:
    return 1 / x


def _relu(ctx: Ctx, x: Expr) -> Expr:
    if not is_float(x.dtype) and int_range(x.dtype)[0] >= 0:
        return x
    return maximum(x, 0)


def _hardswish(ctx: Ctx, x: Expr) -> Expr:
    return x * maximum(minimum(x / 6.0 + 0.5, 1.0), 0.0)


ELEMENTWISE_OPS: dict[str, Op] = {
    "Abs": math_op("abs"), "Exp": math_op("exp"), "Log": math_op("log"), "Sqrt": math_op("sqrt"),
    "Sin": math_op("sin"), "Cos": math_op("cos"), "Tan": math_op("tan"), "Asin": math_op("asin"),
    "Acos": math_op("acos"), "Atan": math_op("atan"), "Sinh": math_op("sinh"),
    "Cosh": math_op("cosh"), "Tanh": math_op("tanh"), "Asinh": math_op("asinh"),
    "Acosh": math_op("acosh"), "Atanh": math_op("atanh"), "Erf": math_op("erf"),
    "Floor": math_op("floor"), "Ceil": math_op("ceil"), "Round": math_op("round"),
    "Sigmoid": math_op("sigmoid"), "IsNaN": math_op("isnan"), "Not": math_op("not"),
    "BitwiseNot": math_op("not"), "IsInf": Op(_is_inf),
    "Neg": unary(lambda ctx, x: -x, "neg"), "Sign": unary(lambda ctx, x: sign(x), "sign"),
    "Reciprocal": unary(_reciprocal, "reciprocal"), "Relu": unary(_relu, "relu"),
    "LeakyRelu": unary(
        lambda ctx, x: select(x < 0, x * ctx.attr("alpha", 0.01), x), "leaky_relu"),
    "Elu": unary(
        lambda ctx, x: select(x < 0, ctx.attr("alpha", 1.0) * (call("exp", x) - 1.0), x), "elu"),
    "Celu": unary(_celu, "celu"), "Selu": unary(_selu, "selu"),
    "ThresholdedRelu": unary(
        lambda ctx, x: select(x > ctx.attr("alpha", 1.0), x, 0.0), "thresholded_relu"),
    "HardSigmoid": unary(_hard_sigmoid, "hard_sigmoid"),
    "HardSwish": unary(_hardswish, "hardswish"),
    "Softplus": unary(lambda ctx, x: softplus(x), "softplus"),
    "Softsign": unary(lambda ctx, x: x / (1 + call("abs", x)), "softsign"),
    "Mish": unary(lambda ctx, x: x * call("tanh", softplus(x)), "mish"),
    "Swish": unary(lambda ctx, x: x * call("sigmoid", ctx.attr("alpha", 1.0) * x), "swish"),
    "Shrink": unary(_shrink, "shrink"), "Gelu": Op(_gelu),
    "Add": binary_op(lambda a, b: a + b, "add"), "Sub": binary_op(lambda a, b: a - b, "sub"),
    "Mul": binary_op(lambda a, b: a * b, "mul"), "Div": binary_op(lambda a, b: a / b, "div"),
    "Pow": Op(_power), "Mod": Op(_mod), "BitShift": Op(_bit_shift),
    "And": binary_op(lambda a, b: a & b, "and_"), "Or": binary_op(lambda a, b: a | b, "or_"),
    "Xor": binary_op(lambda a, b: a ^ b, "xor_"),
    "BitwiseAnd": binary_op(lambda a, b: a & b, "and_"),
    "BitwiseOr": binary_op(lambda a, b: a | b, "or_"),
    "BitwiseXor": binary_op(lambda a, b: a ^ b, "xor_"),
    "Equal": binary_op(eq, "equal"), "Less": binary_op(lambda a, b: a < b, "less"),
    "LessOrEqual": binary_op(lambda a, b: a <= b, "less_equal"),
    "Greater": binary_op(lambda a, b: a > b, "greater"),
    "GreaterOrEqual": binary_op(lambda a, b: a >= b, "greater_equal"),
    "Max": variadic_op(maximum, "max"), "Min": variadic_op(minimum, "min"),
    "Sum": variadic_op(lambda a, b: a + b, "sum"),
    "Mean": variadic_op(lambda a, b: a + b, "mean", mean=True),
    "Cast": Op(_cast), "CastLike": Op(_cast_like), "Clip": Op(_clip), "PRelu": Op(_prelu),
    "Where": Op(_where), "Dropout": Op(_dropout), "BitCast": Op(_bit_cast),
}  # fmt: skip

__all__ = ["ELEMENTWISE_OPS", "broadcast_load", "broadcast_shape", "ne", "scalar_of", "sign"]
