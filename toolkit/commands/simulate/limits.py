"""Pure: what CreateTrainingJob refuses of a job that `toolkit run` runs.

The limits are those of the API reference (CreateTrainingJob, Channel, MetricDefinition, StoppingCondition; seen 2026).
"""

import re
from collections.abc import Iterator

from toolkit.job.documents import writing
from toolkit.job.file.job_file import JobFile

HYPERPARAMETERS, NAME_CHARACTERS, VALUE_CHARACTERS = 100, 256, 2500
CHANNELS = 20
METRICS, METRIC_NAME_CHARACTERS, REGEX_CHARACTERS = 40, 255, 500
VARIABLES, VARIABLE_CHARACTERS = 100, 512
GROUPS = 5
DAYS = 28
VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def exceeded(job_file: JobFile, region: str) -> tuple[str, ...]:
    """Return a warning for each limit that *job_file* exceeds."""
    archive = job_file.run.job_dir / "source" / "sourcedir.tar.gz"
    values = {str(name): str(value) for name, value in writing.hyperparameters(job_file, archive, region).items()}
    texts = (
        *_counts(job_file, len(values)),
        *_hyperparameters(values),
        *_variables(job_file.environment),
        *_metrics(job_file.metric_definitions),
    )
    return tuple(f"{text}: SageMaker's CreateTrainingJob refuses it" for text in texts)


def _counts(job_file: JobFile, hyperparameters: int) -> Iterator[str]:
    counts = (
        (hyperparameters, HYPERPARAMETERS, "hyperparameters, SageMaker's own among them"),
        (len(job_file.channels), CHANNELS, "channels"),
        (len(job_file.metric_definitions), METRICS, "metric definitions"),
        (len(job_file.environment), VARIABLES, "variables of the environment"),
        (len(job_file.groups), GROUPS, "instance groups"),
    )
    for count, most, noun in counts:
        if count > most:
            yield f"{count} {noun}, the limit is {most}"
    if job_file.run.max_run_s is not None and job_file.run.max_run_s > DAYS * 86_400:
        yield f"--max-run of more than {DAYS} days, the limit"


def _hyperparameters(values: dict[str, str]) -> Iterator[str]:
    for name, value in values.items():
        if len(name) > NAME_CHARACTERS:
            yield f"hyperparameter {name[:20]}...: a name of {len(name)} characters, the limit is {NAME_CHARACTERS}"
        elif len(value) > VALUE_CHARACTERS:
            yield f"hyperparameter {name}: a value of {len(value):,} characters, the limit is {VALUE_CHARACTERS:,}"
        elif "\n" in name or "\n" in value:
            yield f"hyperparameter {name!r}: a line break in it"


def _variables(environment: dict[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        if not VARIABLE.fullmatch(name):
            yield f"variable {name!r}: its name may have letters, digits and _ alone, and no digit first"
        elif max(len(name), len(value)) > VARIABLE_CHARACTERS:
            yield f"variable {name[:20]}: {max(len(name), len(value)):,} characters, the limit is {VARIABLE_CHARACTERS}"


def _metrics(definitions: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for name, regex in definitions:
        if len(name) > METRIC_NAME_CHARACTERS:
            yield f"metric {name[:20]}...: a name of {len(name)} characters, the limit is {METRIC_NAME_CHARACTERS}"
        if len(regex) > REGEX_CHARACTERS:
            yield f"metric {name[:20]}: a regex of {len(regex)} characters, the limit is {REGEX_CHARACTERS}"
