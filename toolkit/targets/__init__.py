"""What code is compiled for: instruction sets, targets, boards."""
