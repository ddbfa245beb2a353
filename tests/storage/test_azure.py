"""az:// against Azurite, which stands in for it: a checkpoint folder goes there and comes back."""

import base64
import hashlib
import hmac
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.storage import servers
from tests.storage.there_and_back import goes_and_comes_back

pytestmark = pytest.mark.storage
ACCOUNT = "devstoreaccount1"
# Azurite's own account, the same everywhere (learn.microsoft.com, "Use the Azurite emulator", seen 2026-11).
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment that leads to a server of Azure's protocol with the container "bucket"."""
    program = servers.BED / "npm/node_modules/.bin/azurite-blob"
    pytest.importorskip("obstore")
    if not program.exists():
        pytest.skip("needs the test bed .beds/storage (scripts/beds/storage), made where npm is")
    port = servers.free_port()
    options = ("--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck")
    with servers.running([str(program), *options, "--silent"], port, tmp_path / "azurite.log"):
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        date = datetime.now(timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
        signed = f"PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:2021-08-06\n"
        signed += f"/{ACCOUNT}/{ACCOUNT}/bucket\nrestype:container"
        mark = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()
        head = {"x-ms-date": date, "x-ms-version": "2021-08-06", "Authorization": f"SharedKey {ACCOUNT}:{mark}"}
        request = urllib.request.Request(f"{endpoint}/bucket?restype=container", method="PUT", headers=head)
        urllib.request.urlopen(request).close()
        names = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY}
        yield {**names, "AZURE_STORAGE_ENDPOINT": endpoint}


def test_checkpoints_in_azures_storage(azure: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in azure.items():
        monkeypatch.setenv(name, value)

    goes_and_comes_back("az://bucket/runs/1", azure, tmp_path)
