"""The part of the old library that both frameworks shared."""
