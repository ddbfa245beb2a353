"""Reads the manifests of a job's hosts."""

from collections.abc import Callable

from toolkit.commands.jobs.data import JobData
from toolkit.errors import ContractError
from toolkit.job.explanation import group_names
from toolkit.job.manifest import RunManifest, read


def read_manifests(job: JobData, note: Callable[[str], None]) -> dict[str, RunManifest]:
    """Return the manifest of each host of *job* that has one, by its name. *note* gets a sentence for each that is
    missing or cannot be read, and for what others lack: there a difference does not show."""
    manifests = {}
    hosts_of: dict[str, list[str]] = {}
    for host in job.hosts:
        try:
            manifests[host.name] = read(host.manifest)
        except FileNotFoundError:
            note(f"{host.manifest}: it is not there: the script did not begin, or another version of `train` ran")
        except OSError as error:
            note(f"{host.manifest}: cannot be read ({error.strerror})")
        except ContractError as error:
            note(str(error))
        else:
            for text in manifests[host.name].left_out:
                hosts_of.setdefault(text, []).append(host.name)
    for text, names in hosts_of.items():
        note(f"manifest.json of {job.name} on {group_names(names)} lacks something: {text}")
    return manifests
