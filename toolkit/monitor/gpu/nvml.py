"""The NVIDIA GPUs of this host, through NVML: the names of what each can measure, and its values.

Runs in a process of its own (child.py): every call takes the driver's global lock, and may hang in the kernel. Fast
values are read with each sample; slow ones (temperature, ECC, PCIe without GPM, NVLink, Xid) every SLOW_S, since they
take milliseconds. Lists of processes, 4.5 ms a call, are never read. The first reading finds out what a GPU does not
support; that is left out from then on. Units as the NVML API reference gives them
(https://docs.nvidia.com/deploy/nvml-api/, seen 2026-11): milliwatts, MHz, MiB/s (GPM), KiB/s (PCIe), KiB (NVLink).
"""

from collections.abc import Callable
from typing import Any

SLOW_S = 5.0
MIB, KIB = float(1 << 20), float(1 << 10)
# NVLink's counters of data sent and received by all links, in KiB: the scope that means all links is 0xFFFFFFFF.
_ALL_LINKS = 0xFFFFFFFF
Reading = Callable[[], float]


class NvmlGpus:
    """All GPUs of the host. *nvml*: the module pynvml, initialised."""

    def __init__(self, nvml: Any, now_s: float) -> None:
        self.devices = [_Gpu(nvml, index, now_s) for index in range(nvml.nvmlDeviceGetCount())]

    def names(self) -> list[str]:
        """Return the products' names."""
        return [device.name for device in self.devices]

    def metrics(self) -> list[list[str]]:
        """Return what each GPU measures, in the order of its values."""
        return [device.metrics for device in self.devices]

    def values(self, now_s: float) -> list[float | None]:
        """Return all values of all GPUs; None: not to be had this time."""
        return [value for device in self.devices for value in device.values(now_s)]


class _Gpu:
    def __init__(self, nvml: Any, index: int, now_s: float) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = nvml.nvmlDeviceGetName(self._handle)
        self.name = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
        self._gpm = _gpm(nvml, self._handle)
        self._now_s = now_s
        self._memory: Any = None
        self._xids = _xids(nvml, self._handle)
        self._link_before: tuple[float, float] | None = None
        self._seen_xids = 0
        fast: dict[str, Reading] = {
            "used_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu,
            "memory_used_bytes": self._memory_used,
            "memory_used_percent": lambda: 100.0 * self._memory.used / self._memory.total,
            "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000,
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM),
        }
        slow: dict[str, Reading] = {
            "temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU),
            "ecc_errors": lambda: nvml.nvmlDeviceGetTotalEccErrors(
                self._handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            ),
            "xid_errors": self._xid_count,
            "nvlink_bytes_per_s": self._link_rate,
            "pcie_received_bytes_per_s": lambda: (
                KIB * nvml.nvmlDeviceGetPcieThroughput(self._handle, nvml.NVML_PCIE_UTIL_RX_BYTES)
            ),
            "pcie_sent_bytes_per_s": lambda: (
                KIB * nvml.nvmlDeviceGetPcieThroughput(self._handle, nvml.NVML_PCIE_UTIL_TX_BYTES)
            ),
        }
        gpm = self._gpm.available() if self._gpm is not None else {}
        self._gpm_names = tuple(gpm)
        self._fast = _supported(fast)
        self._slow = _supported({name: read for name, read in slow.items() if name not in gpm})
        self._slow_values: list[float | None] = [None] * len(self._slow)
        self._slow_at_s = float("-inf")
        self.metrics = [*self._fast, *self._gpm_names, *self._slow]

    def values(self, now_s: float) -> list[float | None]:
        self._now_s = now_s
        fast = [_value(read) for read in self._fast.values()]
        gpm = self._gpm.read(self._gpm_names) if self._gpm is not None and self._gpm_names else []
        if now_s - self._slow_at_s >= SLOW_S:
            self._slow_at_s = now_s
            self._slow_values = [_value(read) for read in self._slow.values()]
        return [*fast, *gpm, *self._slow_values]

    def _memory_used(self) -> float:
        self._memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return float(self._memory.used)

    def _xid_count(self) -> float:
        """Return how many Xid events have come since the start (https://docs.nvidia.com/deploy/xid-errors/)."""
        if self._xids is None:
            raise NotImplementedError
        while True:
            try:
                self._nvml.nvmlEventSetWait_v2(self._xids, 0)
            except self._nvml.NVMLError_Timeout:
                return float(self._seen_xids)
            self._seen_xids += 1

    def _link_rate(self) -> float:
        """Return the bytes per second over all NVLinks, both ways, since the last call."""
        nvml = self._nvml
        fields = [
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
        ]
        field_values = nvml.nvmlDeviceGetFieldValues(self._handle, fields)
        if any(value.nvmlReturn != nvml.NVML_SUCCESS for value in field_values):
            raise NotImplementedError
        total = KIB * float(sum(value.value.ullVal for value in field_values))
        earlier, self._link_before = self._link_before, (total, self._now_s)
        if earlier is None or self._now_s <= earlier[1]:
            return 0.0
        return max(total - earlier[0], 0.0) / (self._now_s - earlier[1])


