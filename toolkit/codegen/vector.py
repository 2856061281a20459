"""Vectorised stores: a block whose innermost loop runs in the lanes of vectors, as intrinsics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from toolkit.codegen.copies import Place
from toolkit.codegen.fixed_point import (
    half_up_shift,
    high_product,
    high_word,
    long_sum,
    rounded_shift,
    saturated,
)
from toolkit.codegen.tensor import lanes_left
from toolkit.ir.compute import reduce_identity
from toolkit.ir.expr import (
    Binary,
    by_identity,
    Call,
    Cast,
    Const,
    Expr,
    INDEX,
    Load,
    loads,
    Select,
    substitute,
    Var,
    variables,
    walk,
)
from toolkit.ir.loop import Block, REGISTER
from toolkit.ir.simplify import bounds, linear
from toolkit.ir.types import DTYPES, int_range, is_float
from toolkit.targets.isa import Isa, VectorType
from toolkit.targets.isas.integer import NARROW

if TYPE_CHECKING:
    from toolkit.codegen.kernel import KernelPrinter

_SCALAR_CALL = {
    "exp": "expf", "log": "logf", "log1p": "log1pf", "sin": "sinf", "cos": "cosf", "tan": "tanf",
    "asin": "asinf", "acos": "acosf", "atan": "atanf", "sinh": "sinhf", "cosh": "coshf",
    "tanh": "tanhf", "asinh": "asinhf", "acosh": "acoshf", "atanh": "atanhf", "erf": "erff",
    "trunc": "truncf", "sigmoid": "nst_sigmoid_float32",
}  # fmt: skip


_BITWISE = ("add", "sub", "mul", "and", "or", "xor")
"""Operations on integers whose low bits depend on the operands' low bits alone."""


def lanes_of(isa: Isa, block: Block, dtype: str) -> int:
    """Return the lanes in which a block that stores `dtype` is computed; 1 where it is not.

    Narrow integers have vectors of their own where nothing else is computed; else they lie in lanes
    of int32.
    """
    others = _dtypes(block.value) - {INDEX, "bool", dtype}
    return isa.lanes("int32" if others and dtype in NARROW else dtype)


@by_identity
def _dtypes(expr: Expr) -> frozenset[str]:
    """Return the types of an expression and all its parts."""
    return frozenset(e.dtype for e in walk(expr))


class NotVectorizable(Exception):
    """The statement has no vector form on this instruction set; it is printed as a plain loop."""


@dataclass(frozen=True, slots=True)
class LanesAt:
    """The distance in elements between lanes, None where it differs, and the first's subscript."""

    stride: int | None
    first: Expr


