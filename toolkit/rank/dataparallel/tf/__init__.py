"""The TensorFlow half of the data parallel library, as `smdistributed.dataparallel.tensorflow` had it (docs/smddp.md).

TensorFlow has no binding to gloo, and AWS's had its own operations. Here tensors leave TensorFlow as NumPy arrays and
go through MPI (mpi4py) under mpirun, else through backend "smddp" of PyTorch, which torchrun needs anyway.
"""
