"""Fetches the channels of a job of `toolkit run` that are in storage: once, for all hosts."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from toolkit.errors import name_place
from toolkit.job.channel import Channel
from toolkit.job.file.job_file import JobFile
from toolkit.log import Log

FOLDER = "channels"
TIMEOUT_S = 60.0


def fetch_channels(job_file: JobFile, user_environ: Mapping[str, str], log: Log, *, content: bool = True) -> JobFile:
    """Return *job_file* with each channel's files in JOBDIR/channels/NAME. *user_environ*: the person's environment.
    *content* False: with empty files of the same names.

    Raises:
        UserError: there is nothing at a URI, or obstore is missing.
        PlatformError: the storage cannot be reached, or the disk is full.
    """
    if not any(channel.uri for channel in job_file.channels):
        return job_file
    channels = tuple(_fetch_channel(channel, job_file, user_environ, log, content) for channel in job_file.channels)
    return msgspec.structs.replace(job_file, channels=channels)


def _fetch_channel(
    channel: Channel, job_file: JobFile, user_environ: Mapping[str, str], log: Log, content: bool
) -> Channel:
    if not channel.uri:
        return channel
    from toolkit.storage import download
    from toolkit.storage.store import StorageClient
    from toolkit.storage.uri import parse

    into = job_file.run.job_dir / FOLDER / channel.name
    with name_place(f"channel {channel.name}"):
        uri = parse(channel.uri)
        store = StorageClient(uri, user_environ, timeout_s=TIMEOUT_S)
        if not content:
            _make_names(download.list_names(store, uri), into)
            return msgspec.structs.replace(channel, folder=into)
        sizes: list[int] = []
        log.info(f"channel {channel.name}: fetching {channel.uri}")
        path = download.fetch(store, uri, into, sizes.append)
        log.info(f"channel {channel.name}: {sum(sizes):,} bytes")
        return msgspec.structs.replace(channel, folder=path)


def _make_names(names: list[str], into: Path) -> None:
    for name in names:
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
