"""Samples of a machine and its ranks in compact files: `Writer` appends them, `read` gives them as series.

The writer needs the standard library alone; the reader needs numpy, which it imports when it is called.
"""

from toolkit.series.column import Column as Column
from toolkit.series.sample_reader import Samples as Samples
from toolkit.series.sample_reader import Series as Series
from toolkit.series.sample_reader import of_arrays as of_arrays
from toolkit.series.sample_reader import read as read
from toolkit.series.sample_writer import Writer as Writer
