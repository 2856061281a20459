"""Frames on the wire: COBS between zero bytes, a kind, a sequence number and a CRC-32.

    00  COBS( kind:u8  channel:u8  sequence:u16  payload  crc32:u32 )  00

COBS (Cheshire and Baker, "Consistent Overhead Byte Stuffing", 1997) keeps zero out of a frame, so a
receiver that lost its place finds it at the next zero.  The CRC is zlib's, over all before it.
What channel and payload mean is `messages`' business.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

OVERHEAD_BYTES = 8
"""Bytes of a frame beside its payload, before COBS: kind, channel, sequence, CRC."""

_HEAD = struct.Struct("<BBH")
_CRC = struct.Struct("<I")
_BLOCK = 254


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: its kind (`Command`, `Command | REPLY` or `Event`), channel and number."""

    kind: int
    sequence: int
    payload: bytes
    channel: int = 0

    def encode(self) -> bytes:
        """Return the bytes for the wire, with a zero on both sides."""
        body = _HEAD.pack(self.kind, self.channel, self.sequence) + self.payload
        return b"\0" + cobs_encode(body + _CRC.pack(zlib.crc32(body))) + b"\0"

    @classmethod
    def decode(cls, coded: bytes) -> Frame | None:
        """Read what lay between two zeros; None when it is no frame or its CRC is wrong."""
        body = cobs_decode(coded)
        if body is None or len(body) < OVERHEAD_BYTES:
            return None
        if zlib.crc32(body[:-4]) != _CRC.unpack_from(body, len(body) - 4)[0]:
            return None
        kind, channel, sequence = _HEAD.unpack_from(body)
        return cls(kind, sequence, body[_HEAD.size : -4], channel)


def cobs_encode(data: bytes) -> bytes:
    """Return `data` without zero bytes, at most one byte in 254 (and one) longer."""
    out = bytearray()
    for part in data.split(b"\0"):
        while len(part) >= _BLOCK:
            out += b"\xff" + part[:_BLOCK]
            part = part[_BLOCK:]
        out.append(len(part) + 1)
        out += part
    return bytes(out)


def cobs_decode(coded: bytes) -> bytes | None:
    """Undo `cobs_encode`; None when `coded` is not such bytes."""
    out = bytearray()
    at = 0
    while at < len(coded):
        code = coded[at]
        block = coded[at + 1 : at + code]
        if code == 0 or len(block) != code - 1 or 0 in block:
            return None
        out += block
        at += code
        if code != 0xFF and at < len(coded):
            out.append(0)
    return bytes(out)


class Receiver:
    """Cuts the bytes of a port into frames; counts what was neither frame nor silence.

    `sample`: the last of that, as it came.
    """

    def __init__(self, limit_bytes: int = 1 << 20) -> None:
        self._pending = bytearray()
        self._limit_bytes = limit_bytes
        self.bad_frames = 0
        self.sample = b""

    @property
    def pending(self) -> bytes:
        """What came since the last zero."""
        return bytes(self._pending)

    def feed(self, data: bytes) -> list[Frame]:
        """Take received bytes; return the frames they completed."""
        self._pending += data
        *done, rest = self._pending.split(b"\0")
        if len(rest) > self._limit_bytes:
            rest = bytearray()
            self.bad_frames += 1
        self._pending = bytearray(rest)
        frames: list[Frame] = []
        for coded in done:
            if not coded:
                continue
            frame = Frame.decode(bytes(coded))
            if frame is None:
                self.bad_frames += 1
                self.sample = bytes(coded)
            else:
                frames.append(frame)
        return frames
