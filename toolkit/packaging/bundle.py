"""The folder a firmware team drops into its project: sources, an example, how to build it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.codegen.model import ModelFiles, printable, tensor_texts
from toolkit.codegen.names import kernel_symbol
from toolkit.codegen.render import render
from toolkit.codegen.weights import weight_text
from toolkit.errors import NestlingError
from toolkit.ir.program import Call, Fork, Jump, JumpIfNot, Program, Step
from toolkit.packaging.write import write_folder
from toolkit.paths import RUNTIME_C

MANIFEST = "model.json"
_NOT_IN_BUNDLES = ("nst_port", "nst_rpc")
"""Beginnings of the runtime's files that only serve a board's serial port."""


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """What a bundle is made of.  `inputs`, `outputs`: recorded arrays of the example, or none."""

    name: str
    program: Program
    output_names: tuple[str, ...]
    files: ModelFiles
    executor: str
    weights: str
    version: str
    digest: str
    records: str
    """'sha256 ...' of the traces that records gave, or 'none'."""
    target: str
    cflags: tuple[str, ...]
    """The compiler flags that select the target."""
    pinned: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


def runtime_files(*, functions: bool = True) -> dict[str, bytes]:
    """Return the runtime as the bundle holds it: headers under include/, sources under src/.

    `functions`: with the operators that are C functions, which most models do without.
    """
    return {
        f"{folder}/{path.name}": path.read_bytes()
        for folder in ("include", "src")
        for path in sorted((RUNTIME_C / folder).iterdir())
        if path.suffix in (".h", ".c")
        and not path.name.startswith(_NOT_IN_BUNDLES)
        and (functions or path.stem != "nst_functions")
    }


def port_files() -> dict[str, bytes]:
    """Return what can run the parts of models with several threads, as the bundle holds it."""
    return {
        f"port/{path.name}": path.read_bytes()
        for path in (
            RUNTIME_C / "port" / "host" / "nst_threads.c",
            RUNTIME_C / "port" / "rp2" / "nst_core1.c",
        )
    }


def library_files(files: ModelFiles) -> dict[str, bytes]:
    """Return generated files and the runtime: headers in include/, everything else in src/."""
    placed = {
        f"{'include' if name.endswith('.h') else 'src'}/{name}": (
            content.encode() if isinstance(content, str) else content
        )
        for name, content in files.files.items()
    }
    functions = any(b'#include "nst_functions.h"' in text for text in placed.values())
    return {**placed, **runtime_files(functions=functions)}


def bundle_files(bundle: Bundle) -> dict[str, bytes]:
    """Return all files of a bundle by path."""
    files = library_files(bundle.files)
    if bundle.program.threads > 1:
        files.update(port_files())
    for path, template in (
        ("CMakeLists.txt", "package/CMakeLists.txt.j2"),
        ("README.md", "package/README.md.j2"),
        ("example/main.c", "package/main.c.j2"),
    ):
        files[path] = render(template, **_values(bundle, files)).encode()
    if bundle.inputs:
        values = _recorded(bundle)
        files["example/recorded.h"] = render("package/recorded.h.j2", **values).encode()
        files["example/recorded.c"] = render("package/recorded.c.j2", **values).encode()
    names = sorted((*files, MANIFEST))
    files[MANIFEST] = (json.dumps(manifest(bundle, names), indent=1) + "\n").encode()
    return dict(sorted(files.items()))


def write_bundle(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a bundle, all or nothing; replace an older bundle, refuse to replace anything else."""
    ours = _written_before(folder)
    strange = [n for n in files if n not in ours and os.path.lexists(folder / n)]
    if strange:
        raise NestlingError(
            f"{folder} holds files that nestling did not write and would replace: "
            f"{', '.join(strange[:4])}{', ...' * (len(strange) > 4)}.",
            hint="choose another folder",
        )
    stale = [n for n in ours if n not in files]
    write_folder(folder, files, remove=stale, hint="choose another folder")


def _written_before(folder: Path) -> list[str]:
    """Return the files of the bundle that lies in a folder, as its manifest lists them."""
    try:
        found = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return []
    names = found.get("files") if isinstance(found, dict) and "nestling" in found else None
    if not isinstance(names, list):
        return []
    inside = (n for n in names if isinstance(n, str) and n and not n.startswith("/"))
    return [n for n in inside if ".." not in Path(n).parts]


