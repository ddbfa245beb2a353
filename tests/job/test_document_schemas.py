"""outcome.json and manifest.json, their schemas and their pages say the same."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from tests.train.base import Base
from toolkit.cli.outermost import _document
from toolkit.collectives.comparison import CallPlace, GroupComparison
from toolkit.job.cause import Cause
from toolkit.job.compilation import Compilation, Recompilation, Trial
from toolkit.job.document_schemas import FORMATS, MANIFEST, OUTCOME, DocumentFormat, page_with_tables, schema
from toolkit.job.manifest import FileTree, Hardware, Interpreter, ManifestChannel, RunManifest
from toolkit.job.outcome import Exit, Outcome
from toolkit.job.restart import Restart
from toolkit.job.stuck import StuckRank
from toolkit.records import encode

RECORDS = {
    "outcome.json": (
        Outcome,
        Cause,
        Exit,
        StuckRank,
        GroupComparison,
        CallPlace,
        Restart,
        Compilation,
        Recompilation,
        Trial,
    ),
    "manifest.json": (RunManifest, FileTree, ManifestChannel, Interpreter, Hardware),
}
each_format = pytest.mark.parametrize("document", FORMATS, ids=lambda document: document.title)
SCRIPTS = {
    "succeeded": "print('done')",
    "exception": "import os\nraise ValueError('no shard')",
    "exit code": "import sys\nprint('no such shard', file=sys.stderr)\nsys.exit(7)",
    "killed": "import os\nos.kill(os.getpid(), 9)",
    "stopped": "import os, signal, time\nos.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(60)",
}


def closed(document: DocumentFormat = OUTCOME) -> dict[str, Any]:
    """Return the schema as docs/ has it, made to refuse keys that it does not know and to require all that it knows."""
    content: dict[str, Any] = json.loads(document.schema_file.read_text())
    for definition in content["$defs"].values():
        definition |= {"additionalProperties": False, "required": list(definition["properties"])}
    return content


@each_format
def test_the_shipped_schema_is_that_of_the_records(document: DocumentFormat) -> None:
    """`python -m toolkit.job.document_schemas` writes it anew."""
    assert json.loads(document.schema_file.read_text()) == json.loads(json.dumps(schema(document)))


@each_format
def test_the_page_explains_every_key_as_the_records_do(document: DocumentFormat) -> None:
    assert document.page.read_text() == page_with_tables(document, document.page.read_text())


@each_format
def test_every_field_of_every_record_is_in_the_schema_with_a_description(document: DocumentFormat) -> None:
    definitions = schema(document)["$defs"]

    assert sorted(definitions) == sorted(record.__name__ for record in RECORDS[document.title])
    for record in RECORDS[document.title]:
        properties = definitions[record.__name__]["properties"]
        assert list(properties) == [field.encode_name for field in msgspec.structs.fields(record)]
        assert all(properties[name]["description"] for name in properties), record


@each_format
def test_the_example_of_the_page_is_a_whole_document(document: DocumentFormat) -> None:
    example = json.loads(document.page.read_text().partition("```json\n")[2].partition("```")[0])

    jsonschema.Draft202012Validator(closed(document)).validate(example)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_outcome_of_a_real_job_keeps_to_the_schema(tmp_path: Path, name: str) -> None:
    base = Base(tmp_path)
    base.program(SCRIPTS[name])

    done = base.train()

    jsonschema.Draft202012Validator(closed()).validate(done.outcome)
    manifest = json.loads((base.output / "manifest.json").read_bytes())
    jsonschema.Draft202012Validator(closed(MANIFEST)).validate(manifest)
    assert done.outcome["status"] == (name if name in ("succeeded", "stopped") else "failed"), done


def test_an_outcome_with_every_object_keeps_to_the_schema() -> None:
    trial = Trial(pairs=8, eager_step_ms=20.0, candidate_step_ms=21.0, kept=False, cost_s=1.5)
    outcome = Outcome(
        status="failed",
        exit_code=124,
        stuck_ranks=(StuckRank(process="rank 0", activity="waits"),),
        collectives=(
            GroupComparison(group="the default group", state="missing", places=(CallPlace(ranks=(0,)),), absent=(1,)),
        ),
        exits=(Exit(process="rank 0", pid=7, started_ns=1, ended_ns=2, code=0),),
        restarts=(Restart(attempt=1, host="algo-1", message="boom"),),
        compiler=Compilation(
            framework="torch",
            recompilations=(Recompilation(function="forward", reason="size mismatch", count=2),),
            trial=trial,
            autocast_trial=trial,
        ),
    )

    jsonschema.Draft202012Validator(closed()).validate(json.loads(encode(outcome)))


def test_what_a_damaged_installation_writes_keeps_to_the_schema() -> None:
    document = json.loads(_document(70, "Framework Error", "ModuleNotFoundError: no msgspec", ""))

    jsonschema.Draft202012Validator(json.loads(OUTCOME.schema_file.read_text())).validate(document)
    assert msgspec.convert(document, Outcome).cause.message == "ModuleNotFoundError: no msgspec"


def test_a_file_of_another_version_is_refused() -> None:
    document = json.loads(encode(Outcome(status="succeeded", exit_code=0))) | {"schema_version": 2}

    assert not jsonschema.Draft202012Validator(schema(OUTCOME)).is_valid(document)
    with pytest.raises(msgspec.ValidationError, match="schema_version"):
        msgspec.convert(document, Outcome)
