"""A container's /opt/ml in a temporary folder, and `train` run on it as a platform would."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

TRAIN = (sys.executable, "-m", "toolkit.cli.main", "train")
ROOT = Path(__file__).parents[2]
# Writes what a script was given into output/data/seen.json.
SEES = """
import json, os, sys
seen = {"argv": sys.argv[1:], "environ": dict(os.environ), "cwd": os.getcwd(), "executable": sys.executable}
with open(os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], "seen.json"), "w") as file:
    json.dump(seen, file)
"""


class Done:
    """The end of a run of `train`: `status` as a shell shows it, the two streams, and the files it left."""

    def __init__(self, base: "Base", status: int, stdout: bytes, stderr: bytes) -> None:
        self.base = base
        self.status = status
        self.stdout = stdout
        self.stderr = stderr

    @property
    def log(self) -> str:
        """Both streams, as a container's log shows them."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")

    @property
    def failure(self) -> str | None:
        """The failure file's text, None without one."""
        path = self.base.output / "failure"
        return path.read_text() if path.is_file() else None

    @property
    def succeeded(self) -> bool:
        """True if there is an empty success file."""
        path = self.base.output / "success"
        return path.is_file() and path.stat().st_size == 0

    @property
    def outcome(self) -> dict[str, Any]:
        """output/outcome.json."""
        document: dict[str, Any] = json.loads((self.base.output / "outcome.json").read_bytes())
        return document

    @property
    def argv(self) -> list[str]:
        """The arguments that a SEES script was given."""
        return list(self._seen["argv"])

    @property
    def environ(self) -> dict[str, str]:
        """The environment that a SEES script was given."""
        return dict(self._seen["environ"])

    @property
    def cwd(self) -> str:
        return str(self._seen["cwd"])

    @property
    def _seen(self) -> dict[str, Any]:
        path = self.base.output / "data/seen.json"
        assert path.exists(), f"the script did not run to its end; train ended with {self.status}:\n{self.log}"
        document: dict[str, Any] = json.loads(path.read_bytes())
        return document

    def __repr__(self) -> str:
        return (
            f"<train ended with {self.status}; stdout {self.stdout!r}; stderr {self.stderr.decode(errors='replace')}>"
        )


class Base:
    """The folder that SAGEMAKER_BASE_DIR names, with the documents of a one-host job; change and run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "opt/ml"
        self.config = self.root / "input/config"
        self.code = self.root / "code"
        self.output = self.root / "output"
        self.config.mkdir(parents=True)
        self.hyperparameters()
        self.inputs()
        self.resources()

    def document(self, name: str, content: object) -> None:
        """Write a document; bytes as they are, anything else as JSON."""
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        (self.config / name).write_bytes(text)

    def hyperparameters(self, content: Mapping[str, object] | None = None, *, program: str | None = "train.py") -> None:
        """Write hyperparameters.json: *content* as given, with sagemaker_program as the SDK encodes it."""
        fields = {} if program is None else {"sagemaker_program": json.dumps(program)}
        self.document("hyperparameters.json", {**fields, **(content or {})})

    def inputs(self, *channels: str, mode: str = "File") -> None:
        """Write inputdataconfig.json with *channels* and make their folders (none for Pipe)."""
        shape = {"TrainingInputMode": mode, "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
        self.document("inputdataconfig.json", dict.fromkeys(channels, shape))
        for channel in channels:
            if mode != "Pipe":
                (self.root / "input/data" / channel).mkdir(parents=True, exist_ok=True)

    def resources(self, hosts: Sequence[str] = ("algo-1",), current: str | None = None, **more: object) -> None:
        """Write resourceconfig.json as the platform does today; *more* replaces keys of it."""
        self.document(
            "resourceconfig.json",
            {
                "current_host": current or hosts[0],
                "current_instance_type": "ml.c5.xlarge",
                "current_group_name": "homogeneousCluster",
                "hosts": list(hosts),
                "instance_groups": [
                    {
                        "instance_group_name": "homogeneousCluster",
                        "instance_type": "ml.c5.xlarge",
                        "hosts": list(hosts),
                    }
                ],
                "network_interface_name": "eth0",
                "topology": None,
                **more,
            },
        )

    def program(self, text: str, name: str = "train.py") -> Path:
        """Write *text* as a file of the code folder."""
        path = self.code / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def executable(self, name: str, text: str) -> Path:
        """Write *text* as a command in a folder that `train` has in front of its PATH."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def environ(self, **more: str) -> dict[str, str]:
        """Return the environment that `train` is started with: little, so that nothing of the tester's leaks in."""
        path = os.pathsep.join([str(self.folder / "bin"), str(Path(sys.executable).parent), "/usr/bin", "/bin"])
        return {
            "PATH": path,
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "SAGEMAKER_BASE_DIR": str(self.root),
            "TRAINING_JOB_NAME": "walk",
            "AWS_REGION": "eu-central-1",
            **more,
        }

    def train(
        self,
        extra: Mapping[str, str] | None = None,
        /,
        *,
        command: Sequence[str] = TRAIN,
        environ: Mapping[str, str] | None = None,
        deadline_s: float = 60.0,
        before: Callable[[], None] | None = None,
        **more: str,
    ) -> Done:
        """Run `train` to its end; *extra* and *more* are variables, *before* runs in the child before exec."""
        done = subprocess.run(
            command,
            env={**self.environ(**more), **(extra or {})} if environ is None else dict(environ),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline_s,
            preexec_fn=before,
        )
        status = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return Done(self, status, done.stdout, done.stderr)
