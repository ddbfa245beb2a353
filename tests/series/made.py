"""Made-up recordings for tests and benches: the files that a monitor leaves, of any length, within seconds."""

from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from toolkit.series import blocks, levels
from toolkit.series.column import Header, SampleColumn

START_S = 1_760_000_040.0  # A full minute.


def machine(cores: int, gpus: int) -> tuple[SampleColumn, ...]:
    """Return the columns of a machine with *cores* and *gpus*."""
    percent = [f"cpu/core{core}/{metric}_percent" for core in range(cores) for metric in ("used", "iowait")]
    percent += [f"cpu/all/{metric}_percent" for metric in ("used", "iowait", "throttled")]
    percent += [f"gpu/{gpu}/{metric}_percent" for gpu in range(gpus) for metric in ("used", "sm_active", "memory_used")]
    columns = [SampleColumn(name=name, unit="%") for name in percent]
    for gpu in range(gpus):
        columns += [
            SampleColumn(name=f"gpu/{gpu}/power_watts", unit="W"),
            SampleColumn(name=f"gpu/{gpu}/memory_used_bytes", unit="bytes"),
        ]
    sizes = ("memory/container/used_bytes", "memory/container/limit_bytes", "disk/output/free_bytes")
    rates = ("disk/all/read_bytes_per_s", "disk/all/write_bytes_per_s", "network/all/received_bytes_per_s")
    return (
        *columns,
        *(SampleColumn(name=name, unit="bytes") for name in sizes),
        *(SampleColumn(name=name, unit="bytes/s") for name in rates),
    )


def record(folder: Path, *, hours: float, cores: int, gpus: int, seconds_kept_s: int = 3600, seed: int = 0) -> None:
    """Write the samples of *hours*, two a second, as the writer leaves them: 60 s and 10 s levels of the whole time,
    1 s of the last *seconds_kept_s*, raw values of the last two minutes."""
    columns = machine(cores, gpus)
    minutes = int(hours * 60)
    random = np.random.default_rng(seed)
    scale = np.array([100.0 if column.unit == "%" else 1e9 for column in columns])
    folder.mkdir(parents=True)
    files = {
        level: blocks.Appender(
            folder / f"0001-{level:02d}-{level:06d}.samples",
            msgspec.json.encode(Header(level=level, columns=columns)),
        )
        for level in (0, *levels.LEVELS)
    }
    busy = random.random(len(columns))
    for minute in range(minutes):
        start = START_S + 60 * minute
        busy = np.clip(busy + random.normal(0, 0.02, len(columns)), 0, 1)
        raw = np.round(np.clip(busy + random.normal(0, 0.05, (120, len(columns))), 0, 1), 2) * scale
        for level in levels.LEVELS:
            if level > 1 or minute >= minutes - seconds_kept_s / 60:
                payload = levels.packed(_buckets(start, level, raw))
                files[level].append(blocks.LEVEL, 60 // level, payload, group=levels.GROUP)
        if minute >= minutes - 2:
            for number, row in enumerate(raw):
                time = np.float64(start + number / 2).tobytes()
                files[0].append(blocks.RAW, 1, time + row.astype("<f4").tobytes())
    for file in files.values():
        file.close()


def _buckets(
    start_s: float, level: int, raw: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
) -> Sequence[levels.Bucket]:
    parts = raw.reshape(60 // level, 2 * level, -1)
    return [
        levels.Bucket(
            start_s + number * level,
            2 * level,
            array("f", part.min(axis=0).astype("f4").tobytes()),
            array("f", part.max(axis=0).astype("f4").tobytes()),
            array("d", part.sum(axis=0).tobytes()),
            None,
        )
        for number, part in enumerate(parts)
    ]
