"""The serial ports of boards on USB: found by the ids that the board's data states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from serial.tools import list_ports

from toolkit.errors import BoardError
from toolkit.targets.board import Board

USB = "usb:"
"""What stands before a serial number in `--board NAME@usb:SERIAL`."""


class PortInfo(Protocol):
    """What pyserial tells of a port; None where it is no USB device, or does not say."""

    device: str
    vid: int | None
    pid: int | None
    serial_number: str | None
    product: str | None


@dataclass(frozen=True, slots=True)
class Port:
    """A port as pyserial opens it.  `serial_number`: of the USB device it belongs to, if any."""

    url: str
    serial_number: str | None = None


def find_port(board: Board, wanted: str | None, ports: Iterable[PortInfo] | None = None) -> Port:
    """Return the port of a board behind USB.

    `wanted`: a port or URL, which is taken as it is; `usb:SERIAL`, the device with this number;
    None, the one device with the board's ids.  `ports`: those there are; None asks the system.
    Raises BoardError when there is no such device, or more than one.
    """
    known = list(list_ports.comports() if ports is None else ports)
    if wanted is not None and not wanted.startswith(USB):
        found = next((p for p in known if p.device == wanted), None)
        return Port(wanted, found.serial_number if found else None)
    serial_number = None if wanted is None else wanted.removeprefix(USB)
    fitting = [p for p in known if (p.vid, p.pid) in board.usb_ids]
    if serial_number is not None:
        fitting = [p for p in known if p.serial_number == serial_number]
    if len(fitting) == 1:
        return Port(fitting[0].device, fitting[0].serial_number)
    ids = ", ".join(f"{vid:04x}:{pid:04x}" for vid, pid in board.usb_ids)
    what = f"with serial number {serial_number}" if serial_number else f"of {ids}"
    if not fitting:
        raise BoardError(
            f"board '{board.name}': no USB device {what} is there",
            state=[_line(p) for p in known] or ["this computer shows no serial port"],
            hint=f"plug it in, or name its port: --board {board.name}@/dev/ttyACM0",
        )
    raise BoardError(
        f"board '{board.name}': {len(fitting)} USB devices {what} are there",
        state=[_line(p) for p in fitting],
        hint=f"choose one: --board {board.name}@{USB}{fitting[0].serial_number or 'SERIAL'}",
    )


def _line(port: PortInfo) -> str:
    if port.vid is None or port.pid is None:
        return f"{port.device}: no USB device"
    of = f", serial number {port.serial_number}" if port.serial_number else ""
    return f"{port.device}: {port.vid:04x}:{port.pid:04x} {port.product or ''}{of}"
