"""The graph under construction: names, constants, folding and type inference of each new node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from toolkit.errors import ModelError, NestlingError, UnsupportedError
from toolkit.frontend import foreign, reference, shapes
from toolkit.frontend.shapes import Underivable
from toolkit.ir.graph import Graph, Node, prune
from toolkit.ir.types import TensorType

Infer = Callable[
    [Node, Mapping[str, TensorType], Mapping[str, np.ndarray], int], Sequence[TensorType | None]
]
"""A type rule from outside (`ops.infer_node`): node, types and constants by name, opset."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing of a model that cannot be compiled."""

    node: str
    op: str
    reason: str

    def __str__(self) -> str:
        return f"node '{self.node}' ({self.op}): {self.reason}" if self.node else self.reason


@dataclass
class Session:
    """What one import shares at every depth: files, functions, unique names, findings."""

    label: str
    folder: Path | None = None
    functions: Mapping[tuple[str, str, str], onnx.FunctionProto] = field(default_factory=dict)
    infer: Infer | None = None
    implemented: frozenset[str] | None = None
    check: Infer | None = None
    opset: int = shapes.OPSET
    declared: dict[str, TensorType] = field(default_factory=dict)
    """Static types that the model itself states for tensors of its main graph."""
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    node_names: set[str] = field(default_factory=set)
    initialisers: dict[str, str] = field(default_factory=dict)
    """Name of a constant -> name of the initialiser it is."""
    ignored: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """Attributes that an operator does not have, by operator and name: the nodes."""
    reads: list[tuple[Builder, str]] = field(default_factory=list)
    """Tensors that nodes with problems read: what makes them is not dead."""
    prefix: str = ""
    """What the names of new constants start with."""

    def unique(self, name: str, prefix: str = "") -> str:
        """Return a tensor name nothing else has: `name`, or with prefix, or with a number."""
        for candidate in (name, prefix + name):
            if candidate and candidate not in self.used:
                self.used.add(candidate)
                return candidate
        return _numbered(prefix + name, self.used)

    def unique_node(self, name: str) -> str:
        """Return a node name no other node has."""
        if name not in self.node_names:
            self.node_names.add(name)
            return name
        return _numbered(name, self.node_names)

    def problem(self, node: str, op: str, reason: str) -> None:
        """Record something that cannot be compiled; all are reported together."""
        found = Problem(node, op, reason)
        if found not in self.problems:
            self.problems.append(found)

    @contextmanager
    def at(self, name: str, op: str) -> Iterator[None]:
        """Give errors raised inside the node's name; nothing but `NestlingError` gets out."""
        try:
            yield
        except (AssertionError, UnsupportedError):
            raise
        except NestlingError as error:
            raise ModelError(
                f"{self.label}: node '{name}' ({op}): {error.what}",
                state=error.state,
                hint=error.hint,
            ) from error
        except Exception as error:  # what a broken file makes onnx, NumPy and protobuf raise
            raise ModelError(f"{self.label}: node '{name}' ({op}): {_told(error)}") from error


def _told(error: BaseException) -> str:
    return " ".join(f"is not valid: {type(error).__name__}: {error}".split())[:300]


def _numbered(name: str, used: set[str]) -> str:
    number = 2
    while f"{name}_{number}" in used:
        number += 1
    used.add(f"{name}_{number}")
    return f"{name}_{number}"


