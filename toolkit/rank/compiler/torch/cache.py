"""Chooses the folder for compiled code, and checks that there is a compiler."""

import hashlib
import os
import re
import shutil
import sys

from .... import __version__

TYPE_CHECKING = False  # As typing's, without importing it.
if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from types import ModuleType


def missing_compiler(device: str, environ: "MutableMapping[str, str]") -> str:
    """Return what is missing to compile for *device* ("cpu", "cuda"), "" if nothing is.

    Inductor calls $CXX or g++ for CPUs; Triton calls $CC, gcc or clang for GPUs (torch 2.13).
    """
    names = (
        [environ.get("CXX") or "g++"] if device == "cpu" else [environ["CC"]] if environ.get("CC") else ["gcc", "clang"]
    )
    if any(shutil.which(name.split()[0], path=environ.get("PATH")) for name in names):
        return ""
    return "there is no C++ compiler (%s) in the image" % " or ".join(names)


def use_folder(root: str, torch: "ModuleType", device: str, environ: "MutableMapping[str, str]") -> "tuple[str, str]":
    """Have torch keep compiled code in a folder below *root*; return the folder, and a problem, "" for none.

    The folder is named after all that the code depends on and that torch's own keys may miss, so that a job never uses
    another's. Ranks and hosts may share a folder: torch writes whole files
    under names of their contents. If nothing can be written there, torch's own folder below /tmp is used.
    """
    folder = os.path.join(root, folder_name(torch, device))
    probe = os.path.join(folder, ".writable-%s-%d" % (os.uname().nodename, os.getpid()))
    try:
        os.makedirs(folder, exist_ok=True)
        with open(probe, "w"):
            pass
        os.unlink(probe)
    except OSError as error:
        return "", "compiled code is not kept for other jobs: %s: %s" % (folder, error.strerror)
    environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    environ.setdefault("TRITON_CACHE_DIR", os.path.join(folder, "triton"))
    return folder, ""


def folder_name(torch: "ModuleType", device: str) -> str:
    """Return the name of the folder for this torch, Python, processor or GPU, and toolkit."""
    if device == "cuda":
        kind = "%s-cuda%s" % (torch.cuda.get_device_name(), torch.version.cuda)
    else:
        kind = "%s-%s" % (os.uname().machine, hashlib.sha256(_instructions()).hexdigest()[:8])
    python = "%s%d.%d" % (sys.implementation.name, sys.version_info[0], sys.version_info[1])
    return re.sub(r"[^\w.+-]+", "_", "torch%s-%s-%s-toolkit%s" % (torch.__version__, python, kind, __version__))


def _instructions() -> bytes:
    """Return what the processor can do, as the kernel lists it."""
    try:
        with open("/proc/cpuinfo", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return b""
    return next((line for line in lines if line.startswith((b"flags", b"Features"))), b"")
