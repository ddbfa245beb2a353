"""The end of every host's log, that of the host of the cause first."""

from toolkit.jobs.data import HostData
from toolkit.report.model import Block, Lines, Words
from toolkit.report.sections.material import Material

BLAMED, OTHERS = 200, 40  # Lines of the host of the cause, and of each other one.
MOST_HOSTS = 16


def blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "log"."""
    job = material.job
    first = material.blamed
    hosts = sorted(job.hosts, key=lambda host: host is not first)
    made: list[Block] = []
    for number, host in enumerate(hosts[:MOST_HOSTS]):
        most = BLAMED if number == 0 else OTHERS
        lines = material.log_of(host, most)
        if lines:
            text = f"{host.name}: {'all' if len(lines) < most else 'the last'} {len(lines)} lines"
            made.append(Lines(id=f"log-{host.name}", title=text, lines=lines))
    if not made:
        return [Words(text=_missing(hosts))]
    if len(hosts) > MOST_HOSTS:
        made.append(Words(text=f"The logs of {len(hosts) - MOST_HOSTS} more hosts are in {job.folder / 'logs'}."))
    return made


def _missing(hosts: list[HostData]) -> str:
    if any(host.logs for host in hosts):
        return "The logs are empty: the job printed nothing."
    return (
        "This folder holds no log. `toolkit run` keeps each host's; in a container, TOOLKIT_LOG_FILES=on writes a file "
        "for each rank to output/data/logs."
    )
