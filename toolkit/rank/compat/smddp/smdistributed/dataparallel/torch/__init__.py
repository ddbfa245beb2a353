"""The library's PyTorch half: torch_smddp (the backend), distributed and parallel (the older module form)."""
