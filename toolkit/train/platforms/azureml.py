"""A node of an Azure Machine Learning job.

With `distribution: {type: pytorch, process_count_per_instance: 1}` a node gets MASTER_ADDR, MASTER_PORT, NODE_RANK and
WORLD_SIZE, the number of nodes (https://learn.microsoft.com/azure/machine-learning/how-to-train-distributed-gpu,
2026-11). AZUREML_RUN_ID names the job. Azure keeps files written to ./outputs.
"""

from collections.abc import Mapping

import msgspec

from toolkit.settings import Settings
from toolkit.train.platforms import plain
from toolkit.train.platforms.place import Place, job_name


def find(environ: Mapping[str, str], settings: Settings) -> Place:
    """Return the node's place.

    Raises:
        ContractError: the variables contradict each other.
    """
    place = plain.find(environ, settings)
    return msgspec.structs.replace(
        place, name=job_name(environ.get("AZUREML_RUN_ID", "")), model="outputs/model", stopped_by_engine=False
    )