class _Gpm:
    """GPU performance monitoring, from Hopper on: the difference of two samples, all metrics in one call."""

    # (our name, NVML's name of the metric, bytes or percent in one unit of it)
    METRICS = (
        ("sm_active_percent", "NVML_GPM_METRIC_SM_UTIL", 1.0),
        ("sm_occupancy_percent", "NVML_GPM_METRIC_SM_OCCUPANCY", 1.0),
        ("tensor_active_percent", "NVML_GPM_METRIC_ANY_TENSOR_UTIL", 1.0),
        ("memory_bandwidth_percent", "NVML_GPM_METRIC_DRAM_BW_UTIL", 1.0),
        ("pcie_received_bytes_per_s", "NVML_GPM_METRIC_PCIE_RX_PER_SEC", MIB),
        ("pcie_sent_bytes_per_s", "NVML_GPM_METRIC_PCIE_TX_PER_SEC", MIB),
    )

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._before, self._now = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(handle, self._before)

    def available(self) -> dict[str, float]:
        """Return the metrics that this GPU has, with their first values."""
        names = [name for name, _, _ in self.METRICS]
        return {name: value for name, value in zip(names, self.read(tuple(names)), strict=True) if value is not None}

    def read(self, names: tuple[str, ...]) -> list[float | None]:
        """Return the values of *names* for the time since the last read."""
        nvml = self._nvml
        wanted_metrics = [(getattr(nvml, theirs), unit) for name, theirs, unit in self.METRICS if name in names]
        try:
            nvml.nvmlGpmSampleGet(self._handle, self._now)
            query = nvml.c_nvmlGpmMetricsGet_t()
            query.version = nvml.NVML_GPM_METRICS_GET_VERSION
            query.numMetrics = len(wanted_metrics)
            query.sample1, query.sample2 = self._before, self._now
            for index, (theirs, _) in enumerate(wanted_metrics):
                query.metrics[index].metricId = theirs
            nvml.nvmlGpmMetricsGet(query)
        except nvml.NVMLError:
            return [None] * len(wanted_metrics)
        self._before, self._now = self._now, self._before
        return [
            metric.value * unit if metric.nvmlReturn == nvml.NVML_SUCCESS and metric.value == metric.value else None
            for metric, (_, unit) in zip(query.metrics, wanted_metrics, strict=False)
        ]


def _gpm(nvml: Any, handle: Any) -> _Gpm | None:
    try:
        return _Gpm(nvml, handle) if nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice else None
    except (nvml.NVMLError, AttributeError):  # An older driver, or an older pynvml.
        return None


def _xids(nvml: Any, handle: Any) -> Any:
    try:
        events = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
    except (nvml.NVMLError, AttributeError):
        return None
    return events


def _supported(readings: dict[str, Reading]) -> dict[str, Reading]:
    return {name: read for name, read in readings.items() if _value(read) is not None}


def _value(read: Reading) -> float | None:
    """Return what *read* returns, None if the GPU does not support it or has failed."""
    try:
        return float(read())
    except Exception:  # noqa: BLE001 (NVML's errors have a class for each code)
        return None
