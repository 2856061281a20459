"""The serial protocol's messages, stated once: kinds, status codes and layouts.

This module is the source; `runtime_c/include/nst_rpc_messages.h` is printed from it by

    python -m toolkit.measure.rpc.messages > runtime_c/include/nst_rpc_messages.h

and a test compares the two.  A message is a frame's payload (see `frame`): fields follow each other
without padding, little-endian.  Nothing here talks to a port.

A request names a `Command`; its reply has the kind `command | REPLY`, the same channel and sequence
number, and begins with an `RpcStatus`.  An `Event` comes unasked.  `docs/rpc.md` says why what
follows is enough for a line that loses, repeats, spoils, delays and reorders frames:

- PING opens a session; its reply names the channel that all frames of the session carry.  The
  number of the channel changes with each session and each start, so what an earlier client sent, or
  what was sent before the board restarted, is refused (BAD_SESSION).
- Every command may be repeated: a reply lost on the wire costs one more request.  RUN and CALL are
  the only ones that are not idempotent by nature, so the server keeps the last result and answers a
  repeated sequence number from it.
- A request older than the last one the server took (by sequence number, modulo 2**16) is dropped:
  it is a copy that was under way for long.  What is sent again after others has a new number.
- The server answers in the order it was asked, so several requests may be under way at once.
- While a kernel runs, a zero byte now and then says that the board lives (`beat_ms`): between
  frames it means nothing.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Annotated, Any, get_type_hints, Self

PROTOCOL_VERSION = 3
REPLY = 0x80
"""Set in the kind of a reply."""

RUN_TO_END = 0xFFFFFFFF
"""In a `RunPart`: all nodes from the first on."""

REGION_ARENA = 0
"""Index of the arena among the server's memory regions."""

REGION_WRITABLE = 1
REGION_EXECUTABLE = 2
"""Flags of `RegionReply`."""

FEATURE_LOAD = 1
FEATURE_BEAT = 2
"""Flags of `InfoReply`: the server knows REGION, LOAD, CALL, FILL and PERMUTE; the board can send
beats while a kernel runs."""

NO_MODEL = 0xFFFFFFFF
"""In a `LoadRequest`: what is loaded holds functions, no model."""

PERMUTE_RANK = 8
"""Most loops of a PERMUTE."""

U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
Tail = Annotated[bytes, "tail"]
"""The rest of the payload: only as a message's last field."""


class Command(IntEnum):
    """Kinds of requests.  Those from 16 on load and call code: a server may be built without."""

    PING = 1
    INFO = 2
    TENSOR = 3
    WRITE = 4
    READ = 5
    CRC = 6
    RUN = 7
    STATS = 8
    FAULT = 9
    RESET = 10
    REGION = 16
    LOAD = 17
    CALL = 18
    FILL = 19
    PERMUTE = 20


class Event(IntEnum):
    """Kinds of messages the board sends unasked."""

    BOOT = 0xC0
    ALIVE = 0xC1
    NODE = 0xC2


class RpcStatus(IntEnum):
    """First byte of every reply."""

    OK = 0
    BAD_COMMAND = 1
    BAD_LENGTH = 2
    BAD_REGION = 3
    BAD_RANGE = 4
    BAD_INDEX = 5
    BAD_SESSION = 6
    NOT_LOADED = 8
    BAD_CRC = 9
    BAD_KIND = 10


RPC_STATUS_TEXT: dict[RpcStatus, str] = {
    RpcStatus.OK: "ok",
    RpcStatus.BAD_COMMAND: "the server does not know this command",
    RpcStatus.BAD_LENGTH: "the request's length does not fit its command",
    RpcStatus.BAD_REGION: "no such memory region, or it is read-only",
    RpcStatus.BAD_RANGE: "the range lies outside the memory region",
    RpcStatus.BAD_INDEX: "no such input or output",
    RpcStatus.BAD_SESSION: "the board restarted since the session began, or serves another client",
    RpcStatus.NOT_LOADED: "no code is loaded there",
    RpcStatus.BAD_CRC: "the memory does not hold what was sent",
    RpcStatus.BAD_KIND: "the server does not know this kind of element or so many loops",
}


class FaultKind(IntEnum):
    """What ended the program before the last reset."""

    NONE = 0
    EXCEPTION = 1
    STACK = 2
    LIMIT = 3
    INTERRUPT = 4


