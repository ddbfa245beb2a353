"""mapping, errors, params, encoders, files, modules, logging_config: what framework packages use of them.

The expected values were seen with sagemaker-training 5.1.4.
"""

import subprocess
import tarfile
from pathlib import Path
from typing import Any

from tests.distributions.test_environment import evaluate
from tests.train.base import Base


def printed(python: Path, base: Base, expression: str, imports: str, **more: str) -> Any:
    return evaluate(
        python,
        base,
        f"import json, os\nfrom sagemaker_training import {imports}\nprint(json.dumps({expression}))\n",
        **more,
    )


def test_mappings_become_variables_and_arguments(base: Base, python: Path) -> None:
    mapping_text = "{'a-b': None, 'x': b'\\xe9', 'l': [1, {'b': 1, 'a': None}], 'f': 1.5, 't': '\\xe9'}"
    words = "{'a': True, 'bb': None, 'd': {'z': 1, 'a': 2}, 'c': b'x', 'f': 1e-5, 'l': [1, 'a']}"
    parts = "mapping.split_by_criteria({'a': 1, 'sagemaker_x': 2, 'k': 3}, keys=['k'], prefix='sagemaker_')"

    variables, arguments, split = printed(
        python,
        base,
        f"[mapping.to_env_vars({mapping_text}), mapping.to_cmd_args({words}), {parts}._asdict()]",
        "mapping",
    )

    assert variables == {"SM_A-B": "", "SM_X": "é", "SM_L": '[1,{"a":null,"b":1}]', "SM_F": "1.5", "SM_T": "é"}
    assert arguments == ["-a", "True", "--bb", "", "-c", "x", "-d", "a=2,z=1", "-f", "1e-05", "-l", "[1, 'a']"]
    assert split == {"included": {"sagemaker_x": 2, "k": 3}, "excluded": {"a": 1}}


def test_errors_have_the_text_that_users_programs_parse(base: Base, python: Path) -> None:
    printed_values = printed(
        python,
        base,
        "[str(errors.ExecuteUserScriptError(['python', 'x'], return_code=3, output=b'boom')),"
        " str(errors.InstallModuleError('c', 1, 'out', 'info')), errors.ExecuteUserScriptError('c', 3).return_code,"
        " [kind.__name__ for kind in errors.InstallRequirementsError.__mro__][:3]]",
        "errors",
    )

    assert printed_values == [
        "ExecuteUserScriptError:\nExitCode 3\nErrorMessage \"boom\"\nCommand \"['python', 'x']\"",
        'InstallModuleError:\nExitCode 1\nErrorMessage "out"\nExtraInfo "info"\nCommand "c"',
        "3",
        ["InstallRequirementsError", "_CalledProcessError", "ClientError"],
    ]


def test_arrays_are_encoded_and_decoded(base: Base, python: Path) -> None:
    printed_values = printed(
        python,
        base,
        "[encoders.encode([[1, 2], [3, 4]], kind) for kind in ('application/json', 'text/csv')]"
        " + [encoders.decode(encoders.encode([[1, 2]], kind), kind).tolist()"
        " for kind in ('application/json', 'text/csv', 'application/x-npy')]",
        "encoders",
    )

    assert printed_values == ["[[1, 2], [3, 4]]", "1,2\n3,4\n", [[1, 2]], [1.0, 2.0], [[1, 2]]]


def test_an_array_of_one_dimension_is_a_column_of_csv(base: Base, python: Path) -> None:
    decodes = "[encoders.decode(text, 'text/csv').tolist() for text in ('1\\n2\\n', '1,2\\n', '5\\n')]"

    printed_values = printed(python, base, f"[encoders.encode([1, 2], 'text/csv'), *{decodes}]", "encoders")

    assert printed_values == ["1\n2\n", [1.0, 2.0], [1.0, 2.0], 5.0]


def test_an_unknown_content_type_is_refused(base: Base, python: Path) -> None:
    program = "from sagemaker_training import encoders; encoders.decode(b'', 'image/png')"

    done = subprocess.run([python, "-c", program], env=base.environ(), capture_output=True, text=True)

    assert "UnsupportedFormatError: expected one of the content types" in done.stderr


