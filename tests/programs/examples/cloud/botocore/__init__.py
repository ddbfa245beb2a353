"""A stand-in for botocore."""

from . import exceptions  # noqa: F401
