"""Memory, limits, pressure, disks and network, from files as the kernel writes them, and from this machine's own."""

import os
from pathlib import Path

import pytest

from toolkit.monitor.source import SampleSource
from toolkit.monitor.sources.memory import MemorySource
from toolkit.monitor.sources.pressure import Pressure
from toolkit.monitor.sources.quota import Quota
from toolkit.monitor.sources.traffic import Traffic

MEMINFO = b"MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\n"
V2 = {
    "proc/self/cgroup": b"0::/\n",
    "proc/meminfo": MEMINFO,
    "sys/fs/cgroup/memory.current": b"500000\n",
    "sys/fs/cgroup/memory.max": b"800000\n",
    "sys/fs/cgroup/memory.stat": b"anon 400000\nfile 100000\ninactive_file 60000\nactive_file 40000\nshmem 0\n",
    "sys/fs/cgroup/memory.events": b"low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n",
    "sys/fs/cgroup/cpu.max": b"150000 100000\n",
    "sys/fs/cgroup/cpu.stat": b"usage_usec 1000000\nnr_periods 100\nnr_throttled 10\nthrottled_usec 500\n",
}
V1 = {
    "proc/self/cgroup": b"4:memory:/docker/abc\n3:cpuacct:/docker/abc\n2:cpu:/docker/abc\n0::/\n",
    "proc/meminfo": MEMINFO,
    "sys/fs/cgroup/memory/memory.usage_in_bytes": b"500000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": b"800000\n",
    "sys/fs/cgroup/memory/memory.stat": b"inactive_file 1\ntotal_inactive_file 60000\ntotal_active_file 40000\n",
    "sys/fs/cgroup/memory/memory.oom_control": b"oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": b"150000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": b"100000\n",
    "sys/fs/cgroup/cpu/cpu.stat": b"nr_periods 100\nnr_throttled 10\nthrottled_time 500000\n",
    "sys/fs/cgroup/cpuacct/cpuacct.usage": b"1000000000\n",
}
DISKS = {
    "sys/block/nvme0n1/size": b"1",
    "sys/block/loop0/size": b"1",
    "sys/block/dm-0/size": b"1",
    "proc/diskstats": b"""   7       0 loop0 9 0 9999 0 9 0 9999 0 0 0 0 0 0 0 0 0 0
 259       0 nvme0n1 10 0 100 0 10 0 200 0 0 0 0 0 0 0 0 0 0
 259       1 nvme0n1p1 10 0 100 0 10 0 200 0 0 0 0 0 0 0 0 0 0
 253       0 dm-0 10 0 100 0 10 0 200 0 0 0 0 0 0 0 0 0 0
""",
    "proc/net/dev": b"""Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 7000 1 0 0 0 0 0 0 7000 1 0 0 0 0 0 0
  eth0:1000 1 0 0 0 0 0 0 2000 1 0 0 0 0 0 0
  eth1: 500 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0
""",
}


