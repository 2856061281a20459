"""Recurrent layers: RNN, GRU, LSTM.  Meaning: the ONNX operator specification, newest version.

The products of the inputs of all steps with W are one matrix product in front of the recurrence; a
step then is the product of the state with R, the gates, and the update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.ir.compute import assemble, compute, placeholder, reduce_axis, scan, sum, Tensor
from toolkit.ir.expr import call, cast, Const, const, Expr, INDEX, maximum, minimum, select
from toolkit.ir.types import is_float
from toolkit.ops.elementwise import softplus
from toolkit.ops.op import Ctx, Op

Activation = Callable[[Expr], Expr]
Step = Callable[[Expr, Sequence[Tensor]], Sequence[Tensor]]
"""From the index of a step and the states to the new states; the first one is the output H."""

# Name, lower case -> (function of x, alpha, beta; default alpha; default beta).  None: has none.
ACTIVATIONS: dict[str, tuple[Callable[[Expr, float, float], Expr], float | None, float | None]] = {
    "relu": (lambda x, a, b: maximum(x, 0), None, None),
    "tanh": (lambda x, a, b: call("tanh", x), None, None),
    "sigmoid": (lambda x, a, b: call("sigmoid", x), None, None),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: select(x < 0, a * x, x), 0.01, None),
    "thresholdedrelu": (lambda x, a, b: select(x < a, 0, x), 1.0, None),
    "scaledtanh": (lambda x, a, b: a * call("tanh", b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: minimum(maximum(a * x + b, 0), 1), 0.2, 0.5),
    "elu": (lambda x, a, b: select(x < 0, a * (call("exp", x) - 1), x), 1.0, None),
    "softsign": (lambda x, a, b: x / (1 + call("abs", x)), None, None),
    "softplus": (lambda x, a, b: softplus(x), None, None),
}


@dataclass(frozen=True, slots=True)
class _Layer:
    """One direction of a layer: its operands, and where batch and step lie in them."""

    ctx: Ctx
    x: Tensor
    w: Tensor
    r: Tensor
    bias: Tensor | None
    lens: Tensor | None
    direction: int
    reverse: bool
    activations: tuple[Activation, ...]

    @property
    def batch_first(self) -> bool:
        return bool(self.ctx.attr("layout", 0))

    @property
    def steps(self) -> int:
        return self.x.shape[1 if self.batch_first else 0]

    @property
    def batch(self) -> int:
        return self.x.shape[0 if self.batch_first else 1]

    @property
    def hidden(self) -> int:
        return self.r.shape[2]

    @property
    def tag(self) -> str:
        return "_r" if self.reverse else ""

    def state_index(self, b: Expr, j: Expr) -> tuple[Expr, ...]:
        """Return the index of a state, which is shaped as in Y_h: direction, batch, unit."""
        zero = Const(INDEX, 0)
        return (b, zero, j) if self.batch_first else (zero, b, j)

    def state(self, fn: Callable[[Expr, Expr], Expr], name: str) -> Tensor:
        """Define a tensor of the shape of a state from its value at batch b and unit j."""
        if self.batch_first:
            return compute((self.batch, 1, self.hidden), lambda b, d, j: fn(b, j), name)
        return compute((1, self.batch, self.hidden), lambda d, b, j: fn(b, j), name)

    def initial(self, given: Tensor | None, name: str) -> Tensor:
        """Return a state before the first step: what is given for this direction, or zeros."""

        def element(b: Expr, j: Expr) -> Expr:
            if given is None or (given.data is not None and not np.any(given.data)):
                return const(0, self.x.dtype)
            d = Const(INDEX, self.direction)
            return given[(b, d, j) if self.batch_first else (d, b, j)]

        return self.state(element, name + self.tag)

    def vector(self, parts: Sequence[tuple[int, int]], name: str) -> Tensor | None:
        """Return the sum of slices (start, size) of the bias; a table when the bias is constant."""
        if self.bias is None:
            return None
        size = parts[0][1]
        if self.bias.data is not None:
            row = np.asarray(self.bias.data)[self.direction]
            total = np.sum([row[start : start + size] for start, _ in parts], axis=0)
            return placeholder((size,), self.x.dtype, name + self.tag, total.astype(row.dtype))
        bias, d = self.bias, self.direction

        def element(j: Expr) -> Expr:
            value: Expr = bias[d, j + parts[0][0]]
            for start, _ in parts[1:]:
                value = value + bias[d, j + start]
            return value

        return compute((size,), element, name + self.tag)

    def matrix(self, of: Tensor, start: int, rows: int, name: str) -> Callable[[Expr, Expr], Expr]:
        """Return a reader at (row, column) of `rows` rows of W or R from `start` on.

        Constants become a table with the rows innermost: those are the lanes of vectors.
        """
        d = self.direction
        if of.data is None:
            return lambda j, k: of[d, j + start, k]
        part = np.asarray(of.data)[d, start : start + rows].T
        table = placeholder(part.shape, of.dtype, name + self.tag, part)
        return lambda j, k: table[k, j]

    def project(self, bias: Tensor | None) -> Callable[[Expr, Expr, Expr], Expr]:
        """Define X W' of all steps; return its reader at (step, batch, row of W), bias included."""
        x, rows = self.x, self.w.shape[1]
        k = reduce_axis(x.shape[2], "k")
        weight = self.matrix(self.w, 0, rows, "w")

        product = compute(
            (self.steps, self.batch, rows),
            lambda t, b, j: sum((x[b, t, k] if self.batch_first else x[t, b, k]) * weight(j, k), k),
            "xw" + self.tag,
        )

        def read(t: Expr, b: Expr, j: Expr) -> Expr:
            value: Expr = product[t, b, j]
            return value if bias is None else value + bias[j]

        return read

    def recur(
        self, state: Callable[[Expr, Expr], Expr], start: int, rows: int, name: str
    ) -> Tensor:
        """Define state R' for `rows` rows of R from `start` on: [batch, rows]."""
        k = reduce_axis(self.hidden, "k")
        weight = self.matrix(self.r, start, rows, "r" if start == 0 else "r_h")
        return compute(
            (self.batch, rows), lambda b, j: sum(state(b, k) * weight(j, k), k), name + self.tag
        )

    def clipped(self, value: Expr) -> Expr:
        """Clip the input of a gate's activation, if the node says so.

        As onnxruntime: the cell state is not clipped where h of LSTM takes it.
        """
        clip = self.ctx.attr("clip")
        if not clip:
            return value
        return minimum(maximum(value, -float(clip)), float(clip))

    def run(self, init: Sequence[Tensor], step: Step) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """Run the recurrence; return Y of this direction (None if unused) and the final states."""

        def body(t: Expr, *states: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
            new = list(step(t, states))
            output = new[0]
            if self.lens is not None:
                lens = self.lens

                def inside(b: Expr) -> Expr:
                    return t < cast(lens[b], INDEX)

                def hold(value: Tensor, old: Tensor, name: str) -> Tensor:
                    return self.state(
                        lambda b, j: select(
                            inside(b), value[self.state_index(b, j)], old[self.state_index(b, j)]
                        ),
                        name,
                    )

                new = [hold(n, s, f"{n.name}_held") for n, s in zip(new, states, strict=True)]
                shown = output
                output = self.state(
                    lambda b, j: select(inside(b), shown[self.state_index(b, j)], 0), "shown"
                )
            return new, [output] if self.ctx.wants(0) else []

        collected, finals = scan(
            self.steps, init, body, reverse=self.reverse,
            collect_axis=1 if self.batch_first else 0, name="state" + self.tag,
        )  # fmt: skip
        return (collected[0] if collected else None), finals


def _activations(ctx: Ctx, names: Sequence[str]) -> list[Activation]:
    """Return the functions, with alpha and beta taken in order by those that have them."""
    alphas = [float(v) for v in ctx.attr("activation_alpha", ()) or ()]
    betas = [float(v) for v in ctx.attr("activation_beta", ()) or ()]
    found: list[Activation] = []
    for name in names:
        if name.lower() not in ACTIVATIONS:
            raise ctx.refuse(f"activation {name!r} is unknown; known: {', '.join(ACTIVATIONS)}.")
        fn, alpha, beta = ACTIVATIONS[name.lower()]
        a = alphas.pop(0) if alpha is not None and alphas else alpha or 0.0
        b = betas.pop(0) if beta is not None and betas else beta or 0.0
        found.append(lambda x, fn=fn, a=a, b=b: fn(x, a, b))  # type: ignore[misc]
    return found


def _layers(
    ctx: Ctx, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None, lens: Tensor | None,
    gates: int, default: tuple[str, ...],
) -> list[_Layer]:  # fmt: skip
    """Check the operands; return one layer a direction."""
    kind = ctx.attr("direction", "forward")
    if kind not in ("forward", "reverse", "bidirectional"):
        raise ctx.refuse(f"direction {kind!r} is unknown.")
    count = 2 if kind == "bidirectional" else 1
    if not is_float(x.dtype):
        raise ctx.refuse(f"its input must be float32 or float64, not {x.dtype}.")
    hidden = r.shape[2] if r.rank == 3 else 0
    rows = gates * hidden
    inner = x.shape[2] if x.rank == 3 else 0
    batch = x.shape[0 if ctx.attr("layout", 0) else 1] if x.rank == 3 else 0
    wanted: list[tuple[str, Tensor | None, tuple[int, ...]]] = [
        ("W", w, (count, rows, inner)),
        ("R", r, (count, rows, hidden)),
        ("B", bias, (count, 2 * rows)),
        ("sequence_lens", lens, (batch,)),
    ]
    for name, operand, shape in wanted:
        if operand is not None and operand.shape != shape:
            raise ctx.refuse(
                f"{name} has shape {list(operand.shape)}; X {list(x.shape)} and R {list(r.shape)} "
                f"with direction {kind!r} need {list(shape)}."
            )
    if ctx.attr("hidden_size", hidden) != hidden:
        raise ctx.refuse(f"hidden_size is {ctx.attr('hidden_size')}, but R has {hidden}.")
    given: Sequence[str | bytes] = ctx.attr("activations", ()) or default * count
    names = [n.decode() if isinstance(n, bytes) else str(n) for n in given]
    if len(names) != len(default) * count:
        raise ctx.refuse(f"takes {len(default) * count} activations, not {len(names)}.")
    steps = x.shape[1 if ctx.attr("layout", 0) else 0]
    if lens is not None and lens.data is not None and np.all(np.asarray(lens.data) >= steps):
        lens = None  # no sequence ends early
    functions = _activations(ctx, names)
    each = len(default)
    return [
        _Layer(
            ctx, x, w, r, bias, lens, d, kind == "reverse" or d == 1,
            tuple(functions[d * each : (d + 1) * each]),
        )
        for d in range(count)
    ]  # fmt: skip


def _results(
    ctx: Ctx, runs: Sequence[tuple[Tensor | None, tuple[Tensor, ...]]], states: int
) -> list[Tensor | None]:
    """Return Y, Y_h (and Y_c) with the directions side by side."""
    batch_first = bool(ctx.attr("layout", 0))
    columns: list[list[Tensor | None]] = [[run[0] for run in runs]]
    columns += [[run[1][s] for run in runs] for s in range(states)]
    axes = (2 if batch_first else 1, *(1 if batch_first else 0 for _ in range(states)))
    names = ("y", "y_h", "y_c")
    outs: list[Tensor | None] = []
    for position, (tensors, axis) in enumerate(zip(columns, axes, strict=True)):
        if not ctx.wants(position):
            outs.append(None)
        elif len(tensors) == 1:
            outs.append(tensors[0])
        else:
            outs.append(_side_by_side([t for t in tensors if t is not None], axis, names[position]))
    return outs


def _side_by_side(tensors: Sequence[Tensor], axis: int, name: str) -> Tensor:
    """Join tensors of extent 1 along `axis`."""
    shape = list(tensors[0].shape)
    shape[axis] = len(tensors)

    def place(d: int, x: Tensor, i: tuple[Expr, ...]) -> tuple[Sequence[Expr], Expr]:
        return (*i[:axis], Const(INDEX, d), *i[axis + 1 :]), x[i]

    parts = [(x.shape, lambda *i, d=d, x=x: place(d, x, i)) for d, x in enumerate(tensors)]
    return assemble(shape, parts, name=name)


def _check_state(ctx: Ctx, x: Tensor, r: Tensor, **states: Tensor | None) -> None:
    batch_first = bool(ctx.attr("layout", 0))
    count, hidden = r.shape[0], r.shape[2]
    shape = (x.shape[0], count, hidden) if batch_first else (count, x.shape[1], hidden)
    for name, state in states.items():
        if state is not None and state.shape != shape:
            raise ctx.refuse(f"{name} has shape {list(state.shape)}, not {list(shape)}.")


# -- RNN --------------------------------------------------------------------------------------


def _rnn(
    ctx: Ctx,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
) -> list[Tensor | None]:
    """H = f(X W' + Wb + H R' + Rb)."""
    layers = _layers(ctx, x, w, r, b, sequence_lens, 1, ("Tanh",))
    _check_state(ctx, x, r, initial_h=initial_h)

    def one(layer: _Layer) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        n = layer.hidden
        project = layer.project(layer.vector([(0, n), (n, n)], "bias"))
        (f,) = layer.activations

        def step(t: Expr, states: Sequence[Tensor]) -> Sequence[Tensor]:
            (h,) = states
            hr = layer.recur(lambda b, k: h[layer.state_index(b, k)], 0, n, "hr")
            return [
                layer.state(lambda b, j: f(layer.clipped(project(t, b, j) + hr[b, j])), "h_next")
            ]

        return layer.run([layer.initial(initial_h, "h0")], step)

    return _results(ctx, [one(layer) for layer in layers], 1)


# -- GRU --------------------------------------------------------------------------------------


def _gru(
    ctx: Ctx,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
) -> list[Tensor | None]:
    """Gates z (update), r (reset), and h; H = (1 - z) * h + z * H."""
    layers = _layers(ctx, x, w, r, b, sequence_lens, 3, ("Sigmoid", "Tanh"))
    _check_state(ctx, x, r, initial_h=initial_h)
    linear = bool(ctx.attr("linear_before_reset", 0))
    return _results(ctx, [_gru_layer(layer, initial_h, linear) for layer in layers], 1)


def _gru_layer(
    layer: _Layer, initial_h: Tensor | None, linear: bool
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    n = layer.hidden
    f, g = layer.activations
    hidden_bias = None
    if linear:
        # The bias of R of the hidden gate is inside the product with the reset gate.
        bias = _gru_bias(layer)
        hidden_bias = layer.vector([(5 * n, n)], "hidden_bias")
    else:
        bias = layer.vector([(0, 3 * n), (3 * n, 3 * n)], "bias")
    project = layer.project(bias)

    def step(t: Expr, states: Sequence[Tensor]) -> Sequence[Tensor]:
        (h,) = states

        def old(b: Expr, j: Expr) -> Expr:
            return h[layer.state_index(b, j)]

        hr = layer.recur(old, 0, (3 if linear else 2) * n, "hr")

        def gate(b: Expr, j: Expr) -> Expr:
            return f(layer.clipped(project(t, b, j) + hr[b, j]))

        if linear:

            def candidate(b: Expr, j: Expr) -> Expr:
                inner: Expr = hr[b, j + 2 * n]
                if hidden_bias is not None:
                    inner = inner + hidden_bias[j]
                return g(layer.clipped(project(t, b, j + 2 * n) + gate(b, j + n) * inner))
        else:
            reset = compute(
                (layer.batch, n), lambda b, j: gate(b, j + n) * old(b, j), "reset" + layer.tag
            )
            rhr = layer.recur(lambda b, k: reset[b, k], 2 * n, n, "rhr")

            def candidate(b: Expr, j: Expr) -> Expr:
                return g(layer.clipped(project(t, b, j + 2 * n) + rhr[b, j]))

        update = compute((layer.batch, n), gate, "update" + layer.tag)

        def new(b: Expr, j: Expr) -> Expr:
            z = update[b, j]
            return (1 - z) * candidate(b, j) + z * old(b, j)

        return [layer.state(new, "h_next")]

    return layer.run([layer.initial(initial_h, "h0")], step)


def _gru_bias(layer: _Layer) -> Tensor | None:
    """Return Wb + Rb for the gates z and r, and Wb alone for h: [3 n]."""
    if layer.bias is None:
        return None
    n, d, bias = layer.hidden, layer.direction, layer.bias
    if bias.data is not None:
        row = np.array(bias.data)[d]
        row[: 2 * n] += row[3 * n : 5 * n]
        return placeholder((3 * n,), bias.dtype, "bias" + layer.tag, row[: 3 * n].copy())
    return compute(
        (3 * n,),
        lambda j: select(
            j < 2 * n,
            bias[d, j] + bias[d, minimum(j + 3 * n, Const(INDEX, 6 * n - 1))],
            bias[d, j],
        ),
        "bias" + layer.tag,
    )


# -- LSTM -------------------------------------------------------------------------------------


def _lstm(
    ctx: Ctx,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    p: Tensor | None = None,
) -> list[Tensor | None]:
    """Gates i, o, f and cell input c; C = f * C + i * c, H = o * h(C)."""
    layers = _layers(ctx, x, w, r, b, sequence_lens, 4, ("Sigmoid", "Tanh", "Tanh"))
    _check_state(ctx, x, r, initial_h=initial_h, initial_c=initial_c)
    if p is not None and p.shape != (r.shape[0], 3 * r.shape[2]):
        raise ctx.refuse(f"P has shape {list(p.shape)}, not {[r.shape[0], 3 * r.shape[2]]}.")
    return _results(ctx, [_lstm_layer(layer, initial_h, initial_c, p) for layer in layers], 2)


def _lstm_layer(
    layer: _Layer, initial_h: Tensor | None, initial_c: Tensor | None, p: Tensor | None
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    n = layer.hidden
    f, g, out = layer.activations
    project = layer.project(layer.vector([(0, 4 * n), (4 * n, 4 * n)], "bias"))
    coupled = bool(layer.ctx.attr("input_forget", 0))

    def step(t: Expr, states: Sequence[Tensor]) -> Sequence[Tensor]:
        h, c = states
        hr = layer.recur(lambda b, k: h[layer.state_index(b, k)], 0, 4 * n, "hr")

        def gate(which: int, b: Expr, j: Expr, peep: int, cell: Tensor) -> Expr:
            """Input of the activation of gate `which`; `peep` is its place in P."""
            value = project(t, b, j + which * n) + hr[b, j + which * n]
            if p is not None and peep >= 0:
                value = value + p[layer.direction, j + peep * n] * cell[layer.state_index(b, j)]
            return layer.clipped(value)

        def cell(b: Expr, j: Expr) -> Expr:
            i = f(gate(0, b, j, 0, c)) if chosen is None else chosen[layer.state_index(b, j)]
            forget = 1 - i if coupled else f(gate(2, b, j, 2, c))
            return forget * c[layer.state_index(b, j)] + i * g(gate(3, b, j, -1, c))

        chosen: Tensor | None = None
        if coupled:
            chosen = layer.state(lambda b, j: f(gate(0, b, j, 0, c)), "input_gate")
        c_next = layer.state(cell, "c_next")

        def output(b: Expr, j: Expr) -> Expr:
            return f(gate(1, b, j, 1, c_next)) * out(c_next[layer.state_index(b, j)])

        return [layer.state(output, "h_next"), c_next]

    return layer.run([layer.initial(initial_h, "h0"), layer.initial(initial_c, "c0")], step)


RECURRENT_OPS: dict[str, Op] = {"RNN": Op(_rnn), "GRU": Op(_gru), "LSTM": Op(_lstm)}

__all__ = ["ACTIVATIONS", "RECURRENT_OPS"]
