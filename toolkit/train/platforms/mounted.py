"""Finds the channels that are mounted below the job's input folder."""

from pathlib import Path

import msgspec

from toolkit.errors import choose_document_error
from toolkit.folders import entries, exists, is_dir, may_exist
from toolkit.job.channel import Channel, fetched_mark
from toolkit.log import Log


def mounted_channels(channels: tuple[Channel, ...], data: Path, log: Log) -> tuple[Channel, ...]:
    """Return *channels* and a channel for each other folder in *data*; a folder there wins over another path of its
    name. Warn of a channel without a folder.

    Raises:
        ContractError: *data* cannot be read.
    """
    by_name = {channel.name: _placed(channel, data / channel.name) for channel in channels}
    for name in _mounted(data):
        by_name.setdefault(name, Channel(name=name, folder=data / name))
    for channel in by_name.values():
        if not channel.uri and channel.mode != "Pipe" and not may_exist(channel.folder):
            log.warning(f"channel {channel.name}: expected a folder or file, found nothing at {channel.folder}")
    return tuple(by_name.values())


def _placed(channel: Channel, folder: Path) -> Channel:
    """Return *channel* in *folder* if that is mounted, or if `train` is to fetch its files there."""
    if channel.uri and (not is_dir(folder) or exists(fetched_mark(folder))):
        return msgspec.structs.replace(channel, folder=folder)
    return msgspec.structs.replace(channel, folder=folder, uri="") if is_dir(folder) else channel


def _mounted(data: Path) -> list[str]:
    try:
        return [entry.name for entry in entries(data) if not entry.name.startswith(".") and is_dir(entry.path)]
    except OSError as error:
        reason = f"one that cannot be read ({error.strerror})"
        hint = f"Each folder in {data} is a channel. Correct its owner and permissions."
        source = str(error.filename or data)
        raise choose_document_error(error)(f"expected a folder, found {reason}", where=source, hint=hint) from None