def write(folder: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return str(folder)


def sample_by_name(source: SampleSource, now_s: float) -> dict[str, float]:
    values = source.values(now_s)
    return dict(zip([column.name for column in source.columns], values, strict=True))


@pytest.mark.parametrize("files", [V2, V1], ids=["version 2", "version 1"])
def test_the_containers_memory_is_without_cached_files(tmp_path: Path, files: dict[str, bytes]) -> None:
    source = MemorySource(write(tmp_path, files))

    values = sample_by_name(source, 1.0)

    assert values["memory/container/used_bytes"] == 400_000
    assert values["memory/container/limit_bytes"] == 800_000
    assert values["memory/container/used_percent"] == 50.0
    assert values["memory/host/used_percent"] == 60.0
    assert values["memory/events/oom_kills"] == 0.0


@pytest.mark.parametrize(
    ("files", "events"),
    [(V2, "sys/fs/cgroup/memory.events"), (V1, "sys/fs/cgroup/memory/memory.oom_control")],
    ids=["version 2", "version 1"],
)
def test_kills_count_from_the_start(tmp_path: Path, files: dict[str, bytes], events: str) -> None:
    source = MemorySource(write(tmp_path, files))
    write(tmp_path, {events: files[events].replace(b"oom_kill 1", b"oom_kill 3")})

    assert sample_by_name(source, 1.0)["memory/events/oom_kills"] == 2.0


def test_without_a_group_the_host_stands_for_the_container(tmp_path: Path) -> None:
    values = sample_by_name(
        MemorySource(write(tmp_path, {"proc/self/cgroup": b"0::/\n", "proc/meminfo": MEMINFO})), 1.0
    )

    assert values["memory/container/used_bytes"] == 600 * 1024
    assert values["memory/container/limit_bytes"] == 1000 * 1024


@pytest.mark.parametrize("files", [V2, V1], ids=["version 2", "version 1"])
def test_throttling_and_use_are_those_since_the_last_sample(tmp_path: Path, files: dict[str, bytes]) -> None:
    source = Quota(write(tmp_path, files), 1.0)
    write(
        tmp_path,
        {
            "sys/fs/cgroup/cpu.stat": b"usage_usec 4000000\nnr_periods 120\nnr_throttled 15\n",
            "sys/fs/cgroup/cpuacct/cpuacct.usage": b"4000000000\n",
            "sys/fs/cgroup/cpu/cpu.stat": b"nr_periods 120\nnr_throttled 15\n",
        }
        if files is V1
        else {"sys/fs/cgroup/cpu.stat": b"usage_usec 4000000\nnr_periods 120\nnr_throttled 15\n"},
    )

    assert sample_by_name(source, 3.0) == {
        "cpu/container/used_cores": 1.5,
        "cpu/all/quota_cores": 1.5,
        "cpu/all/throttled_percent": 25.0,
    }


def test_a_container_without_a_limit_is_not_throttled(tmp_path: Path) -> None:
    files = {**V2, "sys/fs/cgroup/cpu.max": b"max 100000\n"}

    assert set(sample_by_name(Quota(write(tmp_path, files), 1.0), 2.0)) == {"cpu/container/used_cores"}


def test_pressure_is_the_share_of_the_time_since_the_last_sample(tmp_path: Path) -> None:
    line = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
    files = {f"sys/fs/cgroup/{kind}.pressure": line.format(0, 0).encode() for kind in ("cpu", "memory", "io")}
    source = Pressure(write(tmp_path, {**V2, **files}), 0.0)
    write(tmp_path, {"sys/fs/cgroup/memory.pressure": line.format(1_000_000, 500_000).encode()})

    values = sample_by_name(source, 2.0)

    assert (values["pressure/memory/some_percent"], values["pressure/memory/full_percent"]) == (50.0, 25.0)
    assert values["pressure/cpu/some_percent"] == values["pressure/io/full_percent"] == 0.0


def test_a_kernel_without_pressure_has_no_such_columns(tmp_path: Path) -> None:
    source = Pressure(write(tmp_path, V2), 0.0)

    assert (source.columns, source.values(1.0)) == ((), [])


def test_disks_and_interfaces_are_counted_once(tmp_path: Path) -> None:
    source = Traffic(write(tmp_path, DISKS), tmp_path, 0.0)
    stats = DISKS["proc/diskstats"].replace(b"nvme0n1 10 0 100 0 10 0 200", b"nvme0n1 10 0 300 0 10 0 600")
    dev = DISKS["proc/net/dev"].replace(b"eth0:1000", b"eth0:5000").replace(b"lo: 7000", b"lo: 9000")
    write(tmp_path, {"proc/diskstats": stats, "proc/net/dev": dev})

    values = sample_by_name(source, 2.0)

    assert values.pop("disk/output/free_bytes") > 0
    assert values == {
        "disk/all/read_bytes_per_s": 200 * 512 / 2,
        "disk/all/write_bytes_per_s": 400 * 512 / 2,
        "network/all/received_bytes_per_s": 2000.0,
        "network/all/sent_bytes_per_s": 0.0,
    }


def test_every_source_measures_this_machine() -> None:
    sources: list[SampleSource] = [MemorySource(), Quota("/", 0.0), Pressure("/", 0.0), Traffic("/", Path("/tmp"), 0.0)]

    values = {name: value for source in sources for name, value in sample_by_name(source, 1.0).items()}

    assert 0 < values["memory/container/used_bytes"] < values["memory/container/limit_bytes"]
    assert all(value >= 0 for value in values.values())


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root, to become another user")
def test_a_group_that_may_not_be_read_has_no_values_of_its_own() -> None:
    closed = Path("/tmp") / f"closed-group-{os.getpid()}"
    (closed / "sys/fs/cgroup").mkdir(parents=True)
    (closed / "sys/fs/cgroup").chmod(0)
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            root = str(closed)
            for source in (MemorySource(root), Quota(root, 0.0), Pressure(root, 0.0)):
                source.values(1.0)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    for folder in ("sys/fs/cgroup", "sys/fs", "sys", ""):
        (closed / folder).rmdir()
