"""Searches the largest batch that fits, scales hyperparameters, and runs tries."""
