"""The protocol's messages are stated once: C header and Python agree, and layouts are fixed."""

from __future__ import annotations

import re
from enum import IntEnum

import pytest

from toolkit.measure.rpc import messages
from toolkit.measure.rpc.messages import (
    FAULT_TEXT,
    FaultKind,
    InfoReply,
    MESSAGES,
    NodeEvent,
    ReadReply,
    RPC_STATUS_TEXT,
    RpcStatus,
    RunReply,
    WriteRequest,
)
from toolkit.paths import RUNTIME_C

HEADER = RUNTIME_C / "include" / "nst_rpc_messages.h"


def test_the_c_header_is_the_one_printed_from_python() -> None:
    assert HEADER.read_text(encoding="utf-8") == messages.c_header(), (
        "python -m toolkit.measure.rpc.messages > runtime_c/include/nst_rpc_messages.h"
    )


def test_the_server_handles_every_command() -> None:
    server = (RUNTIME_C / "src" / "nst_rpc.c").read_text(encoding="utf-8")
    for command in messages.Command:
        assert f"NST_ROW({command.name}, " in server


def test_every_message_of_the_module_is_listed() -> None:
    named = {cls for cls in vars(messages).values() if isinstance(cls, type)}
    subclasses = {cls for cls in named if issubclass(cls, messages.Message)}
    assert subclasses - {messages.Message} == set(MESSAGES)


@pytest.mark.parametrize(
    ("texts", "kinds"), [(RPC_STATUS_TEXT, RpcStatus), (FAULT_TEXT, FaultKind)]
)
def test_every_code_has_a_text(texts: dict[IntEnum, str], kinds: type[IntEnum]) -> None:
    assert set(texts) == set(kinds)
    assert len(set(texts.values())) == len(texts)


@pytest.mark.parametrize(
    ("message", "packed"),
    [
        (WriteRequest(1, 0x01020304, b"ab"), b"\1\4\3\2\1ab"),
        (ReadReply(0, b""), b"\0"),
        (
            RunReply(0, 2, 0x10, 3, 4, 0x0102030405060708, 1),
            b"\0\2\0\0\0\x10\0\0\0\3\0\0\0\4\0\0\0\x08\7\6\5\4\3\2\1\1\0\0\0\0\0\0\0",
        ),
        (NodeEvent(5, 1, 2), b"\5\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0"),
    ],
)
def test_fields_are_little_endian_without_padding(message: messages.Message, packed: bytes) -> None:
    assert message.pack() == packed
    assert type(message).unpack(packed) == message


def test_the_event_of_a_node_is_the_end_of_what_would_be_the_reply() -> None:
    """So the server sends it from there."""
    reply = RunReply(0, 2, 0x10, 3, 7, 0x0102030405060708, 9)
    event = NodeEvent(reply.node, reply.start, reply.stop).pack()
    assert reply.pack().endswith(event)


def test_a_payload_of_a_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="InfoReply takes 36 bytes, not 34"):
        InfoReply.unpack(bytes(34))
    with pytest.raises(ValueError, match="NodeEvent takes 20 bytes, not 21"):
        NodeEvent.unpack(bytes(21))
    with pytest.raises(ValueError, match="ReadReply takes 1 bytes, not 0"):
        ReadReply.unpack(b"")


def test_info_is_the_longest_reply_with_fixed_fields() -> None:
    """The server's buffer for replies has its size."""
    sizes = {
        m: int(n) for m, n in re.findall(r"NST_RPC_(\w+_REPLY)_BYTES (\d+)u", messages.c_header())
    }
    assert max(sizes, key=sizes.__getitem__) == "INFO_REPLY"
