"""Stands in for NVIDIA's pynvml: two GPUs with answers as an H100 (with GPM) and a T4 (without) give them.

FAKE_NVML says what else happens: "no driver", "hangs" (from the second reading on), "lost" (the second GPU falls off
the bus after the first reading).
"""

import os
import time
from types import SimpleNamespace
from typing import Any

NVML_SUCCESS = 0
NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139
NVML_GPM_METRICS_GET_VERSION = 1
NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_SM_OCCUPANCY, NVML_GPM_METRIC_ANY_TENSOR_UTIL = 2, 3, 5
NVML_GPM_METRIC_DRAM_BW_UTIL, NVML_GPM_METRIC_PCIE_TX_PER_SEC, NVML_GPM_METRIC_PCIE_RX_PER_SEC = 10, 20, 21
nvmlEventTypeXidCriticalError = 8
GPM = {2: 71.5, 3: 40.0, 5: 33.0, 10: 25.0, 20: 100.0, 21: 200.0}
HOW = os.environ.get("FAKE_NVML", "")


class NVMLError(Exception):
    pass


class NVMLError_Timeout(NVMLError):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class c_nvmlGpmMetricsGet_t:
    def __init__(self) -> None:
        self.metrics = [SimpleNamespace(metricId=0, value=0.0, nvmlReturn=NVML_SUCCESS) for _ in range(98)]


readings = [0, 0]
xids = [0]


def nvmlInit() -> None:
    if HOW == "no driver":
        raise NVMLError("Driver Not Loaded")


def nvmlDeviceGetCount() -> int:
    return 2


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetName(handle: int) -> str:
    return ("NVIDIA H100 80GB HBM3", "Tesla T4")[handle]


def nvmlDeviceGetUtilizationRates(handle: int) -> Any:
    readings[handle] += 1
    while HOW == "hangs" and readings[handle] > 3:
        time.sleep(0.1)
    if HOW == "lost" and handle == 1 and readings[1] > 2:
        raise NVMLError("GPU is lost")
    return SimpleNamespace(gpu=90 - 80 * handle, memory=10)


def nvmlDeviceGetMemoryInfo(handle: int) -> Any:
    return SimpleNamespace(used=20 << 30, total=(80 << 30) >> handle, free=0)


def nvmlDeviceGetPowerUsage(handle: int) -> int:
    return 350_500


def nvmlDeviceGetClockInfo(handle: int, clock: int) -> int:
    return 1980


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> int:
    return 61


def nvmlDeviceGetTotalEccErrors(handle: int, kind: int, counter: int) -> int:
    if handle == 1:
        raise NVMLError_NotSupported
    return 3


def nvmlDeviceGetPcieThroughput(handle: int, counter: int) -> int:
    return 1000 * (counter + 1)


def nvmlDeviceGetFieldValues(handle: int, fields: list[Any]) -> list[Any]:
    if handle == 1:
        return [SimpleNamespace(nvmlReturn=3, value=SimpleNamespace(ullVal=0)) for _ in fields]
    return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=int(time.monotonic() * 1000))) for _ in fields]


def nvmlEventSetCreate() -> int:
    return 0


def nvmlDeviceRegisterEvents(handle: int, kinds: int, events: int) -> None:
    if handle == 1:
        raise NVMLError_NotSupported


def nvmlEventSetWait_v2(events: int, timeout_ms: int) -> None:
    if xids[0] >= 1:
        raise NVMLError_Timeout
    xids[0] += 1


def nvmlGpmQueryDeviceSupport(handle: int) -> Any:
    return SimpleNamespace(isSupportedDevice=handle == 0)


def nvmlGpmSampleAlloc() -> list[float]:
    return [0.0]


def nvmlGpmSampleGet(handle: int, sample: list[float]) -> list[float]:
    sample[0] = time.monotonic()
    return sample


def nvmlGpmMetricsGet(query: Any) -> Any:
    assert query.sample2[0] >= query.sample1[0] > 0
    for metric in query.metrics[: query.numMetrics]:
        metric.value = GPM[metric.metricId]
    return query
