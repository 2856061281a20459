"""Frames survive the wire, and anything else is not taken for one."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.measure.rpc.frame import cobs_decode, cobs_encode, Frame, Receiver

DATA = st.one_of(
    st.binary(max_size=2000),
    st.lists(st.sampled_from([0, 1, 255]), max_size=600).map(bytes),
    st.integers(250, 260).flatmap(lambda n: st.just(bytes([7]) * n)),
)


@pytest.mark.parametrize(
    ("data", "coded"),
    [  # Cheshire and Baker, and the examples of Wikipedia's "Consistent Overhead Byte Stuffing"
        (b"\0", b"\1\1"),
        (b"\0\0", b"\1\1\1"),
        (b"\x11\x22\0\x33", b"\3\x11\x22\2\x33"),
        (b"\x11\0\0\0", b"\2\x11\1\1\1"),
        (bytes(range(1, 255)), b"\xff" + bytes(range(1, 255)) + b"\1"),
        (bytes(range(255)), b"\1\xff" + bytes(range(1, 255)) + b"\1"),
        (bytes(range(1, 256)), b"\xff" + bytes(range(1, 255)) + b"\2\xff"),
    ],
)
def test_cobs_encodes_the_published_examples(data: bytes, coded: bytes) -> None:
    assert cobs_encode(data) == coded
    assert cobs_decode(coded) == data


def test_cobs_decodes_a_full_last_block_without_its_empty_successor() -> None:
    data = bytes(range(1, 255))
    assert cobs_decode(b"\xff" + data) == data


@given(DATA)
def test_cobs_is_reversible_and_free_of_zeros(data: bytes) -> None:
    coded = cobs_encode(data)
    assert 0 not in coded
    assert len(coded) <= len(data) + 2 + len(data) // 254
    assert cobs_decode(coded) == data


@given(st.binary(max_size=300))
def test_cobs_refuses_or_decodes_anything(coded: bytes) -> None:
    data = cobs_decode(coded)
    assert data is None or len(data) <= len(coded)


@given(st.integers(0, 255), st.integers(0, 65535), DATA, st.data())
def test_a_frame_survives_in_any_pieces_and_amid_noise(
    kind: int, sequence: int, payload: bytes, data: st.DataObject
) -> None:
    frame = Frame(kind, sequence, payload)
    noise = data.draw(st.binary(max_size=30).map(lambda b: b.replace(b"\0", b"x")))
    wire = noise + frame.encode()
    receiver = Receiver()
    frames: list[Frame] = []
    while wire:
        cut = data.draw(st.integers(1, len(wire)))
        frames += receiver.feed(wire[:cut])
        wire = wire[cut:]
    assert frames == [frame]
    assert receiver.bad_frames == bool(noise)


@given(DATA, st.data())
def test_a_changed_bit_is_noticed(payload: bytes, data: st.DataObject) -> None:
    coded = bytearray(Frame(1, 2, payload).encode().strip(b"\0"))
    coded[data.draw(st.integers(0, len(coded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert Frame.decode(bytes(coded)) is None or 0 in coded


def test_the_crc_is_zlibs_over_kind_channel_sequence_and_payload() -> None:
    body = b"\7\5\x34\x12abc"
    coded = cobs_encode(body + zlib.crc32(body).to_bytes(4, "little"))
    assert Frame.decode(coded) == Frame(7, 0x1234, b"abc", 5)


def test_endless_garbage_does_not_fill_memory() -> None:
    receiver = Receiver(limit_bytes=1000)
    for _ in range(100):
        receiver.feed(b"x" * 100)
    assert receiver.bad_frames == 9
    assert receiver.feed(b"\0" + Frame(1, 2, b"").encode()) == [Frame(1, 2, b"")]
