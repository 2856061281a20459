"""The serial protocol between host and board: frames, messages, and the host's client."""
