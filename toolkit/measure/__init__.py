"""Running what was built: in a host process, or on a board over its serial port."""
