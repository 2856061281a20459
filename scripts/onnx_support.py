#!/usr/bin/env python3
"""Writes docs/onnx_support.md: the operators nestling compiles, found out by asking it.

    python scripts/onnx_support.py [--check]

An operator is supported when one of its backend tests holds; its element types are those for which
such a test's model, with the type changed, imports.  With --check the page is only compared.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from tests.e2e.test_onnx_backend import CORE, known, REST  # noqa: E402
from tests.onnx_cases import case_named, DISK_KINDS, tier_of, tiers, to_array  # noqa: E402
from toolkit.backend import import_for  # noqa: E402
from toolkit.errors import NestlingError  # noqa: E402
from toolkit.frontend.walk import OLDEST_OPSET, UNSUPPORTED  # noqa: E402
from toolkit.ir.types import DTYPES, FROM_ONNX  # noqa: E402
from toolkit.ops import OPS  # noqa: E402

PAGE = REPO / "docs" / "onnx_support.md"
OPSET = onnx.defs.onnx_opset_version()
TESTED = (*CORE, *REST)
NODE_TIERS = tuple(t for t in tiers() if t not in DISK_KINDS)
FLOW = ("If", "Loop", "Scan")

TIERS = {
    "A1": "operators of common models",
    "A2": "the rest of the core",
    "A2b": "niche operators",
    "A3": "operators of language models",
    "expanded": "A1 operators written as the functions that define them",
    "loss": "loss functions",
    "double": "float64",
    "control": "If, Loop, Scan",
    "signal": "DFT, STFT, windows",
    "dynamic": "operators whose output shape may depend on the data",
    "pytorch-converted": "layers exported by PyTorch",
    "pytorch-operator": "expressions exported by PyTorch",
    "simple": "small graphs (half of them about strings and sequences)",
    "light": "whole networks: AlexNet, DenseNet-121, Inception 1 and 2, ResNet-50, ...",
}
NOT_ASKED = {
    "float16": "float16",
    "exotic": "bfloat16 and types of 8 and fewer bits",
    "strings": "strings, text, image files",
    "sequence": "sequences and optionals",
    "random": "random numbers",
    "training": "training",
    "ml": "ai.onnx.ml",
}

TYPE_GROUPS = (
    ("float", ("float32", "float64")),
    ("int", ("int8", "int16", "int32", "int64")),
    ("uint", ("uint8", "uint16", "uint32", "uint64")),
    ("bool", ("bool",)),
)


HEAD = f"""
# ONNX operators

Written by `scripts/onnx_support.py`, which asks the compiler. Opset {OLDEST_OPSET} to {OPSET} of
ai.onnx is read (onnx {onnx.__version__}).

Shapes are static: dimensions that a model leaves open are fixed when it is compiled, and an input
that carries a shape, axes or pads is given its value then (`--set NAME=VALUE`).

## Backend tests

`onnx.backend.test` through `toolkit.backend`: the model is compiled to C, built, run and compared
(`tests/e2e/test_onnx_backend.py`; those that do not pass are listed with a reason in
`tests/e2e/onnx_backend_known.tsv`).

| tests | what they are about | pass | of |
| --- | --- | ---: | ---: |
"""

TABLE_HEAD = """
Opsets: in which the operator is read. Element types: of the first operand. Tests: backend tests of
the operator that pass, of those whose types are supported.

