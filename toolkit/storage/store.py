"""A bucket: reads, writes and lists objects by obstore, which retries, and tells failures in the toolkit's words.

obstore finds credentials and endpoints itself, from the environment of the process: AWS_ACCESS_KEY_ID, the container's
credentials (AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and _FULL_URI), a web identity, else the instance's (IMDSv2);
AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL; GOOGLE_APPLICATION_CREDENTIALS or the metadata server; AZURE_STORAGE_*, a
federated token or the managed identity (https://developmentseed.org/obstore, version 0.12, seen 2026-11).
"""

import html
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from toolkit import files
from toolkit.errors import PlatformError, ToolkitError, UserError
from toolkit.folders import as_absent, exists, is_dir
from toolkit.patterns import lazy
from toolkit.records import Record
from toolkit.storage.scan import FileState, describe, file_state
from toolkit.storage.uri import Uri
from toolkit.storage.whole_file import WholeFile

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_T = TypeVar("_T")
# What one request carries: four at once, and their copies on the way, take 35 MiB (scripts/bench storage).
PIECE_BYTES = 8 << 20
THREADS = 4
REASON_CHARACTERS = 300
# obstore has no error of its own for a listing of a bucket that does not exist: only the text has the HTTP status.
_STATUS = lazy(r"status code: (\d{3})")
_MARKUP = lazy(r"(<\?xml|<!DOCTYPE|<html|<Error\b)", re.IGNORECASE)
# S3, Google and Azure: no other try of this object ends otherwise. Most other answers with status 400 may.
_FINAL = lazy(
    r"status code: 413|<Code>(?:KeyTooLongError|EntityTooLarge|InvalidArgument|InvalidURI|InvalidUri"
    r"|InvalidResourceName|OutOfRangeInput)</Code>"
)
# The last place where the client looks for credentials: on most machines outside of a cloud nobody answers.
_NO_CREDENTIALS = lazy("/latest/api/token|/computeMetadata/v1/|/metadata/identity/|Account must be specified")
_CODE = lazy(r"<Code>([^<]*)</Code>")
_MESSAGE = lazy(r"<Message>([^<]*)</Message>")
EXTRA = "Install it in the image: pip install 'container-training-toolkit[storage]'"
# S3's limit (https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html); the others' are no smaller.
MOST_KEY_BYTES = 1024
# S3's limit of one upload's parts: an object of more than 83 GB needs larger ones.
MOST_UPLOAD_PARTS = 10_000
MOST_NAME_BYTES = 255  # Of a file, on Linux.
# The client takes no control characters, and keeps names such as "model#1" for files that it is writing.
_NO_KEY = lazy(r"[\x00-\x1f\x7f]|#\d+$")
_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
CREDENTIALS = {
    "s3": "Check the credentials (AWS_ACCESS_KEY_ID, or the role of the instance, container or pod) and their rights:"
    " s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket.",
    "gs": "Check the credentials (GOOGLE_APPLICATION_CREDENTIALS, or the service account) and their rights:"
    " roles/storage.objectAdmin.",
    "az": "Check the credentials (AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or the managed identity)"
    " and their rights: Storage Blob Data Contributor.",
    "file": "Check the owner and the permissions of the folder.",
}


class StoredObject(Record, frozen=True, kw_only=True):
    """An object of a bucket. `tag`: changes with the content; "" where the storage gives none. `changed_ns`: when it
    was written, since the epoch; 0 if that is not known."""

    key: str
    size_bytes: int
    tag: str = ""
    changed_ns: int = 0


