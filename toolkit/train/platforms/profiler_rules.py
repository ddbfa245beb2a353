"""The profiler rules of a job, from TOOLKIT_PROFILER_RULES or its job file, as the monitor gets them."""

from pathlib import Path
from typing import Any

from toolkit import files
from toolkit.errors import ContractError, UserError
from toolkit.job.spec import JobSpec
from toolkit.records import decode
from toolkit.settings import Settings

VARIABLE = "TOOLKIT_PROFILER_RULES"


def profiler_rules(spec: JobSpec, settings: Settings) -> tuple[dict[str, Any], ...]:
    """Return the rule configurations of the job as the SDK writes them in its request; none means ProfilerReport.

    Raises:
        ContractError: an unknown rule or parameter, or text that is no document.
        UserError: the file that the variable names cannot be read.
    """
    if not settings.profiler_rules and spec.profiler_rules is None:
        return ()
    from toolkit.diagnosis import configuration  # All rules: 10 ms, which only jobs that name some pay.

    if settings.profiler_rules:
        return configuration.as_list(*document(settings.profiler_rules, VARIABLE))
    return configuration.as_list(spec.profiler_rules, "job file: $.profiler-rules")


def document(text: str, source: str) -> tuple[Any, str]:
    """Return the values in *text*, JSON or the path of a document, and what to name in errors; *source* holds the text.

    Raises:
        ContractError: it is no such document.
        UserError: the file cannot be read.
    """
    if text.lstrip().startswith(("[", "{")):
        return decode(text.encode(), Any, source), source
    from toolkit.job.file.text_formats import parse

    path = Path(text)
    try:
        return parse(files.read(path), path), str(path)
    except OSError as error:
        hint = f"{source} holds JSON, or names a file."
        raise UserError(f"expected a document of rules ({error.strerror})", where=str(path), hint=hint) from None
    except ContractError as error:
        error.where = error.where or str(path)
        raise
