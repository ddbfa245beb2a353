"""Pure: tells whose lines a framework plug-in's process writes. Its ranks run under a supervisor of their own, which
puts each rank's prefix before its lines (train/supervise/console.py)."""

from collections.abc import Iterator

from toolkit.patterns import lazy

_PREFIX = lazy(
    rb"\[(?:(?P<host>\S+) )?rank (?P<rank>\d{1,9})\] "
    rb"|\[1,mpirank:(?P<mpi_rank>\d{1,9})(?:,(?P<mpi_host>[^\]\s]*))?\]<std(?:out|err)>:"
)


def by_rank(block: bytes, rank: int, host: str) -> Iterator[tuple[bytes, int, str]]:
    """Yield *block*, whole lines of process *rank* on *host*, in pieces (lines, rank, host); prefixes are left out."""
    if b"rank" not in block:
        yield block, rank, host
        return
    whose, lines = (rank, host), list[bytes]()
    for line in block.removesuffix(b"\n").split(b"\n"):
        prefix = _PREFIX.match(line)
        now = (rank, host)
        if prefix is not None:
            its_host = prefix["host"] or prefix["mpi_host"] or b""
            now = int(prefix["rank"] or prefix["mpi_rank"]), its_host.decode("utf-8", "replace") or host
            line = line[prefix.end() :]
        if now != whose and lines:
            yield b"\n".join(lines) + b"\n", *whose
            lines = []
        whose = now
        lines.append(line)
    if lines:
        yield b"\n".join(lines) + b"\n", *whose
