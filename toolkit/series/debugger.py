"""The files of SageMaker Debugger's profiler: `Writer` writes them, `read` gives them as samples of each node."""

from toolkit.series.debugger_reader import read as read
from toolkit.series.debugger_writer import Writer as Writer
