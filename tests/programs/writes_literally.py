"""Writes to the literal paths that SageMaker's scripts use, and prints its user and the checkpoints."""

import os
from pathlib import Path

checkpoints = Path("/opt/ml/checkpoints")
checkpoints.mkdir(parents=True, exist_ok=True)
(checkpoints / "step.pt").write_text(os.environ["SM_CURRENT_HOST"])
(Path(os.environ["SM_CHECKPOINT_DIR"]) / "too.pt").write_text("x")
Path("/opt/ml/model/model.txt").write_text("m")
print(f"uid={os.getuid()} gid={os.getgid()} found={sorted(path.name for path in checkpoints.iterdir())}")
