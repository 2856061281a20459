"""Tensor intrinsics: the nest of a loop that `Tensorize` marked, as the statements of its table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from toolkit.codegen.copies import Fill, Place, Texts
from toolkit.codegen.streams import Stream
from toolkit.ir.expr import Binary, binary, Expr, INDEX, Var, variables
from toolkit.ir.loop import Loop, REGISTER
from toolkit.ir.simplify import bounds, from_linear, linear
from toolkit.ir.unify import Access, at_point, Mismatch, unify
from toolkit.targets.tensor import TensorIntrinsic

if TYPE_CHECKING:
    from toolkit.codegen.kernel import KernelPrinter


class TensorPrinter:
    """Prints one nest by an intrinsic.  Lives for one loop."""

    def __init__(self, outer: KernelPrinter, intrinsic: TensorIntrinsic, loop: Loop) -> None:
        """Raise `Mismatch` where lowering has changed how the operands lie."""
        self.outer = outer
        self.intrinsic = intrinsic
        over = {name: operand.over for name, operand in intrinsic.operands.items()}
        dtypes = {name: b.dtype for name, b in outer.buffers.items()}
        self.found, self.names = unify(intrinsic.nest, loop, outer.flat, dtypes, over)

    def lines(self, tests: Sequence[Expr]) -> Texts:
        """Return declarations and loads, statements, those after a zero result, and stores."""
        tail = self._tail(tests)
        registers: dict[str, str] = {} if tail is None else {"n": tail}
        before: list[str] = []
        after: list[str] = []
        for name in self.intrinsic.operands:
            if not self.found[name].buffer:
                registers[f"{name}0"] = self.outer.expr.text(self.found[name].flat)
            elif name == self.intrinsic.result and self.intrinsic.block.reduce is None:
                access = self.found[name]
                self._write(access.buffer)
                registers[name] = self._address(access.buffer, self._at(access, {}))
            elif name == self.intrinsic.result:
                self._accumulators(name, registers, before, after)
            else:
                self._loads(name, registers, tail)
        c = self.intrinsic.c if tail is None else self.intrinsic.c_partial
        first = self.intrinsic.c_first if tail is None else ()
        statements, firsts = ([text.format(**registers) for text in part] for part in (c, first))
        return before, statements, firsts, after

    def _tail(self, tests: Sequence[Expr]) -> str | None:
        """Return the text of how many iterations of the tail loop run; None for all of them."""
        if not tests:
            return None
        if self.intrinsic.tail is None or len(tests) > 1:
            raise Mismatch("a guard inside the nest")
        [test] = tests
        tail = self.names[self.intrinsic.tail]
        extent = next(l.extent for l in self.intrinsic.loops if l.var == self.intrinsic.tail)
        left = lanes_left(test, tail)
        if left is None:
            raise Mismatch("a guard inside the nest")
        low = bounds(left, self.outer.ranges)
        if low is not None and low[0] >= extent:
            return None
        return f"nst_clamp_count({self.outer.expr.text(left)}, {extent})"

    def _at(self, access: Access, point: Mapping[str, int]) -> Expr:
        """Return the subscript of the first element at an iteration of the loops `over`."""
        start = dict.fromkeys(self.names.values(), 0)
        start.update({self.names[var]: value for var, value in point.items()})
        return at_point(access.flat, start, self.outer.ranges)

    def _write(self, buffer: str) -> None:
        self.outer.copying.note(lambda _: self.outer.written.add(buffer))

    def _address(self, buffer: str, flat: Expr) -> str:
        return self.outer.copying.placed(flat, partial(self._address_at, buffer))

    def _address_at(self, buffer: str, place: Place) -> str:
        flat = place.expr()
        if self.outer.buffers[buffer].scope == REGISTER:
            self.outer.keep_array(buffer)
        text = f"&{self.outer.names[buffer]}[{self.outer.expr.text(flat)}]"
        self.outer.addresses[text] = buffer, flat
        return text

    def _loads(self, name: str, registers: dict[str, str], tail: str | None) -> None:
        operand, access = self.intrinsic.operands[name], self.found[name]
        texts = operand.loads if tail is None else operand.partial or operand.loads
        number = 0
        for point in self.intrinsic.points(name):
            address = self._address(access.buffer, self._at(access, point))
            for text in texts:
                load = text.format(address, tail)
                self.outer.share(load, operand.c_type)
                if operand.following and tail is None:
                    self._stream(address, Stream(load, operand.following, self._elements(name)))
                registers[f"{name}{number}"] = load
                number += 1

    def _stream(self, address: str, stream: Stream) -> None:
        """Remember how an address is loaded from."""

        def keep(fill: Fill) -> None:
            self.outer.streams[fill(address)] = replace(stream, load=fill(stream.load))

        self.outer.copying.note(keep)

    def _elements(self, name: str) -> int:
        """Return how many elements of an operand one load takes."""
        buffer = next(b for b in self.intrinsic.nest.inputs if b.name == name)
        return math.prod(buffer.shape) // len(list(self.intrinsic.points(name)))

    def _accumulators(
        self, name: str, registers: dict[str, str], before: list[str], after: list[str]
    ) -> None:
        outer, access = self.outer, self.found[name]
        lanes = self.intrinsic.lanes()
        for number, point in enumerate(self.intrinsic.points(name)):
            at = self._at(access, point)
            if lanes == 1:
                registers[f"{name}{number}"] = outer.at(access.buffer, at)
                continue
            outer.copying.hold()  # the declarations depend on what holds the buffer
            local = None
            if outer.buffers[access.buffer].scope == REGISTER:
                local = outer.local(access.buffer, Place.of(at), lanes)
            if local is None:
                vector = outer.isa.vectors[outer.buffers[access.buffer].dtype]
                address = f"&{outer.names[access.buffer]}[{outer.expr.text(at)}]"
                local = f"nst_c{number}"
                load = vector.ops["load"].c.format(address)
                before.append(f"{vector.c_type} {local} = {load};")
                after.append(vector.ops["store"].c.format(address, local) + ";")
            registers[f"{name}{number}"] = local


def lanes_left(test: Expr, var: str) -> Expr | None:
    """Return how many leading iterations of a loop meet an upper bound; None for other tests."""
    if not isinstance(test, Binary) or test.op not in ("lt", "le") or test.a.dtype != INDEX:
        return None
    terms, constant = linear(binary("sub", test.b, test.a))
    if terms.pop(Var(INDEX, var), 0) != -1 or any(var in variables(a) for a in terms):
        return None
    return from_linear(terms, constant + (1 if test.op == "le" else 0))
