from pathlib import Path

from toolkit.job.machine import Machine
from toolkit.train.provenance.hardware import describe_hardware

INFORMATION = """\
Model: \t\t NVIDIA H200
IRQ:   \t\t 61
GPU UUID: \t GPU-1
Video BIOS: \t 96.00.b9.00.02
"""
VERSION = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U22-I3-AF03-09-1)
GCC version:  gcc version 12.3.0
"""


def test_gpus_driver_and_libraries_are_read_without_loading_any(tmp_path: Path) -> None:
    gpus = tmp_path / "proc/driver/nvidia/gpus/0000:1b:00.0"
    gpus.mkdir(parents=True)
    (gpus / "information").write_text(INFORMATION)
    (tmp_path / "proc/driver/nvidia/version").write_text(VERSION)
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9R14\nprocessor\t: 1\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n')
    machine = Machine(
        cpus=4, cpus_total=8, memory_bytes=1, accelerator="nvidia", accelerators=2, gpu_uuids=("GPU-1", "GPU-2")
    )

    hardware = describe_hardware(
        machine, {"nvidia-nccl-cu12": "2.26.2 0123456789abcdef"}, {"CUDA_VERSION": "12.8.0"}, tmp_path
    )

    assert hardware.gpus == ("NVIDIA H200", "NVIDIA")
    assert hardware.driver == "570.124.06"
    assert hardware.cpu == "AMD EPYC 9R14"
    assert hardware.system == "Ubuntu 22.04.5 LTS"
    assert hardware.nccl == "2.26.2 (package nvidia-nccl-cu12)"
    assert hardware.cuda == "12.8.0 (variable CUDA_VERSION)"
    assert hardware.cudnn == ""


def test_a_host_that_tells_nothing_has_empty_texts(tmp_path: Path) -> None:
    hardware = describe_hardware(Machine(cpus=1, cpus_total=1, memory_bytes=0), {}, {}, tmp_path)

    assert (hardware.cpu, hardware.system, hardware.driver, hardware.gpus) == ("", "", "", ())
