"""Schedules: how a kernel's loop nest is transformed, as data."""
