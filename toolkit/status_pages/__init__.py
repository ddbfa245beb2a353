"""The pages in shared memory by which ranks tell `train` their status."""
