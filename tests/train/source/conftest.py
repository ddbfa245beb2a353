from collections.abc import Callable
from pathlib import Path

import pytest

from tests.train.launchers.jobs import folders as made
from toolkit.job.cluster import Cluster
from toolkit.job.job import Folders, Job, Script
from toolkit.job.machine import Machine
from toolkit.job.spec import JobSpec
from toolkit.job.strategy import Strategy
from toolkit.settings import Settings


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return made(tmp_path / "ml", tmp_path / "scratch")


@pytest.fixture
def make_job(folders: Folders) -> Callable[..., Job]:
    def make(
        source: str | None = None,
        script: Script | None = None,
        interpreter: str = "/usr/bin/python3",
        requirements: bool = True,
    ) -> Job:
        return Job(
            spec=JobSpec(
                name="job", source=source, source_from="sagemaker_submit_directory", requirements=requirements
            ),
            settings=Settings(),
            cluster=Cluster(current="algo-1", hosts=("algo-1",), taking_part=("algo-1",)),
            machine=Machine(cpus=1, cpus_total=1, memory_bytes=1 << 30),
            folders=folders,
            strategy=Strategy(),
            environ={"PATH": "/usr/bin"},
            interpreter=interpreter,
            script=script,
        )

    return make
