"""Measure a large checkpoint through storage: memory, and what a killed transfer sends again.

    scripts/bench storage [--mib 2048] [--json]

A file of random bytes is uploaded to moto's S3 server on loopback (scripts/beds/storage), as at a job's end, by a
process that is killed (SIGKILL) halfway and started again; then it is restored in the same way, and compared. Memory is
the peak of resident memory (VmHWM) above that of the same process with one small object. moto is slow, and so it is.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import ROOT, bed, parser, peak_mib, print_machine, print_table

from tests.storage import servers  # The server that the tests use.
from toolkit.storage.config import TransferReply, TransferTask
from toolkit.storage.store import PIECE_BYTES

LIMIT_MIB = 64


class Run:
    """One run of the transferring process: pieces that it reported, peak memory, seconds."""

    def __init__(self, transfer: TransferTask, environ: dict[str, str], *, kill_after: int | None = None) -> None:
        import msgspec

        config = transfer.state / "transfer.json"
        config.write_bytes(msgspec.json.encode(transfer, enc_hook=os.fspath))
        transfer.answer.unlink(missing_ok=True)
        began_s = time.monotonic()
        self.pieces, self.peak_mib = 0, 0.0
        argv = (sys.executable, "-m", "toolkit.storage", str(config))
        with subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, **environ}, cwd=ROOT) as process:
            assert process.stdout is not None
            while came := os.read(process.stdout.fileno(), 1):
                self.pieces += len(came)
                self.peak_mib = max(self.peak_mib, peak_mib(process.pid))
                if self.pieces == kill_after:
                    process.kill()
        self.seconds = time.monotonic() - began_s
        if kill_after is None:
            answer = msgspec.json.decode(
                transfer.answer.read_bytes(), type=TransferReply, dec_hook=lambda kind, value: kind(value)
            )
            if answer.message:
                raise SystemExit(f"bench storage: {answer.place}: {answer.message}")


def are_equal(one: Path, other: Path) -> bool:
    return subprocess.run(["cmp", "--silent", one, other]).returncode == 0


def base_mib(environ: dict[str, str], uri: str) -> float:
    """Return the peak of a process that has written and read one small object."""
    program = (
        "import os, re, sys; from toolkit.storage import process; from toolkit.storage.store import StorageClient;"
        "from toolkit.storage.uri import parse; store = StorageClient(parse(sys.argv[1]), os.environ, timeout_s=10);"
        "store.write('small', b'x'); store.read(store.find('small')); store.delete(['small']);"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    argv = (sys.executable, "-c", program, uri)
    done = subprocess.run(argv, env={**os.environ, **environ}, cwd=ROOT, check=True, capture_output=True)
    return int(done.stdout) / 1024


def measure(size_bytes: int, folder: Path) -> dict[str, object]:
    source, again, state = folder / "source", folder / "again", folder / "state"
    for path in (source, again, state):
        path.mkdir()
    with (source / "model.pt").open("wb") as file:
        for at in range(0, size_bytes, 1 << 20):
            file.write(os.urandom(min(1 << 20, size_bytes - at)))
    pieces = -(-size_bytes // PIECE_BYTES)
    with servers.moto(folder) as s3:
        uri = s3.bucket("bench-storage")
        base = base_mib(s3.environ, uri)
        common = {"answer": folder / "answer.json", "state": state, "timeout_s": 60.0, "checkpoint_uri": f"{uri}/run"}
        upload = TransferTask(task="finish", checkpoints=source, **common)
        restore = TransferTask(task="restore", checkpoints=again, **common)
        results: dict[str, object] = {"mib": size_bytes >> 20, "parts": pieces}
        for name, transfer in (("upload", upload), ("restore", restore)):
            first = Run(transfer, s3.environ, kill_after=max(pieces // 2, 1))
            if name == "upload":
                known = sum("/parts/" in key for key in keys(s3, uri))
                listed = any("manifest" in key for key in keys(s3, uri))
                results |= {"uploaded when killed": known, "listed when killed": listed}
            else:
                results["visible when killed"] = (again / "model.pt").exists()
            second = Run(transfer, s3.environ)
            results |= {
                f"{name}: s to the kill": round(first.seconds, 1),
                f"{name}: s to go on": round(second.seconds, 1),
                f"{name}: growth MiB": round(max(first.peak_mib, second.peak_mib) - base, 1),
            }
        results["equal"] = are_equal(source / "model.pt", again / "model.pt")
        log = (folder / "moto.log").read_text(errors="replace")
        results["PUT of parts"] = log.count("PUT /bench-storage/run/hosts/0/parts/")
        results["GET of parts"] = log.count("GET /bench-storage/run/hosts/0/parts/")
    return results


def keys(s3: servers.S3, uri: str) -> list[str]:
    os.environ.update(s3.environ)
    return s3.keys(uri)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--mib", type=int, default=2048)
    options.add_argument("--json", action="store_true")
    words = options.parse_args()
    bed("storage")
    with tempfile.TemporaryDirectory(prefix="bench-storage-") as folder:
        results = measure(words.mib << 20, Path(folder))
    if words.json:
        print(json.dumps(results))
    else:
        print_machine()
        print_table(("", ""), results.items())
    growth = max(float(str(results[f"{name}: growth MiB"])) for name in ("upload", "restore"))
    return 0 if results["equal"] and growth < LIMIT_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
