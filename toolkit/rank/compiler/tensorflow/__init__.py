"""Compiles TensorFlow's training steps with XLA, in the rank, without a change to the script (docs/compiler.md)."""
