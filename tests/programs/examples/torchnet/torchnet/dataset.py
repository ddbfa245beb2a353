class SplitDataset:
    """Consecutive parts of a data set, one of which is selected."""

    def __init__(self, dataset, partitions):
        self.dataset, self.partitions, self.selected = dataset, partitions, None

    def select(self, name):
        shares = list(self.partitions.values())
        first = sum(shares[: list(self.partitions).index(name)])
        ends = (round(share * len(self.dataset)) for share in (first, first + self.partitions[name]))
        self.selected = range(*ends)

    def __len__(self):
        return len(self.selected)

    def __getitem__(self, index):
        if index >= len(self.selected):
            raise IndexError(index)
        return self.dataset[self.selected[index]]
