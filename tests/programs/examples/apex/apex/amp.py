"""A stand-in for apex.amp."""

_amp_state = None
