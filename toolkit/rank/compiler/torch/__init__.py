"""Compiles the PyTorch models that train, without a change to the script (docs/compiler.md)."""
