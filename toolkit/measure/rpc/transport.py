"""What carries bytes to a board and back: any pyserial URL.

A port that is lost may come back, after a reset of the board's USB for example, under another name:
`SerialTransport.reopen` looks for the same device by its USB identity.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Protocol

import serial
from serial.tools import list_ports

from toolkit.errors import BoardError

_POLL_S = 0.05
_WRITE_TIMEOUT_S = 5.0
"""A frame of 2 kB takes 2.2 s at 9600 baud."""


class PortLost(BoardError):
    """The port was there, and is gone."""


class PortStuck(BoardError):
    """The port takes no data: nobody reads at its other end."""


class Transport(Protocol):
    """What carries bytes to a board and back."""

    def read(self, timeout_s: float) -> bytes:
        """Return what came; wait at most about `timeout_s` for the first byte.

        Raises PortLost.
        """
        ...

    def write(self, data: bytes) -> None:
        """Send all of `data`; raises PortLost, and PortStuck when the port takes none for long."""
        ...

    def close(self) -> None:
        """Let go of the port."""
        ...

    def reopen(self) -> Transport:
        """Let go of the port and return the same device's port of now; raises PortLost."""
        ...


@contextlib.contextmanager
def held_open(url: str) -> Iterator[None]:
    """Keep a port from being closed by its last user: QEMU takes a second to see it open again."""
    held = -1
    if url.startswith("/dev/"):
        with contextlib.suppress(OSError):
            held = os.open(url, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        yield
    finally:
        if held >= 0:
            os.close(held)


class SerialTransport:
    """A pyserial port: /dev/ttyACM0, /dev/pts/7, socket://127.0.0.1:PORT, loop://."""

    def __init__(self, url: str, baud: int) -> None:
        self.url, self.baud = url, baud
        # pyserial configures the port anew whenever a timeout is set: set each once.
        try:
            self._port = serial.serial_for_url(
                url,
                baudrate=baud,
                timeout=_POLL_S,
                write_timeout=_WRITE_TIMEOUT_S,
                exclusive=True,
            )
        except (OSError, ValueError) as error:  # SerialException is an OSError
            reason = _reason(error)
            if "exclusively lock" in str(error):
                reason = "another program has it open"
            raise BoardError(f"port {url} cannot be opened: {reason}", hint=_hint(error)) from None
        self._identity = _usb_identity(url)

    def read(self, timeout_s: float) -> bytes:
        """See `Transport`."""
        end = time.monotonic() + timeout_s
        try:
            while True:
                first: bytes = self._port.read(1)
                if first:
                    waiting = self._port.in_waiting
                    rest: bytes = self._port.read(waiting) if waiting else b""
                    return first + rest
                if time.monotonic() >= end:
                    return b""
        except (OSError, TypeError) as error:  # pyserial: TypeError when the port is torn away
            raise PortLost(f"port {self.url} was lost: {_reason(error)}") from None

    def write(self, data: bytes) -> None:
        """See `Transport`."""
        try:
            self._port.write(data)
        except serial.SerialTimeoutException:
            raise PortStuck(
                f"port {self.url} took no data for {_WRITE_TIMEOUT_S:.0f} s: nobody reads there"
            ) from None
        except (OSError, TypeError) as error:
            raise PortLost(f"port {self.url} was lost: {_reason(error)}") from None

    def close(self) -> None:
        """See `Transport`."""
        self._port.close()

    def reopen(self) -> SerialTransport:
        """See `Transport`."""
        self.close()
        names = [self.url]
        if self._identity is not None:
            names = [p.device for p in list_ports.comports() if _identity(p) == self._identity]
        error: BoardError | None = None
        for name in names:
            try:
                return SerialTransport(name, self.baud)
            except BoardError as refused:
                error = refused
        why = error.what if error else f"port {self.url} did not come back"
        raise PortLost(why)


def _identity(port: object) -> tuple[object, ...] | None:
    """Return vendor, product and serial number of a USB port; None for others."""
    found = tuple(getattr(port, key, None) for key in ("vid", "pid", "serial_number"))
    return found if None not in found else None


def _usb_identity(url: str) -> tuple[object, ...] | None:
    if not url.startswith("/dev/"):
        return None
    return next((_identity(p) for p in list_ports.comports() if p.device == url), None)


def _hint(error: Exception) -> str | None:
    inner = error.__context__ if isinstance(error.__context__, OSError) else error
    if isinstance(inner, PermissionError) or "Permission denied" in str(error):
        return "add yourself to the group that owns it (dialout), and log in again"
    return None


def _reason(error: Exception) -> str:
    """Return the operating system's word for `error`, without Python's wrapping."""
    inner = error.__context__ if isinstance(error.__context__, OSError) else error
    text = inner.strerror if isinstance(inner, OSError) and inner.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
