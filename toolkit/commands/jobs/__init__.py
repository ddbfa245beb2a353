"""Reads a job from its folder: how it ended, what it measured, what it printed.

from toolkit.commands import jobs
job = jobs.read("jobs/digits")          # JobData
rows = jobs.metrics("jobs/digits")      # timestamp, metric_name, value, host, rank, step
"""

from toolkit.commands.jobs.data import HostData, HostStatus, JobData, JobStatus
from toolkit.commands.jobs.reading import read
from toolkit.commands.jobs.records import metrics

__all__ = ["HostData", "HostStatus", "JobData", "JobStatus", "metrics", "read"]
