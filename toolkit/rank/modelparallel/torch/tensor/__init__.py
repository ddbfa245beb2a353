"""Tensor parallelism: modules whose parameters are divided among the ranks of a tensor parallel group."""
