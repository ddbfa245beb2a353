"""Finds secrets in values and in text, by name and by shape, so that what we write holds none (docs/secrets.md)."""
