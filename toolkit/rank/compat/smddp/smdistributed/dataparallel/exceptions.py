"""The exceptions of the old library; sagemaker-training collects the names of these classes."""

from toolkit.rank.dataparallel.exceptions import SMDDPError, SMDDPNotInitializedError

__all__ = ["SMDDPError", "SMDDPNotInitializedError"]
