"""The exceptions of the old library; sagemaker-training collects the names of these classes."""

from toolkit.rank.modelparallel.errors import NotInitialized, PeerLost, SMPError

__all__ = ["NotInitialized", "PeerLost", "SMPError"]