@dataclass
class Builder:
    """One `Graph` under construction; a subgraph's builder has the surrounding one as parent."""

    session: Session
    parent: Builder | None = None
    nodes: list[Node] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    consts: dict[str, np.ndarray] = field(default_factory=dict)
    captures: list[str] = field(default_factory=list)
    """Tensors of surrounding graphs that this one reads, under the same name, in order."""
    deferred: dict[str, Node] = field(default_factory=dict)
    """Outputs of nodes that could be folded, but would make a constant that is too large."""
    stored: set[str] = field(default_factory=set)
    """Deferred tensors whose stored form is wanted: dequantised weights and what reads them."""
    shared: dict[tuple[Any, ...], str] = field(default_factory=dict)

    # -- tensors --

    def add_const(self, name: str, value: np.ndarray) -> str:
        """Define a constant."""
        self.consts[name] = value
        self.types[name] = shapes.array_type(value)
        return name

    def new_const(self, value: np.ndarray, hint: str) -> str:
        """Define a small constant under a new name, or find an equal one."""
        key = (str(value.dtype), value.shape, value.tobytes())
        name = self.shared.get(key)
        if name is None or name not in self.consts:
            name = self.shared[key] = self.add_const(
                self.session.unique(self.session.prefix + hint), value
            )
        return name

    def value(self, name: str) -> np.ndarray | None:
        """Return the value of a tensor if it is known at import, deferred ones included."""
        found = self.consts.get(name)
        if found is None and name in self.deferred:
            node = self.deferred[name]
            inputs = [self.value(n) if n else None for n in node.inputs]
            try:
                results = reference.evaluate(node, inputs)
            except reference.CannotEvaluate:
                return None
            found = results[node.outputs.index(name)]
        return found

    def small_value(self, name: str) -> np.ndarray | None:
        """Return a known value if it can be an operand of shape arithmetic."""
        return self.value(name) if name and self.types[name].size <= 1024 else None

    def capture(self, name: str, owner: Builder) -> str:
        """Make a tensor of a surrounding graph readable here."""
        if owner is self or name in self.consts or name in self.captures:
            return name
        assert self.parent is not None
        self.parent.capture(name, owner)
        self.types[name] = self.parent.types[name]
        if name in self.parent.consts:
            self.consts[name] = self.parent.consts[name]
        else:
            self.captures.append(name)
        return name

    # -- nodes --

    def add(self, node: Node) -> bool:
        """Append a canonical node: fold it, or infer its types.

        Returns False, with the problem recorded, when its types cannot be derived.  Raises
        `ModelError` (without the node's name) when the node contradicts its inputs.
        """
        kinds = [self.types[n] if n else None for n in node.inputs]
        if node.op in reference.OF_TYPE and not node.domain and kinds and kinds[0]:
            if kinds[0].size * 8 <= reference.MAX_FOLDED_BYTES or node.op != "EyeLike":
                self.add_const(node.outputs[0], reference.evaluate_of_type(node, kinds[0]))
                return True
        if self._fold(node, kinds):
            return True
        values = [self.small_value(n) for n in node.inputs]
        try:
            outputs = self.infer(node, kinds, values)
        except Underivable as reason:
            self.session.problem(node.name, node.op_id, str(reason))
            return False
        self.append(node, outputs)
        return True

    def append(self, node: Node, outputs: Sequence[TensorType | None]) -> None:
        """Append a node whose output types are known."""
        outs = node.outputs
        while outs and not outs[-1]:
            outs = outs[:-1]
        ins = node.inputs
        while ins and not ins[-1]:
            ins = ins[:-1]
        self.nodes.append(
            node.with_(name=self.session.unique_node(node.name), inputs=ins, outputs=outs)
        )
        self.types.update((n, t) for n, t in zip(node.outputs, outputs, strict=True) if n and t)

    def infer(
        self,
        node: Node,
        kinds: Sequence[TensorType | None],
        values: Sequence[np.ndarray | None],
    ) -> list[TensorType | None]:
        """Return output types: by ONNX's rule, by the rules for foreign domains, by `ops`."""
        rule = foreign.RULES.get(node.op_id) if node.domain else None
        if rule is not None:
            made: list[TensorType | None] = []
            made += rule(node.attrs, kinds)
            return made[: len(node.outputs)]
        try:
            return shapes.infer_onnx(node, kinds, values)
        except Underivable as reason:
            stated = [self.session.declared.get(n) for n in node.outputs]
            if self.session.infer is not None:
                try:
                    return list(
                        self.session.infer(node, self.types, self.consts, self.session.opset)
                    )
                except NestlingError as error:
                    # About its own operators ONNX knows better why.
                    if node.domain and not all(stated):
                        raise Underivable(error.what) from reason
            if node.domain and all(stated):
                return list(stated)
            raise

    def _fold(self, node: Node, kinds: Sequence[TensorType | None]) -> bool:
        if not node.inputs or node.domain or node.op in reference.RANDOM:
            return False
        if not all(n in self.consts or n in self.deferred or not n for n in node.inputs):
            return False
        if node.op in reference.STORED or not self.stored.isdisjoint(node.inputs):
            self.append(node, self.infer(node, kinds, [self.small_value(n) for n in node.inputs]))
            self.deferred.update((n, node) for n in node.outputs if n)
            self.stored.update(n for n in node.outputs if n)
            return True
        tiny = all(k is None or k.size <= 64 for k in kinds)
        if not (tiny and node.op in reference.FAST and node.op not in GROWING):
            small = [self.small_value(n) for n in node.inputs]
            try:
                outputs = self.infer(node, kinds, small)
            except Underivable:
                outputs = []
            given = [self.consts.get(n) for n in node.inputs]
            if not reference.worth_folding(node, given, outputs):
                self.append(node, outputs)
                self.deferred.update((n, node) for n in node.outputs if n)
                return True
        values = [self.value(n) if n else None for n in node.inputs]
        if any(n and v is None for n, v in zip(node.inputs, values, strict=True)):
            return False
        try:
            results = reference.evaluate(node, values)
        except reference.CannotEvaluate as error:
            if tiny and node.op in reference.FAST:
                raise ModelError(f"cannot be evaluated: {error}") from error
            return False
        for name, result in zip(node.outputs, results, strict=True):
            if name:
                self.add_const(name, result)
        return True

    # -- the result --

    def finish(self, refs: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
        """Give the outputs `refs` their names (or new ones, for ''), each a tensor of its own."""
        done: list[str] = []
        for ref, name in zip(refs, names, strict=True):
            passed = ref not in self.consts and not any(ref in n.outputs for n in self.nodes)
            if (name in ("", ref)) and ref not in done and not (passed and not name):
                done.append(ref)
                continue
            name = name or self.session.unique(f"{ref}_out")
            if ref in self.consts:
                self.add_const(name, self.consts[ref])
            else:
                node = Node(f"Identity_{name}", "Identity", (ref,), (name,))
                self.append(node, [self.types[ref]])
            done.append(name)
        return tuple(done)

    def graph(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
        """Return the graph, without what no output needs."""
        graph = Graph(
            name=name,
            nodes=tuple(self.nodes),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            types=self.types,
            consts=self.consts,
            opset=self.session.opset,
        )
        return prune(graph)


GROWING = frozenset("ConstantOfShape Expand Tile Range Pad Gather Resize OneHot".split())
"""Operators whose result may be far larger than their operands."""
