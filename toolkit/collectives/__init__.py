"""Pure: the collective calls of the ranks, as torch's Flight Recorder has them, and the comparison of all ranks."""
