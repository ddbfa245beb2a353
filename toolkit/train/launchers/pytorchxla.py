"""Distribution pytorchxla: ranks of torch_xla, by the device that XLA computes on (PJRT_DEVICE, else the machine's).

- CPU, Neuron: one process for each rank under torchrun, as pytorchddp. On a CPU torch_xla knows no other process, so
  toolkit/rank/xla replaces its collectives in the ranks.
- TPU: one process on each host; torch_xla itself starts the chips' processes and finds the other hosts.
- NVIDIA: an error before anything starts, because torch_xla has had no CUDA since 2.9.

Each rank runs toolkit/rank/xla/rank.py, which calls the script's `_mp_fn(index)` if it has one. sagemaker-training
starts `torch_xla.distributed.xla_spawn`, which only AWS's images of PyTorch 1.11 to 1.13 have, and sets XRT's variables
(XRT_*, GPU_NUM_DEVICES, the mesh service). We set none of them: torch_xla 2 has no XRT, and nothing reads them.
"""

from pathlib import Path

import msgspec

import toolkit
from toolkit.errors import UserError
from toolkit.job.command import is_module
from toolkit.job.job import Job, Script
from toolkit.job.plan import Phase, Plan, ProcessSpec
from toolkit.train.launchers import compat, fabric, torchrun
from toolkit.train.launchers.environment import environment, name_needs, stop_policy, tokens
from toolkit.train.launchers.table import world_size

RANK = Path(toolkit.__file__).parent / "rank" / "xla" / "rank.py"
SHIM = "torch_xla"  # The compat folder (TOOLKIT_COMPAT) that replaces a missing torch_xla.
WHERE = "distribution pytorchxla"


def plan(job: Job, run_folder: Path) -> Plan:
    """Return the plan for ranks of torch_xla.

    Raises:
        UserError: torch_xla no longer supports the device, or the script cannot run as one of its ranks.
    """
    assert job.script is not None
    shim = SHIM in compat.names(job)
    device = _device(job)
    if not shim:
        _check(job, job.script, device)
    changed = _on_tpu(job) if device == "TPU" and not shim else _under_torchrun(job, run_folder)
    environ = {name: value for name, value in changed.phase.main.environ.items() if name != "TOOLKIT_XLA"}
    if not shim:
        environ |= {"PJRT_DEVICE": device, "TOOLKIT_XLA": "on"}
    modules = ("torch",) if shim else ("torch", "torch_xla")
    return msgspec.structs.replace(changed.with_main(environ=environ), launcher="pytorchxla", modules=modules)


def _device(job: Job) -> str:
    """Return the device as torch_xla names it; the user's PJRT_DEVICE wins."""
    by_machine = {"none": "CPU", "nvidia": "CUDA", "neuron": "NEURON"}
    return job.environ.get("PJRT_DEVICE") or by_machine[job.machine.accelerator]


def _check(job: Job, script: Script, device: str) -> None:
    if device.split("_")[0] in ("CUDA", "GPU", "ROCM"):
        raise UserError(
            f"expected a TPU, Neuron cores or a CPU (PJRT_DEVICE), found {_gpus(job)}: torch_xla has not supported "
            "GPUs since 2.9",
            where=WHERE,
            hint="Use distribution torch_distributed (torchrun), with torch.compile where the script allows; "
            "TOOLKIT_COMPAT=torch_xla runs a script for torch_xla so, unchanged; PJRT_DEVICE=CPU computes on the CPU.",
        )
    if script.kind == "command" and job.settings.rank_hook == "off":
        raise UserError(
            f"expected TOOLKIT_RANK_HOOK=on for {script.entry}, found off: a process that a command starts "
            "learns of the other ranks only through the hook",
            where=WHERE,
            hint="Set it on, or name a Python script.",
        )
    if device == "TPU" and job.processes_per_host != 1:
        raise UserError(
            f"expected one process on each host of TPUs, found {job.processes_per_host}: torch_xla starts its own for "
            "the chips",
            where=WHERE,
            hint="Leave the number of processes out.",
        )


def _gpus(job: Job) -> str:
    count = job.machine.gpus
    return f"{count} NVIDIA GPU{'s' if count != 1 else ''}" if count else f"PJRT_DEVICE={job.environ['PJRT_DEVICE']}"


def _under_torchrun(job: Job, run_folder: Path) -> Plan:
    changed = torchrun.plan(job, run_folder)
    assert job.script is not None
    if job.script.kind == "command":
        return changed
    arguments = tokens(job)
    replaced = (*torchrun.script_arguments(job.script), *arguments)
    argv = (*changed.phase.main.argv[: -len(replaced)], "--", str(RANK), *_entry(job.script), *arguments)
    return changed.with_main(argv=argv)


def _on_tpu(job: Job) -> Plan:
    assert job.script is not None
    arguments = tokens(job)
    command = (*job.script.through, f"./{job.script.entry}")
    python = (job.interpreter, str(RANK), *_entry(job.script))
    main = ProcessSpec(
        name="script",
        argv=(*(command if job.script.kind == "command" else python), *arguments),
        environ=environment(job, arguments),
        cwd=job.script.folder,
        stop=stop_policy(job),
        rank=job.cluster.rank,
    )
    return Plan(
        launcher="pytorchxla",
        role="alone" if job.cluster.size == 1 else "leader" if job.cluster.is_leader else "follower",
        phase=Phase(name="train", main=main, needs=name_needs(job), together=True),
        world_size=world_size(job),
        notes=fabric.notes(job),
    )


def _entry(script: Script) -> tuple[str, ...]:
    return ("-m", script.entry) if is_module(script) else (script.entry,)
