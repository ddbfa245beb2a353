"""The environment variables every script is given (SM_*), and what of an environment fits a process.

Names and bytes are those of sagemaker-training 5.1.4 (tests/data/sagemaker_training_5_1_4 holds what it was seen to
write). Differences, all of them additions or mends:
- SM_HP_LEARNING-RATE is no legal shell name: SM_HP_LEARNING_RATE is there as well; likewise for channels;
- PYTHONPATH is the code folder and the user's own PYTHONPATH, not the whole sys.path of `train`, which let scripts
  import what only the launcher was meant to have;
- SAGEMAKER_JOB_NAME and SM_TRAINING_ENV's job_name hold the job's name whichever of the two sources it came from;
- SM_CHECKPOINT_DIR is the checkpoint folder, for scripts that should not hold /opt/ml/checkpoints, unless the job's
  environment has it: sagemaker-training does not know the name, so users may have it for their own;
- a hyperparameter whose name holds "=" or NUL, illegal in an environment, has the alias only.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from toolkit.job.arguments import ONE_STRING_BYTES
from toolkit.job.job import Job

# What SM_TRAINING_ENV shows that is also a variable of its own, under the same name.
SAME_NAME = (
    "current_host",
    "current_instance_group",
    "current_instance_group_hosts",
    "current_instance_type",
    "distribution_instance_groups",
    "framework_module",
    "hosts",
    "input_config_dir",
    "input_data_config",
    "input_dir",
    "instance_groups",
    "instance_groups_dict",
    "is_hetero",
    "log_level",
    "model_dir",
    "module_dir",
    "module_name",
    "network_interface_name",
    "num_cpus",
    "num_gpus",
    "num_neurons",
    "output_data_dir",
    "output_dir",
    "output_intermediate_dir",
    "resource_config",
    "user_entry_point",
)
# Kept free for what the caller adds after fitting: SM_TRAINING_ENV_FILE=<a path of up to 4,096 bytes>.
SPARE_BYTES = 4_608


def variables(job: Job, arguments: tuple[str, ...]) -> dict[str, str]:
    """Return every variable that *job*'s script is given on top of its environment; *arguments* are its own.

    Text is given as it is, None as "", everything else as compact JSON with sorted keys, ASCII only.
    """
    values = properties(job)
    plain = {name: values[name] for name in SAME_NAME} | {
        "hps": values["hyperparameters"],
        "framework_params": values["additional_framework_parameters"],
        "channels": sorted(values["channel_input_dirs"]),
        "user_args": arguments,
        "training_env": values,
    }
    if values["topology"]:
        plain["topology"] = values["topology"]
    by_name = {f"channel_{name}": path for name, path in values["channel_input_dirs"].items()}
    by_name.update((f"hp_{name}", value) for name, value in job.spec.hyperparameters.items())
    environ = {f"SM_{name.upper()}": text(value) for name, value in (plain | by_name).items()}
    return _legal(environ) | {
        "CURRENT_HOST": job.cluster.current,
        "SM_CHECKPOINT_DIR": job.environ.get("SM_CHECKPOINT_DIR") or str(job.folders.checkpoints),
        **job.spec.platform_values.variables,
        "PYTHONPATH": _python_path(job),
    }


def fitting(
    environ: Mapping[str, str], argv: tuple[str, ...], *, total_bytes: int, one_bytes: int = ONE_STRING_BYTES
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (kept, spilled): what of *environ* a process started with *argv* can be given, and the rest.

    *total_bytes* is what execve takes in all (sysconf SC_ARG_MAX), counted as Linux does: strings with their NUL, and
    a pointer of 8 bytes each. A string of *one_bytes* or more never fits. Of SM_* the largest go first and SM_HPS last
    (every other one can be made from it and the documents); the user's own are spilled only after them all. Room is
    left for one more variable, SM_TRAINING_ENV_FILE, with which the caller names the file that holds the spilled ones.
    """
    sizes = {name: _bytes(name) + _bytes(value) + 2 for name, value in environ.items()}
    gone = {name for name, size in sizes.items() if size > one_bytes}
    needed = sum(sizes[name] + 8 for name in environ if name not in gone)
    # execve also copies the program's path, at most argv[0] found in a folder of PATH, and closes both lists with NULL.
    needed += sum(_bytes(token) + 9 for token in argv) + 4_096 + 16
    if needed + (SPARE_BYTES if gone else 0) > total_bytes:
        for name in sorted(environ.keys() - gone, key=lambda name: (*_dearness(name), -sizes[name], name)):
            gone.add(name)
            needed -= sizes[name] + 8
            if needed + SPARE_BYTES <= total_bytes:
                break
    fitting_environ = {name: value for name, value in environ.items() if name not in gone}
    return fitting_environ, {name: environ[name] for name in environ if name in gone}