FAULT_TEXT: dict[FaultKind, str] = {
    FaultKind.NONE: "no fault",
    FaultKind.EXCEPTION: "processor fault",
    FaultKind.STACK: "stack overflow",
    FaultKind.LIMIT: "run longer than its time limit",
    FaultKind.INTERRUPT: "unexpected interrupt",
}


class FillKind(IntEnum):
    """What FILL makes of the words of a `seed` (see `pattern`): elements of 1, 2 or 4 bytes."""

    INT8 = 1
    INT16 = 2
    INT32 = 4
    FLOAT32 = 5
    FLOAT32_POSITIVE = 6


class Unit(IntEnum):
    """What the board's clock counts, before `Board.from_ticks`."""

    SECONDS = 0
    CYCLES = 1
    INSTRUCTIONS = 2


@dataclass(frozen=True, slots=True)
class Message:
    """A payload: fixed fields, then perhaps a tail of bytes."""

    def pack(self) -> bytes:
        """Return the payload's bytes."""
        fixed, has_tail = _LAYOUTS[type(self).__name__]
        values: list[Any] = [getattr(self, f.name) for f in fields(self)]
        tail: bytes = values.pop() if has_tail else b""
        return fixed.pack(*values) + tail

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Read the fields from `payload`; raises ValueError when the length does not fit."""
        fixed, has_tail = _LAYOUTS[cls.__name__]
        if len(payload) < fixed.size or (len(payload) > fixed.size and not has_tail):
            raise ValueError(f"{cls.__name__} takes {fixed.size} bytes, not {len(payload)}")
        values: tuple[Any, ...] = fixed.unpack_from(payload)
        return cls(*values, *((payload[fixed.size :],) if has_tail else ()))


def _codes(cls: type[Message]) -> list[tuple[str, str]]:
    """Return (field name, struct code or 'tail') of each field of `cls`."""
    hints = get_type_hints(cls, include_extras=True)
    return [(f.name, hints[f.name].__metadata__[0]) for f in fields(cls)]


@dataclass(frozen=True, slots=True)
class PingRequest(Message):
    """Synchronise; `session` is a fresh number that is not 0.  Goes over channel 0."""

    session: U32


@dataclass(frozen=True, slots=True)
class PingReply(Message):
    """The session echoed, and the channel of its frames."""

    status: U8
    version: U16
    session: U32
    channel: U8


@dataclass(frozen=True, slots=True)
class InfoRequest(Message):
    """Ask what the board runs."""


@dataclass(frozen=True, slots=True)
class InfoReply(Message):
    """The model and the clock.

    `buffer_bytes` is the longest frame (before COBS) the server takes.  `empty_start` and
    `empty_stop` are two clock readings with nothing between them: what a measurement costs.
    `features`: FEATURE_* flags.
    """

    status: U8
    version: U16
    model_digest: U32
    arena_bytes: U32
    node_count: U32
    input_count: U16
    output_count: U16
    buffer_bytes: U16
    region_count: U8
    unit: U8
    clock_hz: U32
    empty_start: U32
    empty_stop: U32
    features: U8


@dataclass(frozen=True, slots=True)
class TensorRequest(Message):
    """Ask where input (`output` 0) or output (`output` 1) number `index` lies in the arena."""

    output: U8
    index: U16


@dataclass(frozen=True, slots=True)
class TensorReply(Message):
    """Place, size and `nst_dtype` of a tensor."""

    status: U8
    offset: U32
    nbytes: U32
    dtype: U16


@dataclass(frozen=True, slots=True)
class WriteRequest(Message):
    """Write `data` at byte `offset` of a memory region."""

    region: U8
    offset: U32
    data: Tail


@dataclass(frozen=True, slots=True)
class ReadRequest(Message):
    """Read `count` bytes at byte `offset` of a memory region."""

    region: U8
    offset: U32
    count: U32


@dataclass(frozen=True, slots=True)
class ReadReply(Message):
    """The bytes; none unless the status is OK."""

    status: U8
    data: Tail


@dataclass(frozen=True, slots=True)
class CrcRequest(Message):
    """Ask for the CRC-32 of `count` bytes at byte `offset` of a memory region."""

    region: U8
    offset: U32
    count: U32


@dataclass(frozen=True, slots=True)
class CrcReply(Message):
    """The CRC-32 (zlib's)."""

    status: U8
    crc: U32


@dataclass(frozen=True, slots=True)
class RunRequest(Message):
    """Run the model once.

    Past `limit_ms` of its time the board restarts (0: no limit); each `beat_ms` of it a zero byte
    says that it lives (0: none).  With a `RunPart` behind it goes from node to node and sends a
    `NodeEvent` after each kernel; then there must be no beats.
    """

    limit_ms: U32
    beat_ms: U32
    part: Tail = b""


@dataclass(frozen=True, slots=True)
class RunPart(Message):
    """Tail of RUN: run from node `first` until the next one is `stop` or one behind it.

    The arena keeps what is between parts.
    """

    first: U32
    stop: U32


@dataclass(frozen=True, slots=True)
class RunReply(Message):
    """Reply of RUN and CALL: what the model or the function returned, the clock before and after,
    its stack.

    Of a part: what the last step returned (`nst_step`), a stack that is not the model's alone,
    how many events were sent, the node that comes next, and no `start`.  A `NodeEvent` has the
    layout of the fields from `node` on, because the server sends it from there.
    """

    status: U8
    result: U32
    stack_bytes: U32
    node_events: U32
    node: U32
    start: U64
    stop: U64


@dataclass(frozen=True, slots=True)
class StatsRequest(Message):
    """Ask for the server's counters."""


@dataclass(frozen=True, slots=True)
class StatsReply(Message):
    """Stack of the last run, frames taken and dropped since the start, bytes lost before them."""

    status: U8
    stack_bytes: U32
    frames: U32
    bad_frames: U32
    lost_bytes: U32


@dataclass(frozen=True, slots=True)
class FaultRequest(Message):
    """Ask why the board restarted last; `clear` 1 forgets it."""

    clear: U8


@dataclass(frozen=True, slots=True)
class FaultReply(Message):
    """A `FaultKind` and, for exceptions of a Cortex-M, its registers."""

    status: U8
    kind: U8
    pc: U32
    lr: U32
    sp: U32
    cause: U32
    address: U32


@dataclass(frozen=True, slots=True)
class ResetRequest(Message):
    """Restart the board, after the reply."""


@dataclass(frozen=True, slots=True)
class RegionRequest(Message):
    """Ask where a memory region lies."""

    region: U8


@dataclass(frozen=True, slots=True)
class RegionReply(Message):
    """Its address, its size, and REGION_* flags."""

    status: U8
    address: U32
    nbytes: U32
    flags: U8


@dataclass(frozen=True, slots=True)
class LoadRequest(Message):
    """Make what was written to a range callable code, when its CRC-32 is `crc`.

    With a model (`model` and `run`: bytes from the start of the region; else both NO_MODEL) RUN and
    TENSOR speak of that model from now on.  A write to the range, or another LOAD, ends it.
    """

    region: U8
    offset: U32
    count: U32
    crc: U32
    model: U32
    run: U32


@dataclass(frozen=True, slots=True)
class CallRequest(Message):
    """Call `uint32_t function(void *argument, uint64_t (*clock)(void))` in what was loaded.

    `entry`: its byte of the region, with bit 0 as the core wants it of addresses of code.  The
    argument points to `argument` of region `argument_region`.  Limit and beat are those of RUN.
    """

    entry: U32
    argument_region: U8
    argument: U32
    limit_ms: U32
    beat_ms: U32


@dataclass(frozen=True, slots=True)
class FillRequest(Message):
    """Fill `count` elements at byte `offset` with words `first`... of a seed (see `pattern`).

    Integers are `low` plus the word modulo `span` (0: the word as it is).
    """

    region: U8
    offset: U32
    count: U32
    kind: U8
    seed: U32
    first: U32
    low: U32
    span: U32


@dataclass(frozen=True, slots=True)
class PermuteRequest(Message):
    """Copy elements of `element_bytes` (1, 2, 4 or 8) in loops that are not regular in memory.

    The tail has three U32 for each loop, outermost first: extent, bytes from one turn to the next
    in the target, and in the source.  The two must not overlap.
    """

    region: U8
    offset: U32
    source_region: U8
    source_offset: U32
    element_bytes: U8
    loops: Tail


@dataclass(frozen=True, slots=True)
class StatusReply(Message):
    """Reply of WRITE, RESET, LOAD, FILL and PERMUTE, and of every refused request."""

    status: U8


@dataclass(frozen=True, slots=True)
class BootEvent(Message):
    """The board has started; `kind` is the `FaultKind` that ended the program before."""

    version: U16
    kind: U8


@dataclass(frozen=True, slots=True)
class AliveEvent(Message):
    """RUN or CALL was taken and is at work; the frame has its sequence number."""


@dataclass(frozen=True, slots=True)
class NodeEvent(Message):
    """Clock before and after one kernel; the frame has RUN's sequence number."""

    node: U32
    start: U64
    stop: U64


MESSAGES: tuple[type[Message], ...] = (
    PingRequest,
    PingReply,
    InfoRequest,
    InfoReply,
    TensorRequest,
    TensorReply,
    WriteRequest,
    ReadRequest,
    ReadReply,
    CrcRequest,
    CrcReply,
    RunRequest,
    RunPart,
    RunReply,
    StatsRequest,
    StatsReply,
    FaultRequest,
    FaultReply,
    ResetRequest,
    RegionRequest,
    RegionReply,
    LoadRequest,
    CallRequest,
    FillRequest,
    PermuteRequest,
    StatusReply,
    BootEvent,
    AliveEvent,
    NodeEvent,
)


def _layout(cls: type[Message]) -> tuple[struct.Struct, bool]:
    """Return the fixed fields of `cls`, and whether a tail follows."""
    codes = [code for _, code in _codes(cls)]
    assert "tail" not in codes[:-1]
    return struct.Struct("<" + "".join(c for c in codes if c != "tail")), "tail" in codes


_LAYOUTS = {cls.__name__: _layout(cls) for cls in MESSAGES}


def _upper(name: str) -> str:
    """Return `name` in capitals, words split by underscores: `PingReply` -> `PING_REPLY`."""
    return "".join("_" + c if c.isupper() and i else c for i, c in enumerate(name)).upper()


def c_header() -> str:
    """Return the text of `nst_rpc_messages.h`: the same constants for the server."""
    lines = [
        "/* nst_rpc_messages.h - kinds, status codes and layouts of the serial protocol.",
        " *",
        " * Printed by `python -m toolkit.measure.rpc.messages`, the source; do not edit.",
        " * NST_RPC_<MESSAGE>_<FIELD> is the field's byte in the payload, NST_RPC_<MESSAGE>_BYTES",
        " * the size of the fixed fields; a tail of bytes follows.  All numbers are little-endian.",
        " */",
        "#ifndef NST_RPC_MESSAGES_H",
        "#define NST_RPC_MESSAGES_H",
        "",
        f"#define NST_RPC_VERSION {PROTOCOL_VERSION}u",
        f"#define NST_RPC_REPLY 0x{REPLY:02X}u",
        f"#define NST_RPC_REGION_ARENA {REGION_ARENA}u",
        f"#define NST_RPC_REGION_WRITABLE {REGION_WRITABLE}u",
        f"#define NST_RPC_REGION_EXECUTABLE {REGION_EXECUTABLE}u",
        f"#define NST_RPC_FEATURE_LOAD {FEATURE_LOAD}u",
        f"#define NST_RPC_FEATURE_BEAT {FEATURE_BEAT}u",
        f"#define NST_RPC_NO_MODEL 0x{NO_MODEL:08X}u",
        f"#define NST_RPC_PERMUTE_RANK {PERMUTE_RANK}u",
    ]
    enums: tuple[tuple[str, type[IntEnum]], ...] = (
        ("CMD", Command),
        ("EVENT", Event),
        ("STATUS", RpcStatus),
        ("FAULT", FaultKind),
        ("FILL", FillKind),
        ("UNIT", Unit),
    )
    for prefix, enum in enums:
        lines += ["", f"/* {enum.__name__} */"]
        lines += [f"#define NST_RPC_{prefix}_{m.name} {m.value}u" for m in enum]
    for cls in MESSAGES:
        doc = (cls.__doc__ or "").strip().splitlines()[0]
        name = _upper(cls.__name__)
        lines += ["", f"/* {cls.__name__}: {doc} */"]
        at = 0
        for field, code in _codes(cls):
            lines.append(f"#define NST_RPC_{name}_{field.upper()} {at}u")
            at += 0 if code == "tail" else struct.calcsize("<" + code)
        lines.append(f"#define NST_RPC_{name}_BYTES {at}u")
    return "\n".join([*lines, "", "#endif /* NST_RPC_MESSAGES_H */", ""])


if __name__ == "__main__":
    sys.stdout.write(c_header())
