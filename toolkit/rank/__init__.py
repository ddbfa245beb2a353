"""Code that runs inside the interpreter of a rank, not in `train`."""
