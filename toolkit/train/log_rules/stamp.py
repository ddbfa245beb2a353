"""Pure: reads from the start of a log line when it was written, and by which rank."""

import re
from datetime import datetime, timedelta, timezone

from toolkit.records import Record

# ISO 8601 with seconds: "T" or a space between date and time, an optional fraction after "." or "," (Python's logging),
# an optional zone. Or ten digits: seconds since the epoch. Either may be in brackets.
_ISO = re.compile(
    rb"\[?(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    rb"\s?(?:(Z|UTC)|([+-])(\d\d):?(\d\d))?(?![\d])\]?[ \t]*"
)
_EPOCH = re.compile(rb"\[?(\d{10}(?:\.\d+)?)(?![\w.])\]?[ \t]*")
# The prefix that `train` adds to the lines of ranks: "[algo-1 rank 3] ".
_RANK = re.compile(rb"\[\S+ rank (\d+)\] ")


class Stamp(Record, frozen=True, kw_only=True):
    """The start of a line: seconds since the epoch (None: no time) and the rank (None: no rank).

    `text`: the line as the rank wrote it, without the prefix and anything before that.
    """

    time_s: float | None
    rank: int | None
    text: bytes


def read(line: bytes) -> Stamp:
    """Return the time and the rank at the start of *line*, in any order. A time without a zone is UTC."""
    time_s, end = _time(line, 0)
    ranked = _RANK.match(line, end)
    if ranked is None:
        return Stamp(time_s=time_s, rank=None, text=line)
    if time_s is None:
        time_s, _ = _time(line, ranked.end())
    return Stamp(time_s=time_s, rank=int(ranked[1]), text=line[ranked.end() :])


def _time(line: bytes, start: int) -> tuple[float | None, int]:
    """Return the time at *start* of *line* (None if there is none), and the position after it."""
    match = _ISO.match(line, start)
    if match is not None:
        moment = _moment(match)
        return (None, start) if moment is None else (moment, match.end())
    match = _EPOCH.match(line, start)
    return (None, start) if match is None else (float(match[1]), match.end())


def _moment(match: re.Match[bytes]) -> float | None:
    year, month, day, hour, minute, second, fraction, _, sign, hours, minutes = match.groups()
    try:
        moment = datetime(
            int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=timezone.utc
        ).timestamp()
    except ValueError:  # A day or hour that does not exist, or a leap second.
        return None
    ahead = timedelta(hours=int(hours or 0), minutes=int(minutes or 0)).total_seconds()
    return moment + float(b"0." + (fraction or b"0")) - (-ahead if sign == b"-" else ahead)
