"""A stand-in for a CUDA extension of apex: it has nothing."""