| operator | opsets | element types | tests | |
| --- | --- | --- | ---: | --- |
"""


@dataclass
class Support:
    """What is known about one operator."""

    op: str
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    not_asked: int = 0


def operator_of(name: str) -> str:
    """Return the operator that a node test is about."""
    plain = re.sub(r"_expanded(_ver\d+)?$", "", name)
    case = case_named(plain if plain in tier_of() else name)
    every = list(case.model.graph.node)
    nodes = [n for n in every if n.op_type != "Constant"] or every
    node = next((n for n in nodes if n.op_type in FLOW), nodes[-1])
    return f"{node.domain}:{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def collect() -> dict[str, Support]:
    """Return what the backend tests say, by operator."""
    result: dict[str, Support] = {}
    for tier in NODE_TIERS:
        for name in tiers()[tier]:
            entry = result.setdefault(op := operator_of(name), Support(op))
            if tier not in TESTED:
                entry.not_asked += 1
            elif name in known():
                entry.failed.append(name)
            else:
                entry.passed.append(name)
    return result


def retyped(name: str, dtype: str) -> Iterator[tuple[onnx.ModelProto, dict[str, np.ndarray]]]:
    """Yield a single-node case with its main operand, and all of the same type, as `dtype`."""
    case = case_named(name)
    if len(case.model.graph.node) != 1 or case.model.graph.initializer:
        return
    node = case.model.graph.node[0]
    opset = next(i.version for i in case.model.opset_import if i.domain == node.domain)
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    formal = [schema.inputs[min(i, len(schema.inputs) - 1)] for i in range(len(node.input))]
    if not formal:
        return
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    wanted = f"tensor({ {'float32': 'float', 'float64': 'double'}.get(dtype, dtype) })"
    if wanted not in allowed.get(formal[0].type_str, ()):
        return
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    arrays = dict(zip(case.inputs, map(to_array, case.data_sets[0][0]), strict=False))
    main = case.model.graph.input[0].type.tensor_type.elem_type
    free = {
        n
        for n, f in zip(node.input, formal, strict=True)
        if f.type_str == formal[0].type_str or wanted in allowed.get(f.type_str, ())
    }
    for value in model.graph.input:
        if value.name in free and value.type.tensor_type.elem_type == main:
            value.type.tensor_type.elem_type = DTYPES[dtype].onnx
            with np.errstate(all="ignore"):
                arrays[value.name] = arrays[value.name].astype(dtype)
    for value in model.graph.output:
        value.ClearField("type")
    yield model, arrays


def element_types(entry: Support) -> list[str]:
    """Return the element types of the main operand with which the operator imports."""
    found = []
    for dtype in DTYPES:
        for name in entry.passed:
            if tier_of()[name] == "expanded":
                continue
            kinds = case_named(name).model.graph.input
            if kinds and FROM_ONNX.get(kinds[0].type.tensor_type.elem_type) == dtype:
                found.append(dtype)
                break
        else:
            if _imports_with(entry, dtype):
                found.append(dtype)
    return found


def _imports_with(entry: Support, dtype: str) -> bool:
    plain = [n for n in entry.passed if tier_of()[n] != "expanded"]
    for name in plain[:4]:
        for model, arrays in retyped(name, dtype):
            try:
                import_for(model, arrays)
            except NestlingError:
                continue
            return True
    return False


def types_text(found: list[str]) -> str:
    """Return element types in few words."""
    if not found:
        return ""
    if set(found) == set(DTYPES):
        return "all"
    words = []
    for word, members in TYPE_GROUPS:
        have = [m for m in members if m in found]
        if len(have) == len(members) and len(members) > 1:
            words.append(f"{word}{min_bits(members)}-{max_bits(members)}")
        else:
            words += have
    return ", ".join(words)


def min_bits(members: tuple[str, ...]) -> str:
    return re.sub(r"\D", "", members[0])


def max_bits(members: tuple[str, ...]) -> str:
    return re.sub(r"\D", "", members[-1])


def since(op: str) -> int:
    """Return the first opset that has the operator."""
    domain, _, name = op.rpartition(":")
    return min(
        s.since_version
        for s in onnx.defs.get_all_schemas_with_history()
        if s.name == name and s.domain == domain
    )


def opsets(op: str) -> str:
    """Return the opsets in which the operator is read."""
    domain, _, name = op.rpartition(":")
    if domain:
        return f"{domain} {since(op)}-"
    last = OPSET
    newest = onnx.defs.get_schema(name, OPSET, domain)
    if newest.deprecated:
        last = newest.since_version - 1
    first = max(since(op), OLDEST_OPSET)
    return f"{first}-{last}" if last > first else f"{first}"


def how(op: str) -> str:
    """Say how an operator is compiled."""
    domain, _, name = op.rpartition(":")
    if op in OPS or f"{domain}:{name}" in OPS:
        return ""
    if name in FLOW:
        return (
            "runs one branch; known conditions are decided at import"
            if name == "If"
            else "unrolled at import; the number of steps must be known"
        )
    schema = onnx.defs.get_schema(name, onnx.defs.onnx_opset_version(), domain)
    if schema.has_function or schema.has_context_dependent_function:
        return "as the function that defines it"
    return "rewritten at import"


def why_not(entry: Support) -> str:
    """Say why an operator is not supported."""
    if entry.op in UNSUPPORTED:
        return UNSUPPORTED[entry.op]
    reasons = [known()[n][1] for n in entry.failed]
    return reasons[0] if reasons else "not implemented"


def tier_rows() -> list[str]:
    rows = []
    for tier, text in TIERS.items():
        names = tiers()[tier]
        good = sum(n not in known() for n in names)
        rows.append(f"| {tier} | {text} | {good} | {len(names)} |")
    for tier, text in NOT_ASKED.items():
        rows.append(f"| {tier} | {text} | not supported | {len(tiers()[tier])} |")
    return rows


def page() -> str:
    """Return the page."""
    entries = collect()
    good = {op: e for op, e in entries.items() if e.passed}
    missing = {op: e for op, e in entries.items() if not e.passed}
    for schema in onnx.defs.get_all_schemas():
        if not schema.domain and not schema.deprecated and schema.name not in entries:
            target = good if schema.name in OPS else missing
            target[schema.name] = Support(schema.name)
    order = sorted(good, key=lambda op: (":" in op, op.lower()))
    lines = [*HEAD.strip().splitlines(), *tier_rows(), ""]
    lines += [f"## Operators ({len(good)})", "", *TABLE_HEAD.strip().splitlines()]
    for op in order:
        entry = good[op]
        count = f"{len(entry.passed)}/{len(entry.passed) + len(entry.failed)}"
        lines.append(
            f"| {op} | {opsets(op)} | {types_text(element_types(entry))} | "
            f"{count if count != '0/0' else ''} | {how(op)} |"
        )
    lines += [
        "",
        f"## Not supported ({len(missing)})",
        "",
        "| operator | why |",
        "| --- | --- |",
        *(f"| {op} | {why_not(missing[op])} |" for op in sorted(missing, key=str.lower)),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Write or compare the page."""
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE} is out of date: run scripts/onnx_support.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
