"""Record what sagemaker-training 5.1.4 gives a script, as the *.json beside this file.

    python record.py VENV        (VENV: a virtual environment with sagemaker-training==5.1.4)

Each case is a set of documents and variables. `train` of VENV runs a script that writes down its argv and environment;
the file holds what went in and what was seen, with the temporary base directory as @BASE@. SM_STUDIO_LOCAL_MODE only
keeps the original from waiting up to 15 minutes for host names that do not exist.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DUMP = """
import json, os, sys
json.dump({"argv": sys.argv[1:], "environ": dict(os.environ)}, open(os.environ["DUMP"], "w"))
"""
ONE_HOST = {"current_host": "algo-1", "hosts": ["algo-1"]}
TODAY = {
    "current_host": "algo-1",
    "current_instance_type": "ml.c5.xlarge",
    "current_group_name": "homogeneousCluster",
    "hosts": ["algo-1"],
    "instance_groups": [
        {"instance_group_name": "homogeneousCluster", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]}
    ],
    "network_interface_name": "eth0",
    "topology": None,
}
HETERO = {
    "current_host": "algo-3",
    "current_instance_type": "ml.g5.48xlarge",
    "current_group_name": "gpus",
    "hosts": ["algo-1", "algo-2", "algo-3", "algo-4"],
    "instance_groups": [
        {"instance_group_name": "feeders", "instance_type": "ml.c5.xlarge", "hosts": ["algo-2", "algo-4"], "zone": "b"},
        {"instance_group_name": "gpus", "instance_type": "ml.g5.48xlarge", "hosts": ["algo-3", "algo-1"]},
    ],
    "network_interface_name": "eth0",
    "topology": None,
}
PROGRAM = {"sagemaker_program": '"dump.py"'}

CASES: dict[str, dict[str, Any]] = {
    "values_of_every_kind": {
        "hyperparameters": {
            **PROGRAM,
            "yes": "true",
            "no": "false",
            "nothing": "null",
            "list": '[1,"a"]',
            "nested-list": '[[1, 2.50], {"b": null, "a": true}, "é\\n"]',
            "dict": '{"y":"z","x":1}',
            "nested.dict": '{"b": {"d": [1, null], "c": true}, "a": null, "f": 1e-5}',
            "empty_dict": "{}",
            "empty_list": "[]",
            "small": "1e-5",
            "fraction": "0.10",
            "big": "12345678901234567890123",
            "large": "1e400",
            "zeros": "007",
            "minus": "-3",
            "nan": "NaN",
            "inf": "-Infinity",
            "text": '"text"',
            "quoted_true": '"true"',
            "quoted_empty": '""',
            "empty": "",
            "space": " ",
            "padded_number": " 12 ",
            "python_true": "True",
            "plain": "plain text",
        },
    },
    "text_of_every_kind": {
        "hyperparameters": {
            **PROGRAM,
            "unicode": "naïve 日本 🙂",
            "escaped": '"na\\u00efve \\ud83d\\ude42"',
            "quotes": 'it\'s "quoted" \\ back',
            "shell": "$(touch /tmp/never) `id` ; rm -rf x & | > $HOME *",
            "lines": '"first\\nsecond\\ttab"',
            "dashes": "--not-a-flag",
            "json_in_text": '"{\\"a\\": 1}"',
            "comma": "a=1,b=2",
            "half_json": '{"a": 1',
            "dict_of_text": '{"k y": "a,b", "ß": "=", "": "empty"}',
        },
    },
    "values_that_are_no_strings": {
        "hyperparameters": {
            **PROGRAM,
            "int": 3,
            "float": 0.30000000000000004,
            "yes": True,
            "nothing": None,
            "list": [1, "2", None],
            "dict": {"b": 1, "a": [True]},
        },
    },
    "names_of_every_kind": {
        "hyperparameters": {
            **PROGRAM,
            "k": "1",
            "Z": '"capital"',
            "learning-rate": "0.1",
            "learning_rate": "0.2",
            "a.b": "1",
            "a-b": "2",
            "optimizer.adam-w.eps": "1e-8",
            "ünïcode": "1",
            "straße": "2",
            "é": "3",
            "": "a nameless one",
            "10": "a",
            "9": "b",
            "Mixed": "x",
            "with space": "y",
        },
    },
    "reserved_names": {
        "hyperparameters": {
            **PROGRAM,
            "sagemaker_submit_directory": '"/opt/ml/input/data/code/sourcedir.tar.gz"',
            "sagemaker_enable_cloudwatch_metrics": "false",
            "sagemaker_region": '"eu-central-1"',
            "sagemaker_container_log_level": "10",
            "sagemaker_job_name": '"digits-2026"',
            "default_user_module_name": '"old"',
            "_tuning_objective_metric": '"accuracy"',
            "sagemaker_instance_type": '"ml.p4d.24xlarge"',
            "sagemaker_mpi_enabled": "false",
            "sagemaker_anything": '{"b": 1, "a": [true]}',
            "epochs": "3",
        },
        "environ": {"TRAINING_JOB_NAME": "digits-2026"},
    },
    "model_parallel": {
        "hyperparameters": {
            **PROGRAM,
            "mp_parameters": '{"partitions": 2, "ddp": true, "pipeline": "interleaved", "placement": null}',
            "sagemaker_distributed_dataparallel_enabled": "false",
        },
    },
    "channels": {
        "hyperparameters": PROGRAM,
        "inputdataconfig": {
            "validation": {"TrainingInputMode": "FastFile", "S3DistributionType": "ShardedByS3Key"},
            "train": {
                "TrainingInputMode": "Pipe",
                "S3DistributionType": "FullyReplicated",
                "RecordWrapperType": "None",
            },
            "my-data.v2": {"TrainingInputMode": "File", "ContentType": "text/csv"},
            "efs": {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "FileSystem": {"id": "fs-1"}},
            "bare": {},
        },
    },
    "today": {"hyperparameters": PROGRAM, "resourceconfig": TODAY, "environ": {"TRAINING_JOB_NAME": "a-job"}},
    "two_hosts_distributed": {
        "hyperparameters": {
            **PROGRAM,
            "sagemaker_pytorch_ddp_enabled": "true",
            "sagemaker_instance_type": '"ml.p4d.24xlarge"',
            "sagemaker_job_name": '"ddp"',
        },
        "resourceconfig": {
            **TODAY,
            "current_host": "algo-2",
            "hosts": ["algo-1", "algo-2"],
            "instance_groups": [
                {
                    "instance_group_name": "homogeneousCluster",
                    "instance_type": "ml.c5.xlarge",
                    "hosts": ["algo-2", "algo-1"],
                }
            ],
            "a_key_of_tomorrow": {"x": 1.0},
        },
        "environ": {"TRAINING_JOB_NAME": "ddp"},
        "gpus": 8,
    },
    "hetero_inside": {
        "hyperparameters": {
            **PROGRAM,
            "sagemaker_torch_distributed_enabled": "true",
            "sagemaker_distribution_instance_groups": '["gpus"]',
        },
        "resourceconfig": HETERO,
    },
    "hetero_outside": {
        "hyperparameters": {
            **PROGRAM,
            "sagemaker_torch_distributed_enabled": "true",
            "sagemaker_distribution_instance_groups": '["gpus"]',
        },
        "resourceconfig": {**HETERO, "current_host": "algo-4", "current_group_name": "feeders"},
    },
    "hetero_undistributed": {"hyperparameters": PROGRAM, "resourceconfig": HETERO},
    "local_mode_two_hosts": {
        "hyperparameters": {**PROGRAM, "sagemaker_torch_distributed_enabled": "true"},
        "resourceconfig": {
            "current_host": "algo-2-x9k3f",
            "hosts": ["algo-1-ab12c", "algo-2-x9k3f"],
            "network_interface_name": "ethwe",
            "current_instance_type": "local_gpu",
        },
        "gpus": 1,
    },
    "topology": {
        "hyperparameters": PROGRAM,
        "resourceconfig": {**TODAY, "topology": [{"hostName": "algo-1", "capacityUnitId": "cu-1"}]},
    },
    "neuron": {
        "hyperparameters": PROGRAM,
        "resourceconfig": {**TODAY, "current_instance_type": "ml.trn2.48xlarge"},
    },
    "program_by_variable": {
        "hyperparameters": {"sagemaker_program": '"other.py"', "epochs": "1"},
        "environ": {"SAGEMAKER_PROGRAM": "dump.py", "SM_HP_MP_PARAMETERS": "{}"},
    },
}


def record(name: str, case: dict[str, Any], venv: Path) -> dict[str, Any]:
    """Return the golden of one case: what went in, what the script of sagemaker-training saw."""
    with tempfile.TemporaryDirectory() as folder:
        base, programs = Path(folder, "ml"), Path(folder, "bin")
        (base / "input/config").mkdir(parents=True)
        (base / "output/data").mkdir(parents=True)
        (base / "code").mkdir()
        programs.mkdir()
        (base / "code/dump.py").write_text(DUMP)
        if case.get("gpus"):
            lines = "".join(f"GPU {n}: NVIDIA (UUID: GPU-{n})\n" for n in range(case["gpus"]))
            (programs / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<'END'\n{lines}END\n")
            (programs / "nvidia-smi").chmod(0o755)
        documents = {
            "hyperparameters": case["hyperparameters"],
            "inputdataconfig": case.get("inputdataconfig", {}),
            "resourceconfig": case.get("resourceconfig", ONE_HOST),
        }
        for document, content in documents.items():
            (base / f"input/config/{document}.json").write_text(json.dumps(content))
        variables = {"PATH": f"{programs}:{venv}/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "SM_STUDIO_LOCAL_MODE": "true"}
        environment = {**variables, **case.get("environ", {}), "SAGEMAKER_BASE_DIR": str(base)}
        dump = Path(folder, "dump.json")
        run = subprocess.run(
            [venv / "bin/train"], env={**environment, "DUMP": str(dump)}, capture_output=True, text=True
        )
        if run.returncode:
            raise SystemExit(f"{name}: {run.stdout}{run.stderr}")
        dumped = json.loads(dump.read_text().replace(str(base), "@BASE@"))
        environ = {
            k: v for k, v in dumped["environ"].items() if k not in variables and k not in ("DUMP", "SAGEMAKER_BASE_DIR")
        }
        environ = {k: v for k, v in environ.items() if k.startswith(("SM_", "SAGEMAKER_", "CURRENT_HOST"))}
        return {
            "of": "sagemaker-training 5.1.4",
            "python": sys.version.split()[0],
            "documents": documents,
            "environ": case.get("environ", {}),
            "machine": {"cpus_total": os.cpu_count(), "gpus": case.get("gpus", 0)},
            "seen": {"argv": dumped["argv"], "environ": dict(sorted(environ.items()))},
        }


if __name__ == "__main__":
    for name, case in CASES.items():
        golden = record(name, case, Path(sys.argv[1]).absolute())
        Path(__file__).with_name(f"{name}.json").write_text(json.dumps(golden, indent=1, ensure_ascii=True) + "\n")
        print(name)
