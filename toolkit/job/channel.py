"""The input channels of a job: folders of data under a name each."""

from pathlib import Path
from typing import Literal

from toolkit.records import Record

FileSystemAccess = Literal["", "ro", "rw"]
ChannelMode = Literal["File", "FastFile", "Pipe"]


class Channel(Record, frozen=True, kw_only=True):
    """An input channel. In Pipe mode `folder` does not exist; FIFOs `<folder>_0`, `<folder>_1`, ... do, one for each
    epoch."""

    name: str
    folder: Path
    """In a job file it may be a file. With a URI: where the files will be."""
    mode: ChannelMode = "File"
    sharded: bool = False
    """Each host gets a share of the files."""
    uri: str = ""
    """The place of the files in storage; "": in `folder`."""
    file_system: FileSystemAccess = ""
    """In a job file: all hosts have the folder itself, as one of EFS or FSx, to read from or to write to as well; "":
    they do not."""


def fetched_mark(folder: Path) -> Path:
    """Return the file that names the URI from which `train` has fetched a channel into *folder*."""
    return folder.with_name(f".{folder.name}.uri")
