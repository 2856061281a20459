"""Measuring tuning candidates: many a C file, checked against a reference, then timed.

`HostMeasurer` (host.py) runs them in a child process here, `BoardMeasurer` (board.py) as firmware.
"""
