"""Reads the options of a job file on the disk, or says what is at its path instead."""

from pathlib import Path
from typing import Any

from toolkit import files, folders
from toolkit.errors import ContractError, choose_document_error, did_you_mean
from toolkit.job.file.options import from_file
from toolkit.job.file.text_formats import is_job_file


def read(path: Path, hint: str) -> dict[str, Any]:
    """Return the options of the job file *path*; *hint* says what to do if it does not exist.

    Raises:
        ContractError: it cannot be read, or is no job file.
    """
    try:
        return from_file(files.read(path).decode("utf-8"), path)
    except FileNotFoundError:
        folder = path.parent
        if not folders.is_dir(folder, folders.as_absent):
            raise ContractError(f"expected a job file, found no folder {folder}", where=str(path), hint=hint) from None
        beside = folders.matching(folder, "*", folders.named_elsewhere)
        near = did_you_mean(path.name, (file.name for file in beside if is_job_file(file)))
        raise ContractError("expected a job file, found nothing", where=str(path), hint=near or hint) from None
    except IsADirectoryError:
        raise ContractError("expected a job file, found a folder", where=str(path), hint=hint) from None
    except OSError as error:
        reason = f"one that cannot be read ({error.strerror})"
        hint = "Correct the path, or its owner and permissions."
        raise choose_document_error(error)(f"expected a job file, found {reason}", where=str(path), hint=hint) from None
    except UnicodeDecodeError as error:
        reason = f"bytes that are not UTF-8 ({error.reason} at byte {error.start})"
        raise ContractError(f"expected a job file, found {reason}", where=str(path), hint="Save it as UTF-8.") from None