def test_a_source_is_put_into_an_empty_folder_only(base: Base, python: Path) -> None:
    archive = base.folder / "source.tar.gz"
    base.program("print(1)\n")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(base.code / "train.py", "train.py")
    other = base.folder / "other.py"
    other.write_text("print(2)\n")

    printed_values = printed(
        python,
        base,
        f"[files.download_and_extract({str(archive)!r}, 'new'), sorted(os.listdir('new')),"
        f" files.download_and_extract({str(other)!r}, 'new'), sorted(os.listdir('new')),"
        f" files.download_and_extract({str(other)!r}, 'newer'), os.listdir('newer')]",
        "files",
    )

    assert printed_values == [None, ["train.py"], None, ["train.py"], None, ["other.py"]]


def test_the_failure_file_of_a_plug_in_is_kept(base: Base, python: Path) -> None:
    base.output.mkdir()

    printed_values = printed(
        python,
        base,
        "[files.write_failure_file('mine'), files.write_failure_file('other'),"
        " files.read_file(os.path.join(os.environ['SAGEMAKER_BASE_DIR'], 'output/failure'))]",
        "files",
    )

    assert printed_values == [None, None, "mine"]


def test_requirements_that_pip_refuses_raise_with_its_words(base: Base, python: Path) -> None:
    base.program("", "requirements.txt")
    (base.code / "requirements.txt").write_text("=broken=\n")
    (base.folder / "packages/pip").mkdir(parents=True)
    (base.folder / "packages/pip/__init__.py").write_text("")
    (base.folder / "packages/pip/__main__.py").write_text(
        "import sys\nsys.stderr.write('ERROR: Invalid requirement\\n')\nsys.exit(1)\n"
    )
    program = (
        "import json\nfrom sagemaker_training import entry_point, environment, errors\n"
        "open(environment.code_dir + '/train.py', 'w').close()\n"
        "try:\n    entry_point.install('train.py', capture_error=True)\n"
        "except errors.InstallRequirementsError as error:\n    print(json.dumps([str(error), error.return_code]))\n"
    )

    text, code = evaluate(python, base, program, PYTHONPATH=str(base.folder / "packages"))

    assert text.startswith('InstallRequirementsError:\nExitCode 1\nErrorMessage "ERROR: Invalid requirement')
    assert code == "1"


def test_a_process_that_fails_raises_with_its_words(base: Base, python: Path) -> None:
    program = (
        "import json, os, sys\nfrom sagemaker_training import errors, process\n"
        "os.makedirs(os.path.join(os.environ['SAGEMAKER_BASE_DIR'], 'code'), exist_ok=True)\n"
        "ok = process.check_error([sys.executable, '-c', '']).returncode\n"
        "try:\n    process.check_error([sys.executable, '-c', 'raise SystemExit(\"no\")'])\n"
        "except errors.ExecuteUserScriptError as error:\n"
        "    print(json.dumps([ok, error.return_code, error.output.decode()]))\n"
    )

    assert evaluate(python, base, program) == [0, "1", "no\n"]


def test_names_of_parameters_are_those_of_sagemaker_training(base: Base, python: Path) -> None:
    printed_values = printed(
        python,
        base,
        "[params.MPI_ENABLED, params.MPI_PROCESSES_PER_HOST, params.USER_PROGRAM_ENV, params.TRAINING_JOB_ENV,"
        " params.SMDATAPARALLEL_CUSTOM_MPI_OPTIONS, len(params.SAGEMAKER_HYPERPARAMETERS)]",
        "params",
    )

    assert printed_values == [
        "sagemaker_mpi_enabled",
        "sagemaker_mpi_num_of_processes_per_host",
        "SAGEMAKER_PROGRAM",
        "TRAINING_JOB_NAME",
        "sagemaker_distributed_dataparallel_custom_mpi_options",
        9,
    ]


def test_the_log_of_an_invocation_masks_secrets(base: Base, python: Path) -> None:
    program = (
        "from sagemaker_training import logging_config\nlogging_config.configure_logger(20)\n"
        "logging_config.log_script_invocation(['python', 'a b.py'], {'API_TOKEN': 'hunter2hunter2', 'X': '1'})\n"
    )

    done = subprocess.run([python, "-c", program], env=base.environ(), capture_output=True, text=True)

    assert "hunter2hunter2" not in done.stderr
    assert "X=1" in done.stderr
    assert "python 'a b.py'" in done.stderr
    assert "sagemaker-training-toolkit INFO" in done.stderr
    assert done.returncode == 0
