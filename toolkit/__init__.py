"""The programs inside a training container: `train`, and `toolkit` for the people beside it."""

__version__ = "0.1.0"
