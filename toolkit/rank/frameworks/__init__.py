"""The fence around the private names of frameworks and of CPython: no other folder of the toolkit touches them.

One file, or folder, for each: the framework's name is the file's. Each private name is in a function, named by a verb
and an object, beside the versions in which it was read. The function looks first whether the name is there
(`private_names.py`). If it is missing, one line of the log says so, the feature that needs it is off, and the script
runs on.

Importing these files imports no framework: whoever calls one of their functions has imported the framework before. The
files of `torch/` but profiler.py do import torch: only what runs after the script's own import loads them.
"""
