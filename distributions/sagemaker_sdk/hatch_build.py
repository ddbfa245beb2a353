"""Refuses a build without the packs that a job carries: it would install, and fail in the container."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PacksAreThere(BuildHookInterface):  # type: ignore[type-arg]
    """Runs before hatchling collects the files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's names
        """Raises: FileNotFoundError if scripts/carried-packs has not run."""
        if version == "editable":
            return
        sums = Path(self.root) / "toolkit_sagemaker/driver/packs/SHA256SUMS"
        if not sums.exists():
            raise FileNotFoundError(
                f"{sums}: expected the packs that jobs carry, found none: run scripts/carried-packs"
            )
