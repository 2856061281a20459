"""A `Program` to the C files of a model: header, kernels with tables, weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from toolkit.codegen.kernel import CKernel, print_kernel
from toolkit.codegen.names import c_names, kernel_symbol
from toolkit.codegen.render import render
from toolkit.codegen.weights import weight_text
from toolkit.ir.program import Call, Fork, Jump, JumpIfNot, Program
from toolkit.ir.types import DTYPES
from toolkit.targets.isa import Isa
from toolkit.targets.isas import ISAS

CONST_BIT = 0x80000000


@dataclass(frozen=True, slots=True)
class TensorText:
    """An input or output as the header shows it."""

    index: int
    name: str
    ident: str
    macro: str
    c_type: str
    dtype_enum: str
    shape: tuple[int, ...]
    shape_text: str
    offset: int
    nbytes: int
    elements: int


@dataclass(frozen=True, slots=True)
class NodeText:
    """One row of the node table; `call` is the same step as a direct call."""

    kernel: str
    first: int
    count: int
    outputs: int
    flow: str
    comment: str
    call: str
    label: bool
    index: int


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel and the arguments of its table wrapper."""

    kernel: CKernel
    args: tuple[str, ...]
    reads_consts: bool
    empty: bool


@dataclass(frozen=True, slots=True)
class ForkText:
    """The function that runs each part of a fork: the calls of its lanes."""

    name: str
    lanes: tuple[tuple[str, ...], ...]

    @property
    def uses_base(self) -> bool:
        """Whether any call has an operand in the arena."""
        return any("base + " in call for lane in self.lanes for call in lane)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Generated files by name."""

    files: dict[str, str | bytes]


def tensor_texts(
    program: Program, names: tuple[str, ...], shown: tuple[str, ...] = ()
) -> list[TensorText]:
    """Return inputs or outputs as generated text names them: by `shown` where given."""
    shown = shown or names
    idents = c_names(shown)
    result = []
    for index, (name, text) in enumerate(zip(names, shown, strict=True)):
        kind = program.types[name]
        result.append(
            TensorText(
                index, printable(text), idents[text], idents[text].upper(),
                DTYPES[kind.dtype].c_name, "NST_" + kind.dtype.upper(), kind.shape,
                "x".join(map(str, kind.shape)) or "scalar", program.offsets[name], kind.nbytes,
                kind.size,
            )
        )  # fmt: skip
    return result


def printable(text: str) -> str:
    """Return text that can stand in a C comment or string: ASCII, no quotes, no comment ends."""
    ascii_text = text.encode("ascii", "backslashreplace").decode()
    safe = "".join(c if c.isprintable() and c not in '"\\' else "_" for c in ascii_text)
    return safe.replace("*/", "*_").replace("/*", "/_").replace("??", "__")


def model_files(
    program: Program, *, executor: str = "graph", weights: str = "c", version: str = "",
    model_digest: str = "", records_digest: str = "none", isa: Isa = ISAS["scalar"],
) -> ModelFiles:  # fmt: skip
    """Print a program.  `executor`: 'graph' (const tables) or 'aot' (direct calls); `weights`: 'c',
    'incbin' or 'bin'."""
    name = program.name
    const_names = list(program.consts)
    const_index = {n: i for i, n in enumerate(const_names)}
    const_ident = {n: f"{name}_w{i}" for i, n in enumerate(const_names)}
    kernels = {}
    texts: list[KernelText] = []
    for kernel in program.kernels:
        printed = print_kernel(
            kernel.func,
            kernel_symbol(name, kernel.name),
            tuple(map(printable, kernel.comment)),
            isa,
            program.threads,
        )
        args = []
        for position, param in enumerate(printed.params):
            if param.const:
                args.append(f"(const {param.c_type} *)nst_src(arena, operands[{position}], consts)")
            else:
                args.append(f"({param.c_type} *)nst_dst(arena, operands[{position}])")
        texts.append(
            KernelText(
                printed, tuple(args), any(p.const for p in printed.params), not printed.params
            )
        )
        kernels[kernel.name] = printed

    operands: list[str] = []
    nodes: list[NodeText] = []
    targets = {s.target for s in program.steps if isinstance(s, Jump | JumpIfNot)}

    def operand(tensor: str) -> str:
        if tensor in const_index:
            return f"NST_CONST | {const_index[tensor]}u"
        return f"{program.offsets[tensor]}u"

    forks: list[ForkText] = []
    for index, step in enumerate(program.steps):
        first = len(operands)
        match step:
            case Fork():
                operands.extend(f"{count}u" for count in step.counts)
                parts = len(step.counts)
                nodes.append(
                    NodeText("0", first, parts, 0, "NST_FLOW_FORK", f"{parts} lanes",
                             f"nst_parallel({name}_fork{index}, base, {parts}u);",
                             index in targets, index)
                )  # fmt: skip
            case Call():
                printed = kernels[step.kernel]
                tensors = (*step.outputs, *step.inputs, *step.scratch)
                operands.extend(operand(t) for t in tensors)
                call_args = []
                for param, tensor in zip(printed.params, tensors, strict=True):
                    if tensor in const_index:
                        base = f"{const_ident[tensor]}.raw"
                        if weights != "c":
                            base = f"{name}_consts[{const_index[tensor]}]"
                        call_args.append(f"(const {param.c_type} *)(const void *){base}")
                    else:
                        qualifier = "const " if param.const else ""
                        # Two empty tensors at one place would alias.
                        empty = program.types[tensor].nbytes == 0
                        place = f"base + {program.offsets[tensor]}u"
                        at = "0" if empty else f"({qualifier}void *)({place})"
                        call_args.append(f"({qualifier}{param.c_type} *){at}")
                nodes.append(
                    NodeText(
                        f"{printed.name}_t", first, len(tensors), len(step.outputs),
                        "NST_FLOW_CALL", printable(", ".join(step.nodes)),
                        f"{printed.name}({', '.join(call_args)});", index in targets, index,
                    )
                )  # fmt: skip
            case Jump():
                operands.append(f"{step.target}u")
                nodes.append(
                    NodeText("0", first, 1, 0, "NST_FLOW_JUMP", "end of branch",
                             f"goto node_{step.target};", index in targets, index)
                )  # fmt: skip
            case JumpIfNot():
                operands.extend((operand(step.cond), f"{step.target}u"))
                cond = (
                    f"*(const uint8_t *)(base + {program.offsets[step.cond]}u)"
                    if step.cond not in const_index
                    else "1"
                )
                nodes.append(
                    NodeText("0", first, 2, 0, "NST_FLOW_JUMP_IF_NOT", "branch",
                             f"if ({cond} == 0u) goto node_{step.target};", index in targets, index)
                )  # fmt: skip
    direct: list[NodeText] = []
    """What the `aot` form does, step by step: the calls of a fork are in its own function."""
    done = 0
    while done < len(nodes):
        direct.append(nodes[done])
        step = program.steps[done]
        done += 1
        if isinstance(step, Fork):
            lanes = []
            for count in step.counts:
                lanes.append(tuple(node.call for node in nodes[done : done + count]))
                done += count
            forks.append(ForkText(f"{name}_fork{direct[-1].index}", tuple(lanes)))
    values = {
        "name": name,
        "upper": name.upper(),
        "version": version,
        "model_digest": model_digest or program.digest,
        "records_digest": records_digest,
        "digest_word": int((model_digest or program.digest)[:8], 16),
        "program": program,
        "arena_bytes": max(program.arena_bytes, 8),
        "inputs": tensor_texts(program, program.inputs),
        "outputs": tensor_texts(program, program.outputs, program.output_names),
        "kernels": texts,
        "nodes": nodes,
        "direct": direct,
        "forks": forks,
        "uses_base": bool(forks) or any("base + " in node.call for node in direct),
        "operands": operands,
        "const_names": [const_ident[n] for n in const_names],
        "weights": weights,
        "executor": executor,
        "weights_bytes": program.weights_bytes,
        "simd": any(t.kernel.simd for t in texts),
        "parallel": any(t.kernel.parts for t in texts) or (bool(forks) and executor == "aot"),
        "isa_name": isa.name,
        "isa_guard": isa.guard,
        "functions": sorted({f for t in texts for f in t.kernel.opaque}),
        "end_label": len(program.steps) in targets,
        "end": len(program.steps),
    }
    if weights == "c":
        values["constants"] = [
            weight_text(
                const_ident[n], program.consts[n],
                f"{printable(n)}: {program.consts[n].dtype}{list(program.consts[n].shape)}",
            )
            for n in const_names
        ]  # fmt: skip
        values["blob_bytes"], values["blob_digest"] = 0, ""
    else:
        values["constants"] = []
        blob, offsets = weight_blob([program.consts[n] for n in const_names])
        values["blob_bytes"] = len(blob)
        values["blob_digest"] = hashlib.sha256(blob).hexdigest()
    files: dict[str, str | bytes] = {
        f"{name}.h": render("c/model.h.j2", **values),
        f"{name}.c": render("c/model.c.j2", **values),
    }
    if weights == "c":
        files[f"{name}_weights.c"] = render("c/weights.c.j2", **values)
    else:
        rows = list(zip(values["const_names"], offsets, strict=True))  # type: ignore[call-overload]
        files[f"{name}_weights.c"] = render("c/weights_bin.c.j2", rows=rows, **values)
        files[f"{name}_weights.bin"] = blob
    return ModelFiles(files)


def weight_blob(arrays: list[np.ndarray], align: int = 64) -> tuple[bytes, list[int]]:
    """Join constants into one file, each aligned to `align` bytes; return it and the offsets."""
    parts: list[bytes] = []
    offsets: list[int] = []
    position = 0
    for array in arrays:
        pad = -position % align
        parts.append(b"\0" * pad)
        position += pad
        offsets.append(position)
        data = np.ascontiguousarray(array).tobytes()
        parts.append(data)
        position += len(data)
    return b"".join(parts), offsets
