"""TFLite models to `Graph`: one walk over the operators, and the report of what cannot be compiled.

Tensors stay as the file has them, the channel last, so no layout pass has anything to move.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from toolkit.errors import ModelError, NestlingError, UnsupportedError
from toolkit.frontend import inputs as model_inputs
from toolkit.frontend.builder import Infer
from toolkit.frontend.inputs import Input
from toolkit.frontend.read import read_bytes
from toolkit.frontend.shapes import OPSET
from toolkit.frontend.tflite.read import BROKEN, Operator, read_tflite, Subgraph
from toolkit.frontend.tflite.site import Build, Site
from toolkit.frontend.tflite.table import TABLE
from toolkit.ir.graph import Graph, Node, prune
from toolkit.ir.types import DTYPES, TensorType, type_of


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """What a model keeps from run to run: the output that is an input of the next, first values."""

    output: str
    initial: np.ndarray


def load_tflite(
    source: str | os.PathLike[str] | bytes,
    *,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    pins: Mapping[str, np.ndarray] | None = None,
    notes: list[str] | None = None,
    states: dict[str, State] | None = None,
    infer: Infer,
) -> Graph:
    """Import a TFLite model: operators of ai.onnx where they mean the same, else of `tflite`.

    `input_shapes` fixes inputs whose axes the file leaves open; `pins` makes inputs constants.
    `infer` (`ops.infer_node`) gives types, and refuses what cannot be compiled.  `notes` receives
    sentences for the user; `states`, for each input that holds a variable, its first value and the
    output that holds the next.

    Raises `ModelError` for a file that is not a valid model, and one `UnsupportedError` that lists
    everything that cannot be compiled.
    """
    label = "model" if isinstance(source, bytes) else str(source)
    graphs = read_tflite(read_bytes(source), label)
    main = graphs[0]
    build = Build(infer)
    names = _constants(build, main)
    given = [_declared(main, i, input_shapes or {}) for i in main.inputs]
    types, pinned, _ = model_inputs.resolve(
        label, given, dims or {}, input_shapes or {}, pins or {}, notes if notes is not None else []
    )
    inputs = []
    for index, item in zip(main.inputs, given, strict=True):
        names[index] = build.unique(item.name)
        if item.name in pinned:
            build.consts[names[index]] = pinned[item.name]
        else:
            inputs.append(names[index])
        kind = types.get(item.name)
        build.types[names[index]] = kind or type_of(pinned[item.name])
    reserved = {main.tensors[i].name for i in main.outputs}
    build.used |= reserved
    problems: list[str] = []
    for op in main.operators:
        _visit(build, main, graphs, op, names, problems)
    if problems:
        count = len(problems)
        raise UnsupportedError(
            f"{label}: {'1 operator' if count == 1 else f'{count} operators'} cannot be compiled",
            state=problems,
        )
    outputs = _outputs(build, main, names, label)
    for name, state in _states(build).items():
        inputs.append(name)
        outputs += (state.output,)
        if states is not None:
            states[name] = state
    return prune(
        Graph(
            name=main.name or "main",
            nodes=tuple(build.nodes),
            inputs=tuple(inputs),
            outputs=outputs,
            types=build.types,
            consts=build.consts,
            opset=OPSET,
        )
    )


def _declared(graph: Subgraph, index: int, given: Mapping[str, tuple[int, ...]]) -> Input:
    """Return an input; open axes have the size that the file states, unless the user gives one."""
    info = graph.tensors[index]
    if info.dtype not in DTYPES:
        raise UnsupportedError(f"input '{info.name}' is of type {info.dtype}")
    dims = tuple(
        None if open_ < 0 and info.name in given else n
        for n, open_ in zip(info.shape, info.signature, strict=True)
    )
    return Input(info.name, info.dtype, dims)


def _constants(build: Build, graph: Subgraph) -> dict[int, str]:
    """Define the constants of the file; return the graph's name of each."""
    names: dict[int, str] = {}
    for index, info in enumerate(graph.tensors):
        if info.data is not None and index not in graph.inputs and not info.is_variable:
            names[index] = build.const(info.data, info.name or f"tensor_{index}")
    return names


def _visit(
    build: Build,
    graph: Subgraph,
    graphs: tuple[Subgraph, ...],
    op: Operator,
    names: dict[int, str],
    problems: list[str],
) -> None:
    """Add the nodes of one operator; what cannot be compiled is a line of `problems`."""
    first = graph.tensors[op.outputs[0]].name if op.outputs else ""
    where = f"operator {op.index} ({op.name}, '{first}')"
    family = TABLE.get(op.name)
    if family is None:
        problems.append(f"{where}: is not supported")
        _stand_in(build, graph, op, names)
        return
    site = Site(build, graph, op, names, first or f"{op.name.lower()}_{op.index}", graphs)
    count = len(build.nodes)
    try:
        results = family(site)
    except UnsupportedError as error:
        problems.append(f"{where}: {error.what}")
        _stand_in(build, graph, op, names)
        return
    except (AssertionError, NestlingError):
        raise
    except BROKEN as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ModelError(f"{where}: is not valid: {text}") from error
    made = {o for node in build.nodes[count:] for o in node.outputs}
    for index, name in zip(op.outputs, results, strict=True):
        if not name:  # a handle
            names[index] = ""
            continue
        info = graph.tensors[index]
        kind = build.types[name]
        if kind.dtype != info.dtype:
            problems.append(f"{where}: gives {kind.dtype}, but the file says {info.dtype}")
        wanted = info.name or f"tensor_{index}"
        if name in made and (wanted not in build.used or index in graph.outputs):
            build.used.add(wanted)
            build.rename(name, wanted)
            made.discard(name)
            name = wanted
        names[index] = name


def _states(build: Build) -> dict[str, State]:
    """Make inputs and outputs of variables that are assigned, constants of those only read."""
    states: dict[str, State] = {}
    for variable in build.variables.values():
        kind = build.types.get(variable.name)
        if kind is None:
            continue
        initial = variable.initial
        if initial is None or (initial.shape, str(initial.dtype)) != (kind.shape, kind.dtype):
            initial = np.zeros(kind.shape, kind.dtype)
        if not variable.written:
            build.consts[variable.name] = initial
            continue
        output = build.unique(f"{variable.name}.next")
        build.nodes.append(Node(output, "Identity", (variable.current,), (output,)))
        build.types[output] = kind
        states[variable.name] = State(output, initial)
    return states


def _stand_in(build: Build, graph: Subgraph, op: Operator, names: dict[int, str]) -> None:
    """Give the results of a refused operator the file's types, so that what follows is checked."""
    for index in op.outputs:
        info = graph.tensors[index]
        names[index] = build.unique(info.name)
        build.types[names[index]] = TensorType(info.shape, info.dtype)


def _outputs(
    build: Build, graph: Subgraph, names: Mapping[int, str], label: str
) -> tuple[str, ...]:
    """Return the outputs under the names of the file, each a tensor of its own."""
    outputs: list[str] = []
    inputs = {names.get(i) for i in graph.inputs}
    for index in graph.outputs:
        info = graph.tensors[index]
        if index not in names:
            raise ModelError(f"{label}: output '{info.name}' is not computed by any operator")
        name = names[index]
        if name != info.name or name in outputs or name in inputs:
            wanted = info.name if info.name not in build.types else build.unique(info.name)
            build.nodes.append(Node(f"{wanted}/output", "Identity", (name,), (wanted,)))
            build.types[wanted] = build.types[name]
            name = wanted
        outputs.append(name)
    return tuple(outputs)
