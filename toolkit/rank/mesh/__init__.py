"""Shared by the libraries that scripts import: a rank's position, and connections between ranks."""