def _values(bundle: Bundle, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return what the templates of a bundle may use."""
    program = bundle.program
    sources = sorted(p for p in files if p.startswith("src/") and p.endswith(".c"))
    return {
        "name": bundle.name,
        "upper": bundle.name.upper(),
        "version": bundle.version,
        "model_digest": bundle.digest,
        "records_digest": bundle.records,
        "target": bundle.target,
        "cflags": bundle.cflags,
        "cmake_flags": bundle.cflags if any(f.startswith("-march=") for f in bundle.cflags) else (),
        "executor": bundle.executor,
        "weights": bundle.weights,
        "threads": program.threads,
        "threaded": program.threads > 1,
        "arena_bytes": max(program.arena_bytes, 8),
        "lower_bound_bytes": program.lower_bound_bytes,
        "weights_bytes": program.weights_bytes,
        "kernel_count": len(program.kernels),
        "call_count": sum(isinstance(s, Call) for s in program.steps),
        "inputs": tensor_texts(program, program.inputs),
        "outputs": tensor_texts(program, program.outputs, program.output_names),
        "input_names": [printable(n) for n in program.inputs],
        "output_names": [printable(n) for n in bundle.output_names],
        "model_sources": [p for p in sources if not p.startswith("src/nst")],
        "runtime_sources": [p for p in sources if p.startswith("src/nst")],
        "pinned": [(printable(n), printable(str(v))) for n, v in bundle.pinned.items()],
        "recorded": bool(bundle.inputs),
        "answers": bool(bundle.inputs) and bool(bundle.outputs),
    }


def _recorded(bundle: Bundle) -> dict[str, Any]:
    """Return the recorded arrays as text, in the order of the model's inputs and outputs."""
    arrays = []
    groups = (
        ("input", bundle.program.inputs, bundle.inputs),
        ("output", bundle.output_names, bundle.outputs),
    )
    for kind, names, values in groups:
        for index, name in enumerate(names):
            if name not in values:
                continue
            value = np.asarray(values[name])
            comment = f"{kind} {index}: {printable(name)}"
            arrays.append(weight_text(f"{bundle.name}_{kind}_{index}_data", value, comment))
    return {
        "name": bundle.name,
        "upper": bundle.name.upper(),
        "version": bundle.version,
        "model_digest": bundle.digest,
        "records_digest": bundle.records,
        "arrays": arrays,
        "input_data": [f"{bundle.name}_input_{i}_data" for i in range(len(bundle.program.inputs))],
        "output_data": [
            f"{bundle.name}_output_{i}_data" if n in bundle.outputs else ""
            for i, n in enumerate(bundle.output_names)
        ],
    }


def manifest(bundle: Bundle, files: list[str]) -> dict[str, Any]:
    """Return what `model.json` says: sizes, inputs and outputs, kernels, steps."""
    program = bundle.program
    calls = [s for s in program.steps if isinstance(s, Call)]
    return {
        "format": 1,
        "name": bundle.name,
        "nestling": bundle.version,
        "model_sha256": bundle.digest,
        "records": bundle.records,
        "target": bundle.target,
        "executor": bundle.executor,
        "weights": bundle.weights,
        "threads": program.threads,
        "arena_bytes": max(program.arena_bytes, 8),
        "arena_lower_bound_bytes": program.lower_bound_bytes,
        "weights_bytes": program.weights_bytes,
        **_weights_file(bundle),
        "inputs": _tensors(program, program.inputs, program.inputs),
        "outputs": _tensors(program, program.outputs, bundle.output_names),
        "pinned": dict(bundle.pinned),
        "kernels": [
            {
                "name": k.name,
                "symbol": kernel_symbol(bundle.name, k.name),
                "calls": sum(c.kernel == k.name for c in calls),
                "computes": list(k.comment),
            }
            for k in program.kernels
        ],
        "files": files,
        "steps": [_step(program, index, step) for index, step in enumerate(program.steps)],
    }


def _weights_file(bundle: Bundle) -> dict[str, Any]:
    """Return what to know of the file of weights, where they are in one."""
    name = f"{bundle.name}_weights.bin"
    blob = bundle.files.files.get(name)
    if not isinstance(blob, bytes):
        return {}
    digest = hashlib.sha256(blob).hexdigest()
    return {"weights_file": {"path": f"src/{name}", "bytes": len(blob), "sha256": digest}}


def _tensors(
    program: Program, names: tuple[str, ...], shown: tuple[str, ...]
) -> list[dict[str, Any]]:
    return [
        {
            "name": model_name,
            "c_name": text.ident,
            "dtype": program.types[name].dtype,
            "shape": list(program.types[name].shape),
            "offset": program.offsets[name],
            "bytes": program.types[name].nbytes,
        }
        for name, model_name, text in zip(
            names, shown, tensor_texts(program, names, shown), strict=True
        )
    ]


def _step(program: Program, index: int, step: Step) -> dict[str, Any]:
    match step:
        case Call():
            scratch = sum(program.types[n].nbytes for n in step.scratch)
            return {
                "index": index,
                "kernel": step.kernel,
                "nodes": list(step.nodes),
                "inputs": list(step.inputs),
                "outputs": list(step.outputs),
                "scratch_bytes": scratch,
            }
        case Fork():
            return {"index": index, "fork": list(step.counts)}
        case Jump():
            return {"index": index, "jump": step.target}
        case JumpIfNot():
            return {"index": index, "jump_if_not": step.cond, "target": step.target}
