"""What the library may raise; sagemaker-training collects these classes' names."""

from toolkit.dataparallel.exceptions import SMDDPError, SMDDPNotInitializedError

__all__ = ["SMDDPError", "SMDDPNotInitializedError"]
