"""torch_xla made true in ranks that it would leave alone (docs/pytorchxla.md). Runs in the ranks' interpreters.

What cannot be written without torch lies in live/, which is no package: it is imported in a rank that has torch, and by
nothing that walks over the packages.
"""
