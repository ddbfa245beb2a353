"""The word that tells which ranks share a machine, and with it memory."""

from collections.abc import Mapping
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
NETWORK = Path("/proc/self/ns/net")
# What tells hosts apart that are played on one machine: the platform's name for them, torchrun's number of the node.
PLAYED = ("SM_CURRENT_HOST", "GROUP_RANK")


def host_word(environ: Mapping[str, str]) -> str:
    """Return a word that two ranks share if, and only if, they may share memory; "" where the machine does not say.

    The machine since its boot, its network namespace (the ranks meet over unix sockets of that namespace), and the
    job's own name for the host: two hosts played on one machine stay two.
    """
    try:
        words = [BOOT.read_text(encoding="ascii").strip(), str(NETWORK.readlink())]
    except (OSError, ValueError):
        return ""
    return "/".join([*words, *(environ.get(name, "") for name in PLAYED)])
