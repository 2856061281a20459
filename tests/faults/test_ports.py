"""Ports that are not there, are busy, or belong to something else: one clear line within 5 s."""

from __future__ import annotations

import os
import pty
import random
import re
import socket
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from toolkit.errors import BoardError
from toolkit.measure.rpc import transport
from toolkit.measure.rpc.client import open_client
from toolkit.measure.rpc.transport import PortLost, SerialTransport

LIMIT_S = 5.0


def refusal(url: str) -> str:
    """Open a port where no board is; return what is said of it."""
    start = time.monotonic()
    with pytest.raises(BoardError) as caught:
        open_client(url, 115200)
    assert time.monotonic() - start < LIMIT_S
    assert "\n" not in caught.value.what
    assert url in caught.value.what
    return caught.value.what


@contextmanager
def device(answer: Callable[[bytes], bytes]) -> Iterator[str]:
    """A pseudo terminal at whose other end something answers what it reads."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            try:
                os.write(ours, answer(os.read(ours, 4096)))
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield os.ttyname(theirs)
    finally:
        done.set()
        os.write(theirs, b"x")  # which ends its wait
        thread.join(2)
        os.close(theirs)
        os.close(ours)


def test_a_port_that_does_not_exist() -> None:
    assert "No such file" in refusal("/dev/ttyACM97")


def test_a_file_that_is_no_port(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    assert "cannot be opened" in refusal(str(path))


def test_a_socket_where_nobody_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1]
    assert "refused" in refusal(f"socket://127.0.0.1:{number}")


def test_a_socket_that_is_closed_at_once() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def hang_up() -> None:
            connection, _ = listener.accept()
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        what = refusal(f"socket://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert "lost" in what


def test_a_port_that_another_program_has_open() -> None:
    with device(lambda data: b"") as url:
        other = SerialTransport(url, 115200)
        try:
            assert "another program has it open" in refusal(url)
        finally:
            other.close()


def test_a_port_where_nothing_answers() -> None:
    with device(lambda data: b"") as url:
        assert re.search(r"did not answer a ping within 4\.0 s$", refusal(url))


def test_a_port_that_answers_garbage() -> None:
    rng = random.Random(1)
    with device(lambda data: rng.randbytes(200)) as url:
        assert re.search(r"\(\d+ frames of garbage came\)$", refusal(url))


def test_a_modem_is_quoted() -> None:
    with device(lambda data: b"\r\nERROR\r\n") as url:
        what = refusal(url)
    assert "it sends text, as a modem or another program does" in what
    assert "ERROR" in what


def test_a_port_that_echoes_is_no_board() -> None:
    with device(lambda data: data) as url:
        assert "what is sent comes back" in refusal(url)
    assert "what is sent comes back" in refusal("loop://")


def test_a_port_that_comes_back_under_another_name_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By vendor, product and serial number; another device of the same kind is not taken."""
    seen: list[SimpleNamespace] = []
    monkeypatch.setattr(transport.list_ports, "comports", lambda: seen)

    def usb(device: str, serial_number: str) -> SimpleNamespace:
        return SimpleNamespace(device=device, vid=1, pid=2, serial_number=serial_number)

    with device(lambda data: b"") as other, device(lambda data: data) as new:
        with device(lambda data: b"") as old:
            seen[:] = [usb(old, "mine"), usb(other, "another")]
            port = SerialTransport(old, 115200)
        with pytest.raises(PortLost, match="was lost"):
            port.read(5.0)
        seen[:] = [usb(other, "another")]
        with pytest.raises(PortLost, match="did not come back"):
            port.reopen()
        seen[:] = [usb(other, "another"), usb(new, "mine")]
        again = port.reopen()
        assert again.url == new
        again.write(b"hello")
        assert again.read(2.0)
        again.close()


def test_a_board_of_another_version_of_the_protocol_is_told_so() -> None:
    """The first fields of a ping's reply are the same in every version."""
    from toolkit.measure.rpc.frame import Frame, Receiver
    from toolkit.measure.rpc.messages import Command, PROTOCOL_VERSION, REPLY

    receiver = Receiver()

    def answer(data: bytes) -> bytes:
        payload = bytes([0]) + (PROTOCOL_VERSION + 1).to_bytes(2, "little") + bytes(5)
        frames = receiver.feed(data)
        return b"".join(Frame(Command.PING | REPLY, f.sequence, payload).encode() for f in frames)

    with device(answer) as url:
        assert f"speaks version {PROTOCOL_VERSION + 1} of the protocol" in refusal(url)