class StorageClient:
    """The bucket of *uri*. Methods take whole keys, block, and may be called by several threads.

    Each raises:
        UserError: there is no such bucket or object.
        PlatformError: the storage refuses, or did not answer within *timeout_s*.
    """

    def __init__(self, uri: Uri, environ: Mapping[str, str], *, timeout_s: float) -> None:
        try:
            import obstore
        except ImportError as error:
            message = f"needs the package obstore, which cannot be imported ({error})"
            raise UserError(message, where=str(uri), hint=EXTRA) from None
        self._obstore: Any = obstore
        self._root = Uri(scheme=uri.scheme, bucket=uri.bucket, key="")
        self._timeout_s = timeout_s
        self._store: ObjectStore = self._call(str(uri), "cannot be opened", lambda: _open(uri, environ, timeout_s))

    def find(self, key: str) -> StoredObject | None:
        """Return the object *key*, None if there is none."""
        try:
            return _object(
                self._call(self._uri_of(key), "cannot be read", lambda: self._obstore.head(self._store, key))
            )
        except _MissingError:
            return None

    def read(self, stored: StoredObject, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of *stored* from *start* to *end*, which holds them all or raises.

        Raises:
            PlatformError: also if the object was replaced meanwhile.
        """
        return bytes(self.piece(stored, start, stored.size_bytes if end is None else end))

    def piece(self, stored: StoredObject, start: int, end: int) -> memoryview:
        """Return what `read` does, without another copy of it."""
        if start == end:
            return memoryview(b"")
        options: dict[str, Any] = {"range": (start, end)}
        if stored.tag:
            options["if_match"] = stored.tag

        def get() -> memoryview:
            content = memoryview(self._obstore.get(self._store, stored.key, options=options).bytes())
            if len(content) != end - start:
                raise OSError(f"{len(content)} bytes came of {end - start}")
            return content

        return self._call(self._uri_of(stored.key), "cannot be read", get, again=True)

    def list_level(self, prefix: str) -> tuple[list[StoredObject], list[str]]:
        """Return the objects directly below *prefix*, and the prefixes of all others."""
        found = self._call(
            self._uri_of(prefix),
            "cannot be listed",
            lambda: self._obstore.list_with_delimiter(self._store, prefix or None),
        )
        return [_object(meta) for meta in found["objects"]], list(found["common_prefixes"])

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects below *prefix*, in the storage's order."""
        stream = self._obstore.list(self._store, prefix or None, chunk_size=1000)
        batches = iter(stream)
        while batch := self._call(self._uri_of(prefix), "cannot be listed", lambda: next(batches, None)):
            yield from (_object(meta) for meta in batch)

    def write(self, key: str, content: bytes) -> None:
        """Make *content* the object *key*, at once and whole."""

        def put() -> object:
            return self._obstore.put(self._store, key, content, use_multipart=False)

        self._call(self._uri_of(key), "cannot be written", put, again=True)

    def upload(
        self, key: str, path: Path, state: FileState | None = None, note: Callable[[int], None] = lambda _: None
    ) -> None:
        """Upload the file *path*, last seen in *state*, as the object *key*; it is listed once it is complete. A large
        file goes in parts. *note* is called with the bytes of each piece that is taken from the file.

        Raises:
            UnreadableError: also; the object *key* is what it was.
        """

        def put() -> object:
            try:
                found = state or file_state(path)
                file = WholeFile(path, found, note)
            except OSError as error:
                raise UnreadableError(describe(error), is_gone=isinstance(error, FileNotFoundError)) from None
            piece_bytes = max(PIECE_BYTES, -(-found.size_bytes // MOST_UPLOAD_PARTS)) if found else PIECE_BYTES
            with file:
                try:
                    return self._obstore.put(self._store, key, file, chunk_size=piece_bytes, max_concurrency=THREADS)
                except Exception:
                    if file.fault:
                        raise UnreadableError(file.fault, has_changed=file.has_changed) from None
                    raise

        self._call(self._uri_of(key), "cannot be written", put, again=True)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects *keys*; one that does not exist is no error."""
        for key in keys:
            try:
                self._call(self._uri_of(key), "cannot be deleted", partial(self._obstore.delete, self._store, key))
            except _MissingError:
                pass

    def _uri_of(self, key: str) -> str:
        return str(self._root.below(key))

    def _call(self, place: str, failure: str, call: Callable[[], _T], *, again: bool = False) -> _T:
        """Return what *call* returns. *again*: repeat it until the time is up: obstore repeats a request whose answer
        failed, and not one whose answer broke off."""
        deadline_s = time.monotonic() + self._timeout_s
        pause_s = 0.2
        while True:
            try:
                return call()
            except Exception as error:  # noqa: BLE001 - obstore raises errors of its own, of OSError and of ValueError
                translated = self._translate(place, failure, error)
                is_final = isinstance(translated, UserError | StorageRefusedError | UnreadableError)
                if not again or is_final or time.monotonic() + pause_s >= deadline_s:
                    raise translated from None
            threading.Event().wait(pause_s)
            pause_s = min(pause_s * 2, 5.0)

    def _translate(self, place: str, failure: str, error: Exception) -> ToolkitError:
        from obstore import exceptions

        if isinstance(error, ToolkitError):
            return error
        text = summarize_error(str(error))
        reason = f": {text}" if text else ""
        status = _STATUS.search(str(error))
        if isinstance(error, FileNotFoundError) or (status and status[1] == "404"):
            return _MissingError(
                f"{failure}: expected an object, found none{reason}", where=place, hint="Correct the URI."
            )
        refused = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError)
        if isinstance(error, refused):
            return StorageRefusedError(
                f"{failure}: access is refused{reason}", where=place, hint=CREDENTIALS[self._root.scheme]
            )
        if isinstance(error, exceptions.PreconditionError):
            return ReplacedError(f"{failure}: it was replaced meanwhile", where=place, hint="Try again.")
        if _FINAL.search(str(error)):
            return StorageRefusedError(
                f"{failure}: it is refused{reason}", where=place, hint="Give it another name, or make it smaller."
            )
        if isinstance(error, exceptions.InvalidPathError | exceptions.UnknownConfigurationKeyError):
            return UserError(f"{failure}{reason}", where=place, hint="Rename the object, or correct the URI.")
        if _NO_CREDENTIALS.search(str(error)):
            return PlatformError(f"{failure}: no credentials{reason}", where=place, hint=CREDENTIALS[self._root.scheme])
        checks = "disk" if self._root.scheme == "file" else "network and the endpoint"
        hint = f"Check the {checks}, then start the job again."
        return PlatformError(f"{failure}, tried for up to {self._timeout_s:g} s{reason}", where=place, hint=hint)


def may_be_object(uri: Uri) -> bool:
    """True if storage may hold an object of this key; of file://, beside the files and folders that are there now."""
    names = uri.key.split("/")
    if len(uri.key.encode()) > MOST_KEY_BYTES or _NO_KEY.search(uri.key):
        return False
    if uri.scheme != "file":
        return True
    above = (f"/{'/'.join(names[:count])}" for count in range(1, len(names)))
    is_taken = is_dir(f"/{uri.key}", as_absent) or any(
        exists(path, as_absent, follow_links=False) and not is_dir(path, as_absent) for path in above
    )
    return not is_taken and max(len(name.encode()) for name in names) <= MOST_NAME_BYTES


def summarize_error(text: str) -> str:
    """Return the client's *text* of an error for people: of an answer in XML its code and message, of HTML nothing.

    The client's own source code, ids of requests, and what S3 has signed are left out.
    """
    text = text.partition("\n\nDebug source:")[0]
    prefix, markup, answer = _MARKUP.split(text, maxsplit=1) if _MARKUP.search(text) else (text, "", "")
    parts = [html.unescape(match[1]) for match in (_CODE.search(answer), _MESSAGE.search(answer)) if match]
    words = " ".join(f"{prefix}{': '.join(parts)}".split()) if markup else " ".join(text.split())
    words = words.rstrip(": ")
    if len(words) <= REASON_CHARACTERS:
        return words.rstrip(".")
    return f"{words[:REASON_CHARACTERS].rpartition(' ')[0] or words[:REASON_CHARACTERS]} ..."


class UnreadableError(PlatformError):
    """A file of this host cannot be read to its end. `has_changed`: it is another by now. `is_gone`: it is removed."""

    def __init__(self, message: str, *, has_changed: bool = False, is_gone: bool = False) -> None:
        super().__init__(message)
        self.has_changed, self.is_gone = has_changed, is_gone


class StorageRefusedError(PlatformError):
    """Another try would end the same: access is refused, or the object cannot be what it is to be."""


class ReplacedError(StorageRefusedError):
    """The object is another than the one that was found."""


class _MissingError(UserError):
    """There is no such object or bucket."""


def _object(meta: Mapping[str, Any]) -> StoredObject:
    changed = meta.get("last_modified")
    changed_ns = 0 if changed is None else round(changed.timestamp() * 1e6) * 1000
    return StoredObject(key=meta["path"], size_bytes=meta["size"], tag=meta.get("e_tag") or "", changed_ns=changed_ns)


def _open(uri: Uri, environ: Mapping[str, str], timeout_s: float) -> "ObjectStore":
    from obstore import store

    if uri.scheme == "file":
        return store.LocalStore("/")
    # The time of a request has a bound: a piece of 8 MiB needs 30 s at 0.3 MB/s.
    limit = timedelta(seconds=timeout_s)
    options: Any = {
        "connect_timeout": timedelta(seconds=min(timeout_s, 5.0)),
        "read_timeout": timedelta(seconds=min(timeout_s, 20.0)),
        "timeout": limit,
        "allow_http": _is_plain(environ),
    }
    retry: Any = {"max_retries": 10, "retry_timeout": limit, "backoff": {"max_backoff": timedelta(seconds=5)}}
    if uri.scheme == "s3":
        return store.S3Store(uri.bucket, client_options=options, retry_config=retry, config=_s3(environ))
    if uri.scheme == "gs":
        return store.GCSStore(uri.bucket, client_options=options, retry_config=retry)
    return store.AzureStore(uri.bucket, client_options=options, retry_config=retry)


def _is_plain(environ: Mapping[str, str]) -> bool:
    """True if an endpoint in *environ* is asked for without TLS."""
    names = (*_S3_ENDPOINTS, "S3_ENDPOINT_URL", "GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    emulated = environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true")
    return emulated or any(environ.get(name, "").startswith("http://") for name in names)


def _s3(environ: Mapping[str, str]) -> Any:
    """Return what obstore does not read itself: sagemaker-training's names, and the profile of a person."""
    config: dict[str, str] = {}
    if environ.get("S3_ENDPOINT_URL") and not any(environ.get(name) for name in _S3_ENDPOINTS):
        config["endpoint"] = environ["S3_ENDPOINT_URL"]
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if region:
        config["region"] = region
    sources = ("AWS_ACCESS_KEY_ID", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if not any(environ.get(name) for name in (*sources, "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE")):
        config |= _profile(environ)
    return config


def _profile(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the keys in ~/.aws/credentials under AWS_PROFILE (else "default"), {} without any."""
    home = environ.get("HOME", "")
    file = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/.aws/credentials")
    try:
        content = files.read(file)
    except OSError:
        return {}  # It is not there, or another user's; then storage refuses us.
    import configparser

    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(content.decode("utf-8"), str(file))
        section = parser[environ.get("AWS_PROFILE") or "default"]
    except (KeyError, ValueError, configparser.Error):
        return {}
    names = ("access_key_id", "secret_access_key", "session_token")
    return {name: section[f"aws_{name}"] for name in names if section.get(f"aws_{name}")}
