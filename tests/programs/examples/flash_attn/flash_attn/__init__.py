"""A stand-in for flash_attn, whose kernels need CUDA."""
