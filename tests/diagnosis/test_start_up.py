"""The two rules about a host's start."""

import pytest

from tests.diagnosis.made import evidence
from toolkit.diagnosis.evidence import Evidence
from toolkit.diagnosis.start_up import NetworkImports, RequirementsTime, network_imports, requirements_time
from toolkit.series.preparation import Preparation
from toolkit.series.start_up import HostStart, ImportedPackage, RankStart


def started(*, filesystem: str = "nfs4", imports_s: float = 40.0, requirements_s: float = 90.0) -> Evidence:
    packages = (
        ImportedPackage(name="torch", took_s=imports_s, filesystem=filesystem),
        ImportedPackage(name="numpy", took_s=1.0, filesystem="ext4"),
    )
    made = evidence({"cpu.used_percent": [1.0, 1.0]})
    made.start = HostStart(
        preparations=(Preparation(name="requirements", took_s=requirements_s),),
        ranks={3: RankStart(before_s=50.0, imports_s=imports_s + 1, group_s=0.0, packages=packages)},
    )
    return made


def test_slow_imports_from_a_network_file_system_name_the_packages() -> None:
    (finding,) = network_imports(started(), NetworkImports(), frozenset())

    assert finding.text == "Rank 3 took 40 s to import torch from a network file system (nfs4)."
    assert (finding.rank, finding.lost_s) == (3, 40.0)


@pytest.mark.parametrize("change", [{"filesystem": "ext4"}, {"filesystem": ""}, {"imports_s": 9.0}])
def test_imports_from_a_local_disk_or_quick_ones_are_no_finding(change: dict[str, float | str]) -> None:
    assert list(network_imports(started(**change), NetworkImports(), frozenset())) == []  # type: ignore[arg-type]


def test_requirements_that_took_long_are_a_finding_and_quick_ones_are_not() -> None:
    (finding,) = requirements_time(started(), RequirementsTime(), frozenset())

    assert finding.text == "The requirements took 1 min 30 s, longer than 60 s: have them in the image."
    assert finding.lost_s == 90.0
    assert list(requirements_time(started(requirements_s=59.0), RequirementsTime(), frozenset())) == []