class VectorPrinter:
    """Prints stores with the loop `var` in vector lanes."""

    def __init__(self, outer: KernelPrinter, var: str, lanes: int) -> None:
        self.outer = outer
        self.var = var
        self.lanes = lanes
        self.count: str | None = None
        """C text of the number of lanes in use, None for all; `known_count`: at most so many."""
        self.known_count = lanes
        self.value: Expr = Const(INDEX, 0)
        """What the block stores, before unrolled loops take their values."""
        self.pending: list[str] = []
        """Vectors whose lanes go into one element, by `across`."""

    def store(
        self, block: Block, tests: Sequence[Expr], count: int
    ) -> tuple[list[str], list[Expr]]:
        """Return the statements of a vector of `count` elements, and tests that stay scalar."""
        outer = self.outer
        dtype = outer.buffers[block.buffer].dtype
        vector = self._vector(dtype)
        uniform: list[Expr] = []
        self.count = None if count == self.lanes else str(count)
        self.known_count = count
        whole: list[Expr] = []
        for test in tests:
            test = outer.resolve(test)
            if self.var not in variables(test):
                uniform.append(substitute(test, {}))
                continue
            left = self._lanes_left(test)
            low = bounds(left, outer.ranges)
            if low is not None and low[0] >= count:
                continue
            if self.count is not None:
                raise NotVectorizable
            lanes_text = outer.expr.text(left)
            self.count = f"nst_clamp_count({lanes_text}, {count})"
            whole.append(left)
        flat = outer.flat(block.buffer, block.indices)
        self.value = block.value
        value = outer.resolve(block.value)
        stride = self._stride(flat)
        if stride == 0 and block.reduce in ("sum", "max", "min"):
            others, self.pending = self.pending, []
            self._add_across(block, value, vector)
            if uniform:  # a statement of its own, behind tests that the other vectors do not need
                text, self.pending = self.across(block), others
                return [text], uniform
            self.pending = [*others, *self.pending]
            return [], uniform
        if stride != 1:
            raise NotVectorizable
        target = self._at(flat).first
        register = outer.buffers[block.buffer].scope == REGISTER
        if block.reduce is None:
            limited = saturated(value) if self.count is None and not register else None
            if limited is not None and f"store_saturated_{dtype}" in vector.ops:
                text, op = self.vec(limited), f"store_saturated_{dtype}"
            else:
                text, op = self.bits(value), ""
            return [self._write(block.buffer, target, text, vector, register, op)], uniform
        if self._widened(dtype):
            raise NotVectorizable
        current = self._read(block.buffer, target, vector)
        # Lanes that a guard skips keep their value: beyond the end of a masked load lie zeros.
        skips = bool(whole) and register and not self._zero_beyond(block, value)
        if skips:
            neutral = outer.expr.text(reduce_identity(block.reduce, block.value.dtype))
            term = self._op(vector, "fill_n", self.vec(value), str(self.count), neutral)
        else:
            term = self.vec(value)
        if block.reduce in ("sum", "add"):
            if isinstance(value, Binary) and value.op == "mul" and not skips:
                text = self._fma(value.a, value.b, current, vector)
            else:
                text = self._op(vector, "add", current, term)
        elif block.reduce in ("max", "min"):
            text = self._op(vector, f"nan{block.reduce}", current, term)
        elif block.reduce == "prod":
            text = self._op(vector, "mul", current, term)
        else:
            raise NotVectorizable
        return [self._write(block.buffer, target, text, vector, register)], uniform

    def _zero_beyond(self, block: Block, value: Expr) -> bool:
        """Tell whether a sum's term is zero beyond the end: it has a masked load as factor."""
        if block.reduce not in ("sum", "add"):
            return False
        factors = (
            (value.a, value.b) if isinstance(value, Binary) and value.op == "mul" else (value,)
        )
        return any(isinstance(f, Load) and self.var in variables(f) for f in factors)

    def _add_across(self, block: Block, value: Expr, vector: VectorType) -> None:
        """Add a vector to those that `across` reduces."""
        assert block.reduce is not None
        if block.value.dtype in NARROW:
            raise NotVectorizable
        text = self.vec(value)
        if self.count is not None:  # what lies beyond the end may hold anything by now
            neutral = reduce_identity(block.reduce, block.value.dtype)
            text = self._op(vector, "fill_n", text, str(self.count), self.outer.expr.text(neutral))
        self.pending.append(text)

    def across(self, block: Block) -> str:
        """Return the statement that reduces the lanes of the pending vectors into one element."""
        assert block.reduce is not None
        dtype = block.value.dtype
        vector, texts = self._vector(dtype), self.pending
        self.pending = []
        join = "add" if block.reduce == "sum" else f"nan{block.reduce}"
        while len(texts) > 1:  # lanes with lanes, pairwise: one reduction across them at the end
            pairs = [texts[i : i + 2] for i in range(0, len(texts), 2)]
            texts = [self._op(vector, join, *p) if len(p) == 2 else p[0] for p in pairs]
        text = self._op(vector, f"h{block.reduce}", texts[0])
        target = self.outer.element(block.buffer, block.indices)
        if block.reduce == "sum" and is_float(dtype):
            return f"{target} += {text};"
        if block.reduce == "sum":
            return f"{target} = (int32_t)((uint32_t){target} + (uint32_t){text});"
        return f"{target} = nst_{block.reduce}_{dtype}({target}, {text});"

    def _lanes_left(self, test: Expr) -> Expr:
        """Return how many lanes satisfy an upper bound on the lane variable."""
        left = lanes_left(test, self.var)
        if left is None:
            raise NotVectorizable
        return left

    def _at(self, flat: Expr) -> LanesAt:
        """Return how the lanes lie whose subscript is `flat`."""
        key = id(flat), self.var
        found = self.outer.lanes.get(key)
        if found is None:
            found = self.outer.lanes[key] = flat, self._lanes_at(flat)
        return found[1]

    def _lanes_at(self, flat: Expr) -> LanesAt:
        if self.var not in variables(flat):
            return LanesAt(0, flat)
        terms, _ = linear(flat)
        stride = terms.pop(Var(INDEX, self.var), 0)
        if any(self.var in variables(atom) for atom in terms):
            return LanesAt(None, flat)
        first = substitute(flat, {self.var: Const(INDEX, 0)})
        return LanesAt(stride, self.outer.resolver.simplify(first))

    def _stride(self, flat: Expr) -> int:
        """Return the distance in elements between lanes."""
        stride = self._at(flat).stride
        if stride is None:
            raise NotVectorizable
        return stride

    def _read(self, buffer: str, base: Expr, vector: VectorType) -> str:
        text = partial(self._read_at, buffer, vector, self.count, self.known_count)
        return self.outer.copying.placed(base, text)

    def _read_at(
        self, buffer: str, vector: VectorType, count: str | None, known_count: int, place: Place
    ) -> str:
        outer = self.outer
        dtype = outer.buffers[buffer].dtype
        if outer.buffers[buffer].scope == REGISTER:
            join = vector.ops.get("join")
            local = self._local(buffer, place, known_count, join.c if join else None)
            if local is not None:
                return local
        address = f"&{outer.names[buffer]}[{outer.offsets.subscript(place)}]"
        if count is None:
            text = self._op(vector, self._access("load", dtype), address)
        else:
            text = self._op(vector, self._access("load_n", dtype), address, count)
        if outer.buffers[buffer].scope == REGISTER:
            return text  # a local array may be written between two such loads
        return self._shared(text, vector)

    def _shared(self, text: str, vector: VectorType) -> str:
        """Remember a load or broadcast that several statements may share."""
        return self.outer.share(text, vector.c_type)

    def _write(
        self,
        buffer: str,
        base: Expr,
        text: str,
        vector: VectorType,
        register: bool,
        op: str = "",
    ) -> str:
        return self.outer.copying.placed(
            base, partial(self._write_at, buffer, text, vector, register, op, self.count,
                          self.known_count)
        )  # fmt: skip

    def _write_at(
        self, buffer: str, text: str, vector: VectorType, register: bool, op: str,
        count: str | None, known_count: int, place: Place,
    ) -> str:  # fmt: skip
        outer = self.outer
        dtype = outer.buffers[buffer].dtype
        if register:
            local = self._local(buffer, place, known_count)
            if local is not None:
                return f"{local} = {text};"
        address = f"&{outer.names[buffer]}[{outer.offsets.subscript(place)}]"
        if count is not None:
            return self._op(vector, self._access("store_n", dtype), address, text, count) + ";"
        return self._op(vector, op or self._access("store", dtype), address, text) + ";"

    def _local(
        self, buffer: str, place: Place, known_count: int, join: str | None = None
    ) -> str | None:
        """Return the named local, or scalars joined; narrow integers stay in an array."""
        if self._widened(self.outer.buffers[buffer].dtype):
            self.outer.keep_array(buffer)
            return None
        return self.outer.local(buffer, place, self.lanes, known_count, join)

    def _op(self, vector: VectorType, name: str, *args: str) -> str:
        if name not in vector.ops:
            raise NotVectorizable
        return vector.ops[name].c.format(*args)

    def vec(self, expr: Expr) -> str:
        """Return the vector text of an expression; narrow integers lie in lanes of int32."""
        outer = self.outer
        vector = self._vector(expr.dtype)
        if self.var not in variables(expr):
            return self._shared(self._op(vector, "set1", outer.expr.text(expr)), vector)
        fixed = self._fixed_point(expr, vector)
        if fixed is not None:
            return fixed
        match expr:
            case Load():
                flat = outer.flat(expr.buffer, expr.indices)
                stride = self._stride(flat)
                if stride == 0:
                    return self._shared(
                        self._op(vector, "set1", outer.at(expr.buffer, flat)), vector
                    )
                if stride != 1:
                    raise NotVectorizable
                return self._read(expr.buffer, self._at(flat).first, vector)
            case Binary(op=op) if self._widened(expr.dtype) and op not in ("max", "min"):
                if op not in _BITWISE:
                    raise NotVectorizable
                return self._cut(self.bits(expr), expr.dtype, vector)
            case Binary(op="max" | "min"):
                return self._minmax(expr, vector)
            case Binary(op="add") if isinstance(expr.a, Binary) and expr.a.op == "mul":
                return self._fma(expr.a.a, expr.a.b, self.vec(expr.b), vector)
            case Binary(op="shl" | "shr"):
                if not isinstance(expr.b, Const) or not 1 <= expr.b.value <= 31:
                    raise NotVectorizable
                return self._op(vector, expr.op, self.vec(expr.a), str(expr.b.value))
            case Binary(op="add" | "sub" | "mul" | "div" | "and" | "or" | "xor"):
                return self._with(expr.op, expr.a, expr.b, vector)
            case Call(args=(arg,)):
                text = self.vec(arg)
                if expr.fn in vector.ops:
                    return self._op(vector, expr.fn, text)
                if expr.fn in _SCALAR_CALL and "map" in vector.ops:
                    return self._op(vector, "map", text, _SCALAR_CALL[expr.fn])
                raise NotVectorizable
            case Select():
                return self._select(expr, vector)
            case Cast():
                return self._cast(expr, vector)
        raise NotVectorizable

    def _with(self, op: str, a: Expr, b: Expr, vector: VectorType) -> str:
        """Return an operation on two operands, of which one that all lanes share stays a scalar
        where the instruction set has such a form."""
        if f"{op}_n" in vector.ops:
            turned = ((b, a),) if op in ("add", "mul", "high_product") else ()
            for one, other in ((a, b), *turned):
                scalar = self._scalar(other)
                if scalar is not None:
                    return self._op(vector, f"{op}_n", self.vec(one), scalar)
        return self._op(vector, op, self.vec(a), self.vec(b))

    def _fixed_point(self, expr: Expr, vector: VectorType) -> str | None:
        """Return the text of fixed-point arithmetic that takes an instruction or two; else None."""
        if expr.dtype != "int32" or "high_product" not in vector.ops:
            return None
        product = high_product(expr)
        if product is not None:
            return self._with("high_product", *product, vector)
        word = high_word(expr)
        if word is not None:
            a, b, offset, bits = word
            text = self._with("high_word", a, b, vector)
            if bits and offset == 1 << (bits - 1):
                return self._op(vector, "rounded_shr", text, str(bits))
            if offset:
                offset_text = self._shared(self._op(vector, "set1", str(offset)), vector)
                text = self._op(vector, "add", text, offset_text)
            return self._op(vector, "shr", text, str(bits)) if bits else text
        total = long_sum(expr) if "high_sum" in vector.ops else None
        if total is not None:
            parts = [self.vec(total.a), self.vec(total.b), self._long(total.offset, vector)]
            if total.below is None:
                text = self._op(vector, "high_sum", *parts)
            else:
                text = self._op(vector, "high_sum_below", *parts, self.vec(total.below))
            return self._op(vector, "shr", text, str(total.bits)) if total.bits else text
        up = half_up_shift(expr)
        if up is not None:
            return self._op(vector, "shift_half_up", *map(self.vec, up))
        shift = rounded_shift(expr)
        if shift is not None:
            x, n = shift
            if isinstance(n, Const):
                return self._op(vector, "shift_away_n", self.vec(x), str(n.value))
            return self._op(vector, "shift_away", self.vec(x), self.vec(n))
        return None

    def _long(self, expr: Expr, vector: VectorType) -> str:
        """Return the text of int64 in lanes: neighbours in memory, or the same for all."""
        outer = self.outer
        if self.var not in variables(expr):
            text = self._op(vector, "set1_long", outer.expr.text(expr))
        elif isinstance(expr, Load):
            flat = outer.flat(expr.buffer, expr.indices)
            if self._stride(flat) != 1 or outer.buffers[expr.buffer].scope == REGISTER:
                raise NotVectorizable
            name = outer.names[expr.buffer]
            address = outer.copying.placed(
                self._at(flat).first, lambda at: f"&{name}[{outer.offsets.subscript(at)}]"
            )
            if self.count is None:
                text = self._op(vector, "load_long", address)
            else:
                text = self._op(vector, "load_n_long", address, self.count)
        else:
            raise NotVectorizable
        return outer.share(text, vector.long_type)

    def _fma(self, a: Expr, b: Expr, c: str, vector: VectorType) -> str:
        """Return a * b + c: a factor that is the same in all lanes may stay a scalar.

        Where copies of an unrolled loop take neighbours, they take lanes of one vector.
        """
        for one, other in ((a, b), (b, a)) if "fma_lane" in vector.ops else ():
            run = self._run(one) if isinstance(one, Load) else None
            if isinstance(one, Load) and run is not None:
                place = f"&{self.outer.names[one.buffer]}[{self.outer.expr.text(run[0])}]"
                row = self._shared(vector.ops["load"].c.format(place), vector)
                return self._op(vector, "fma_lane", self.vec(other), row, c, str(run[1]))
        if "fma_n" in vector.ops:
            for one, other in ((a, b), (b, a)):
                scalar = self._scalar(one)
                if scalar is not None:
                    return self._op(vector, "fma_n", self.vec(other), scalar, c)
        return self._op(vector, "fma", self.vec(a), self.vec(b), c)

    def _run(self, load: Load) -> tuple[Expr, int] | None:
        """Return `run_of` a load, given as it is in this copy; None if it differs by lane."""
        flat = self.outer.flat(load.buffer, load.indices)
        if self.var in variables(flat):
            return None
        for source in loads(self.value):
            same = source.buffer == load.buffer
            if same and self.outer.flat(source.buffer, source.indices) == flat:
                return self.outer.run_of(source, self.lanes)
        return None

    def _scalar(self, expr: Expr) -> str | None:
        """Return the text of a value that is the same in all lanes; None for others."""
        outer = self.outer
        if isinstance(expr, Load):
            flat = outer.flat(expr.buffer, expr.indices)
            return outer.at(expr.buffer, flat) if self._stride(flat) == 0 else None
        return outer.expr.text(expr, 12) if self.var not in variables(expr) else None

    def bits(self, expr: Expr) -> str:
        """Return `vec(expr)`, or what has the same low bits, as many as its type has."""
        vector = self._vector(expr.dtype)
        if self._widened(expr.dtype) and self.var in variables(expr):
            match expr:
                case Binary(op=op) if op in _BITWISE:
                    return self._op(vector, op, self.bits(expr.a), self.bits(expr.b))
                case Cast(a=a) if a.dtype in (*NARROW, "int32"):
                    whole = saturated(expr) if f"saturate_{expr.dtype}" in vector.ops else None
                    if whole is not None:
                        return self._op(vector, f"saturate_{expr.dtype}", self.vec(whole))
                    if DTYPES[expr.dtype].nbytes <= DTYPES[a.dtype].nbytes:
                        return self.bits(a)
        return self.vec(expr)

    def _vector(self, dtype: str) -> VectorType:
        """Return the vectors in whose lanes elements of a type are computed."""
        vector = self.outer.isa.vectors.get("int32" if self._widened(dtype) else dtype)
        if vector is None or vector.lanes != self.lanes:
            raise NotVectorizable
        return vector

    def _widened(self, dtype: str) -> bool:
        """Tell whether elements of a narrow type lie in lanes of int32."""
        return dtype in NARROW and self.outer.isa.lanes(dtype) != self.lanes

    def _access(self, op: str, dtype: str) -> str:
        """Return the operation that loads or stores elements of a type."""
        return f"{op}_{dtype}" if self._widened(dtype) else op

    def _cut(self, text: str, dtype: str, vector: VectorType) -> str:
        """Return the text of lanes cut to the bits of a narrower type."""
        nbits = 8 * DTYPES[dtype].nbytes
        if DTYPES[dtype].kind == "u":
            mask = self._shared(self._op(vector, "set1", str((1 << nbits) - 1)), vector)
            return self._op(vector, "and", text, mask)
        rest = str(32 - nbits)
        return self._op(vector, "shr", self._op(vector, "shl", text, rest), rest)

    def _cast(self, expr: Cast, vector: VectorType) -> str:
        source, to = expr.a.dtype, expr.dtype
        if source == "float32":
            if to not in (*NARROW, "int32"):
                raise NotVectorizable
            # What lies outside the type is undefined, so narrow types need no cut.
            whole = _unrounded(expr.a)
            if whole is not None:
                return self._op(vector, "rint_float32", self.vec(whole))
            return self._op(vector, "from_float32", self.vec(expr.a))
        if source not in (*NARROW, "int32") or self.lanes != self.outer.isa.lanes("int32"):
            raise NotVectorizable
        if to == "float32":
            return self._op(vector, "from_int32", self.vec(expr.a))
        (low, high), (least, most) = int_range(source), int_range(to)
        if least <= low and high <= most:
            return self.vec(expr.a)
        cut = DTYPES[to].nbytes <= DTYPES[source].nbytes
        return self._cut(self.bits(expr.a) if cut else self.vec(expr.a), to, vector)

    def _minmax(self, expr: Binary, vector: VectorType) -> str:
        """max(x, c) with a literal c needs no care for NaN when x is the second operand."""
        a, b = expr.a, expr.b
        if isinstance(a, Const):
            a, b = b, a
        if isinstance(b, Const) and b.value == b.value:
            return self._op(vector, expr.op, self.vec(b), self.vec(a))
        return self._op(vector, f"nan{expr.op}", self.vec(a), self.vec(b))

    def _check_loads(self, *arms: Expr) -> None:
        """Refuse sides that may lie outside their buffers where they are not chosen."""
        outer = self.outer
        ranges = {**outer.ranges, self.var: (0, self.known_count - 1)}
        for arm in arms:
            for load in loads(arm):
                for index, size in zip(load.indices, outer.buffers[load.buffer].shape, strict=True):
                    reach = bounds(outer.resolve(index), ranges)
                    if reach is None or reach[0] < 0 or reach[1] >= size:
                        raise NotVectorizable

    def _select(self, expr: Select, vector: VectorType) -> str:
        cond = expr.cond
        a, b = self.vec(expr.a), self.vec(expr.b)
        if self.var not in variables(cond):
            return f"({self.outer.expr.text(cond)} ? {a} : {b})"
        if (
            isinstance(cond, Binary)
            and cond.op in ("lt", "le", "eq", "ne")
            and self._vector(cond.a.dtype) is vector
        ):
            self._check_loads(expr.a, expr.b)
            left, right = self.vec(cond.a), self.vec(cond.b)
            return self._op(vector, f"select_{cond.op}", left, right, a, b)
        raise NotVectorizable


def _unrounded(expr: Expr) -> Expr | None:
    """Return x for round(x) that was limited to whole numbers or not: to be rounded after that."""
    match expr:
        case Call(fn="round", args=(x,)):
            return x
        case Select(cond=Binary(op="lt", a=a, b=b) as cond, a=yes, b=no):
            # clamp(x, high): x < high ? x : high; clamp(x, low): low < x ? x : low
            for value, limit in ((a, b), (b, a)):
                whole = isinstance(limit, Const) and float(limit.value).is_integer()
                if whole and (yes, no) == (value, limit):
                    inner = _unrounded(value)
                    if inner is None:
                        return None
                    order = (inner, limit) if value is a else (limit, inner)
                    test = Binary(cond.dtype, "lt", *order)
                    return Select(expr.dtype, test, inner, limit)
    return None
