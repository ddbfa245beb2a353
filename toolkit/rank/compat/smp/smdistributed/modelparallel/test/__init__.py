"""Tests of the old library's own, which scripts import."""