def _dearness(name: str) -> tuple[bool, bool]:
    return not name.startswith("SM_"), name == "SM_HPS"


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def properties(job: Job) -> dict[str, Any]:
    """Return the properties of the job that SM_TRAINING_ENV holds, under its names."""
    cluster, folders, machine = job.cluster, job.folders, job.machine
    resource_config = job.spec.platform_values.resource_config
    groups = _groups(job)
    hosts = [str(host) for host in cluster.hosts]
    # As the original has it, distribution or none: the named groups' hosts; without instance groups every host.
    distribution_groups = (group for group in cluster.groups if group.name in cluster.distribution_groups)
    distribution_hosts = [host for group in distribution_groups for host in group.hosts] if groups else hosts
    mp_parameters = job.environ.get("SM_HP_MP_PARAMETERS")
    return {
        "additional_framework_parameters": job.spec.platform_values.parameters,
        "channel_input_dirs": {channel.name: str(channel.folder) for channel in job.spec.channels},
        "current_host": cluster.current,
        "current_instance_group": cluster.current_group,
        "current_instance_group_hosts": groups.get(cluster.current_group, {}).get("hosts", []),
        "current_instance_type": cluster.instance_type,
        "distribution_hosts": distribution_hosts,
        "distribution_instance_groups": cluster.distribution_groups,
        "framework_module": job.spec.platform_values.framework_module,
        "hosts": hosts,
        "hyperparameters": job.spec.hyperparameters,
        "input_config_dir": str(folders.config),
        "input_data_config": job.spec.platform_values.input_data_config,
        "input_dir": str(folders.data.parent),
        "instance_groups": [group.name for group in cluster.groups],
        "instance_groups_dict": groups,
        "is_hetero": len(cluster.groups) > 1,
        "is_master": cluster.current == (distribution_hosts or hosts)[0],
        # Asked of the environment before SM_HP_* are in it, so null unless the user set the variable: as the original.
        "is_modelparallel_enabled": mp_parameters and mp_parameters != "{}",
        "is_smddpmprun_installed": "smddpmprun" in machine.programs,
        "is_smddprun_installed": "smddprun" in machine.programs,
        "job_name": job.spec.name or None,
        "log_level": job.spec.log_level,
        "master_hostname": (distribution_hosts or hosts)[0],
        "model_dir": str(folders.model),
        "module_dir": job.spec.platform_values.module_dir or str(folders.code),
        # Without an entry point (a plug-in may have none) the original writes its None as text.
        "module_name": str(job.spec.entry).removesuffix(".py"),
        "network_interface_name": cluster.interface,
        "num_cpus": machine.cpus_total,
        "num_gpus": machine.gpus,
        "num_neurons": machine.neurons,
        "output_data_dir": str(folders.output_data),
        "output_dir": str(folders.output),
        "output_intermediate_dir": str(folders.intermediate),
        "resource_config": resource_config,
        "topology": resource_config.get("topology", []),
        "user_entry_point": job.spec.entry,
    }


def _groups(job: Job) -> dict[str, Any]:
    """Return the instance groups by name, as the document has them (other keys included) where there is one."""
    raw = job.spec.platform_values.resource_config.get("instance_groups")
    if raw is not None:
        return {group["instance_group_name"]: group for group in raw}
    return {
        group.name: {"instance_group_name": group.name, "instance_type": group.instance_type, "hosts": group.hosts}
        for group in job.cluster.groups
    }


def text(value: Any) -> str:
    """Return *value* as a variable holds it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))


def _legal(environ: dict[str, str]) -> dict[str, str]:
    """Return *environ* with legal aliases added (never over another name) and impossible names taken away."""
    aliases: dict[str, str] = {}
    for alias, value in _aliases(environ):
        aliases.setdefault(alias, value)
    return aliases | {name: value for name, value in environ.items() if "=" not in name and "\0" not in name}


def _aliases(environ: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name in sorted(environ):
        if name.startswith(("SM_HP_", "SM_CHANNEL_")):
            yield _alias(name), environ[name]


def _alias(name: str) -> str:
    return re.sub("[^A-Z0-9_]", "_", name)


def shared_names(kind: Literal["channel", "hp"], names: Iterable[str]) -> list[str]:
    """Return a sentence for each variable of a shell's legal name that several of *names*, in their order, share."""
    owners = {f"SM_{kind}_{name}".upper(): name for name in names}  # As in `variables`: the last one wins.
    winners = _legal(owners)
    sharing: dict[str, list[str]] = {}
    for name in names:
        sharing.setdefault(_alias(f"SM_{kind}_{name}".upper()), []).append(name)
    return [
        f"{' and '.join(map(repr, owner_names))} share the variable {alias}, which holds that of {winners[alias]!r}"
        for alias, owner_names in sharing.items()
        if len(owner_names) > 1
    ]


def _python_path(job: Job) -> str:
    entries = [entry for entry in job.environ.get("PYTHONPATH", "").split(":") if entry]
    return ":".join((str(job.folders.code), *entries))
