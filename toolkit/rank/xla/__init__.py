"""Makes torch_xla work across ranks on CPU (docs/pytorchxla.md). Runs in the ranks' interpreters.

Modules that import torch at the top are in live/, which has no __init__.py: only ranks that have torch import them, and
tools that import all packages do not find them.
"""
