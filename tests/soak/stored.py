"""Reads what the soak's storage holds for a host, past the proxy and without the toolkit's client."""

import hashlib
import json
import urllib.error
import urllib.request

from tests.soak import checkpoints
from tests.storage.servers import S3

# moto answers anonymous requests with 403. It does not check signatures.
SIGNED = "AWS4-HMAC-SHA256 Credential=AKIA/20261127/eu-central-1/s3/aws4_request, SignedHeaders=host, Signature=0"


def read_whole(s3: S3, place: str) -> tuple[set[int], str]:
    """Return the steps of the whole checkpoints at *place*, BUCKET/KEY of a host, and what is wrong, "" if nothing.

    A manifest may be replaced while its parts are read; they stay for one more.
    """
    first_read = _read(s3, f"{place}/manifest.json")
    if first_read is None:
        return set(), ""
    steps, fault = _whole(s3, place, json.loads(first_read))
    if fault and _read(s3, f"{place}/manifest.json") != first_read:
        return read_whole(s3, place)
    return steps, fault


def _whole(s3: S3, place: str, manifest: dict[str, dict[str, dict[str, list[str]]]]) -> tuple[set[int], str]:
    folders: dict[str, dict[str, bytes]] = {}
    for path, file in manifest["files"].items():
        content = b""
        for part in file["parts"]:
            piece = _read(s3, f"{place}/parts/{part}")
            if piece is None:
                return set(), f"{path} has a part that is missing: {part}"
            if hashlib.sha256(piece).hexdigest() != part:
                return set(), f"{path} has a part that is damaged: {part}"
            content += piece
        folder, _, name = path.partition("/")
        folders.setdefault(folder, {})[name] = content
    try:
        return {checkpoints.number(name) for name, files in folders.items() if checkpoints.is_whole(files)}, ""
    except ValueError as error:
        return set(), str(error)


def _read(s3: S3, key: str) -> bytes | None:
    try:
        request = urllib.request.Request(f"{s3.address}/{key}", headers={"Authorization": SIGNED})
        with urllib.request.urlopen(request) as answer:
            content: bytes = answer.read()
        return content
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
