"""Private names of torch, by topic: tensors, modules, the autograd graph, the compiler, the profiler, process groups.

Read in torch 2.9.1, 2.13.0 and 2.14.1 (`scripts/test-torch` runs the tests with each). `compiler`, `modules` and
`profiler` are for Python 3.8 and older releases of torch, too: a job compiles and measures whatever its image has.
"""
