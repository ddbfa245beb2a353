"""Reads the URIs of storage: s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY and file:///PATH."""

import os
from pathlib import Path

from toolkit import paths
from toolkit.errors import UserError
from toolkit.records import Record

REMOTE = ("s3", "gs", "az")
EXPECTED = "s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY or file:///FOLDER"


class Uri(Record, frozen=True, kw_only=True):
    """A place in storage. `bucket`: of az://, the container; of file://, "". `key`: without a slash at its ends."""

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"

    def below(self, key: str) -> "Uri":
        """Return the place *key* below this one."""
        return Uri(scheme=self.scheme, bucket=self.bucket, key=f"{self.key}/{key}" if self.key else key)


def is_remote(text: str) -> bool:
    """True if *text* begins as the URI of an object storage."""
    return text.partition("://")[0] in REMOTE and "://" in text


def parse(text: str, setting: str = "") -> Uri:
    """Return the place that *text* names; *setting* names the setting for errors.

    Raises:
        UserError: it is no such URI.
    """
    if not paths.is_utf8(text):
        raise UserError(f"expected a URI of UTF-8, found {paths.shown_text(text)!r}", where=paths.shown_text(setting))
    scheme, separator, rest = text.strip().partition("://")
    bucket, _, key = rest.partition("/")
    if scheme == "file" and bucket in ("", "localhost") and key.strip("/"):
        return Uri(scheme=scheme, bucket="", key=_checked(key.strip("/"), text, setting))
    if not separator or scheme not in REMOTE or not bucket:
        raise UserError(f"expected {EXPECTED}, found {text!r}", where=setting)
    return Uri(scheme=scheme, bucket=bucket, key=_checked(key.strip("/"), text, setting))


def check_outside(uri: Uri, folder: Path, setting: str) -> None:
    """Check that *folder*, whose content is to be stored at *uri*, does not hold *uri*, nor is in it.

    Raises:
        UserError: it does: each upload would make more to upload.
    """
    if uri.scheme != "file":
        return
    stored, source = (os.path.realpath(path) for path in (f"/{uri.key}", folder))
    if _is_below(stored, source) or _is_below(source, os.path.join(stored, "hosts")):
        message = f"expected a place outside the checkpoint folder {paths.shown(folder)}"
        raise UserError(message, where=setting, hint="Name another folder, on a disk that outlives the job.")


def _is_below(path: str, folder: str) -> bool:
    return os.path.commonpath((path, folder)) == folder


def _checked(key: str, text: str, setting: str) -> str:
    # The client can name no other keys (object_store's Path), and a ".." would leave a folder.
    if key and {"", ".", ".."} & set(key.split("/")):
        raise UserError(f"expected a key without empty parts, '.' and '..', found {text!r}", where=setting)
    return key
