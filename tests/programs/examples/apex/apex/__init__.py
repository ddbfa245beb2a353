"""A stand-in for apex: its names, of which nothing is called."""

from types import SimpleNamespace

amp = SimpleNamespace()
