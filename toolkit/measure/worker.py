"""The child process that loads a built model and runs it; a script that imports no `toolkit`.

Messages on stdin and stdout: a line of JSON, whose "bytes" is the length of the raw data after it.
A crash or a hang of generated code ends this process, not the user's.  A library may hold several
models: a request names the one it means ("model"), which is opened when first named.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from typing import Any, BinaryIO

import cffi

CDEF = """
typedef struct { uint32_t offset, bytes; const int32_t *shape; uint16_t rank, dtype; } nst_tensor;
typedef struct {
    const void *nodes; const void *operands; const void *consts;
    const nst_tensor *inputs; const nst_tensor *outputs;
    uint32_t node_count, operand_count, const_count;
    uint16_t input_count, output_count;
    uint32_t arena_bytes, digest;
} nst_model;
const char *nst_status_text(int status);
void *nst_input(const nst_model *model, void *arena, uint32_t index);
const void *nst_output(const nst_model *model, const void *arena, uint32_t index);
int nst_step(const nst_model *model, void *arena, uint32_t *node);
int nst_bench(const nst_model *model, int (*run)(void *), void *arena, const uint8_t *inputs,
              uint32_t runs, uint64_t *ns);
int nst_profile(const nst_model *model, void *arena, const uint8_t *inputs, uint64_t *ns);
int nst_stack(const nst_model *model, int (*run)(void *), void *arena, const uint8_t *inputs,
              uint32_t *bytes);
"""
CDEF_MODEL = """
extern nst_model %(name)s_model;
int %(name)s_run(void *arena);
"""
ALIGN = 64
GUARD = 256
GUARD_BYTE = b"\xa5"


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends (Linux prctl PR_SET_PDEATHSIG)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, 9)


def send(out: BinaryIO, message: dict[str, Any], data: bytes = b"") -> None:
    """Write one message."""
    out.write(json.dumps({**message, "bytes": len(data)}).encode() + b"\n" + data)
    out.flush()


class Model:
    """A model of the loaded library, with an arena between guards."""

    def __init__(self, ffi: Any, lib: Any, name: str) -> None:
        self.ffi, self.lib = ffi, lib
        self.model = ffi.addressof(lib, f"{name}_model")
        self.run = ffi.addressof(lib, f"{name}_run")
        size: int = self.model.arena_bytes
        self.arena_bytes = size
        self.raw = ffi.new("uint8_t[]", size + 2 * GUARD + ALIGN)
        start = int(ffi.cast("uintptr_t", self.raw)) + GUARD
        self.arena = self.raw + GUARD + (-start % ALIGN)

    def fill(self, pattern: int) -> None:
        """Fill the arena, so that what lay in it before cannot matter, and set the guards."""
        self.ffi.memmove(self.arena, bytes([pattern]) * self.arena_bytes, self.arena_bytes)
        self.ffi.memmove(self.arena - GUARD, GUARD_BYTE * GUARD, GUARD)
        self.ffi.memmove(self.arena + self.arena_bytes, GUARD_BYTE * GUARD, GUARD)

    def guards_whole(self) -> bool:
        """Tell whether nothing was written outside the arena since `fill`."""
        before = bytes(self.ffi.buffer(self.arena - GUARD, GUARD))
        after = bytes(self.ffi.buffer(self.arena + self.arena_bytes, GUARD))
        return before == GUARD_BYTE * GUARD == after

    def outputs(self) -> bytes:
        """Return the outputs' bytes, one after the other."""
        parts = []
        for i in range(self.model.output_count):
            pointer = self.lib.nst_output(self.model, self.arena, i)
            parts.append(bytes(self.ffi.buffer(pointer, self.model.outputs[i].bytes)))
        return b"".join(parts)

    def answer(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Do what a request asks; return the reply and its data."""
        ffi, lib, model, arena = self.ffi, self.lib, self.model, self.arena
        inputs = ffi.from_buffer("uint8_t[]", data)
        match request["op"]:
            case "run":
                runs = request["runs"]
                ns = ffi.new("uint64_t[]", max(runs, 1))
                self.fill(request.get("fill", 0xCD))
                status = lib.nst_bench(model, self.run, arena, inputs, runs, ns)
                text = self.text(status)
                if not status and not self.guards_whole():
                    status, text = -1, "wrote outside its arena"
                return {"ok": status == 0, "status": text, "ns": list(ns)}, self.outputs()
            case "profile":
                ns = ffi.new("uint64_t[]", max(model.node_count, 1))
                status = 0
                for _ in range(request["runs"]):
                    status = status or lib.nst_profile(model, arena, inputs, ns)
                reply = {"ok": status == 0, "status": self.text(status), "ns": list(ns)}
                return reply, self.outputs()
            case "stack":
                used = ffi.new("uint32_t *")
                status = lib.nst_stack(model, self.run, arena, inputs, used)
                known = used[0] if used[0] != 0xFFFFFFFF else None
                return {"ok": status == 0, "status": self.text(status), "stack_bytes": known}, b""
            case "step":
                if request["node"] == 0:
                    self.write(data)
                node = ffi.new("uint32_t *", request["node"])
                status = lib.nst_step(model, arena, node)
                spans = [bytes(ffi.buffer(arena + o, n)) for o, n in request["read"]]
                reply = {"ok": status in (0, 1), "status": status, "next": node[0]}
                return reply, b"".join(spans)
            case op:
                raise ValueError(op)

    def write(self, data: bytes) -> None:
        """Write the inputs into the arena."""
        offset = 0
        for i in range(self.model.input_count):
            size = self.model.inputs[i].bytes
            pointer = self.lib.nst_input(self.model, self.arena, i)
            self.ffi.memmove(pointer, data[offset : offset + size], size)
            offset += size

    def text(self, status: int) -> str:
        """Return the text of a status; nothing when all is well."""
        return self.ffi.string(self.lib.nst_status_text(status)).decode() if status else ""


def main() -> None:
    """Serve requests until stdin closes."""
    die_with_parent()
    path, name = sys.argv[1:3]
    stdin = sys.stdin.buffer
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    ffi = cffi.FFI()
    ffi.cdef(CDEF)
    lib = ffi.dlopen(path)
    models: dict[str, Model] = {}

    def open_model(name: str) -> Model:
        if name not in models:
            ffi.cdef(CDEF_MODEL % {"name": name})
            models[name] = Model(ffi, lib, name)
        return models[name]

    first = open_model(name)
    send(out, {"ok": True, "arena_bytes": first.arena_bytes, "nodes": first.model.node_count})
    while line := stdin.readline():
        request = json.loads(line)
        data = stdin.read(request["bytes"])
        send(out, *open_model(request.get("model", name)).answer(request, data))


if __name__ == "__main__":
    main()
