"""A stand-in for torchnet, of which the examples take SplitDataset alone."""
