"""Builds the section "log": the last lines of every host's log, beginning with the host of the cause."""

from toolkit.commands.jobs.data import HostData
from toolkit.commands.report.model import Block, Lines, Words
from toolkit.commands.report.sections.material import Material
from toolkit.commands.report.sections.words import count_words

BLAMED, OTHERS = 200, 40  # Lines of the host of the cause, and of each other one.
MOST_HOSTS = 16


def build_blocks(material: Material) -> list[Block]:
    """Return the blocks of the section "log"."""
    job = material.job
    first = material.blamed
    hosts = sorted(job.hosts, key=lambda host: host is not first)
    blocks: list[Block] = []
    for number, host in enumerate(hosts[:MOST_HOSTS]):
        most = BLAMED if number == 0 else OTHERS
        lines = material.log_of(host, most)
        if lines:
            count = count_words(len(lines), "line")
            text = f"{host.name}: {'all' if len(lines) < most else 'the last'} {count} of {_locate_log(material, host)}"
            blocks.append(Lines(id=f"log-{host.name}", title=text, lines=lines))
    if not blocks:
        return [Words(text=_explain_missing(hosts))]
    left = [_locate_log(material, host) for host in hosts[MOST_HOSTS:] if host.logs]
    if left:
        blocks.append(Words(text=f"{count_words(len(left), 'more log')} not shown here: {left[0]} to {left[-1]}."))
    return blocks


def _locate_log(material: Material, host: HostData) -> str:
    """Return where the log of *host* lies, from the job's folder on."""
    path = material.log_file(host)
    if path is None:
        return ""
    folder = material.job.folder
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _explain_missing(hosts: list[HostData]) -> str:
    if any(host.logs for host in hosts):
        return "The logs are empty: the job printed nothing."
    return (
        "This folder holds no log. `toolkit run` keeps each host's; in a container, TOOLKIT_LOG_FILES=on writes a file "
        "for each rank to output/data/logs."
    )
