"""Packages from AWS CodeArtifact: a stand-in for its API and for the repository, which asks for the token."""

import base64
import http.server
import json
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.servers import BED
from tests.train.base import Base

pytestmark = pytest.mark.storage
ARN = "arn:aws:codeartifact:eu-central-1:123456789012:repository/my-domain/my-repo"
TOKEN = "eyJ2ZXIiOjEsImlzdSI6MTczfQ-token-of-the-test"


class Repository:
    """The service at `address`. `asked`: the requests that came, as "METHOD path". `refuses`: a status for each."""

    def __init__(self, wheel: Path) -> None:
        self.asked: list[str] = []
        self.signed: list[str] = []
        self.refuses = 0
        repository = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                repository.asked.append(f"{self.command} {self.path}")
                status, content = repository.answer(self.path, self.headers.get("Authorization") or "")
                self.send_response(status)
                self.send_header("Content-Type", "text/html" if "simple" in self.path else "application/json")
                self.send_header("Content-Length", str(len(content)))
                if status == 404:
                    self.send_header("x-amzn-ErrorType", "ResourceNotFoundException")
                if status == 401:
                    self.send_header("WWW-Authenticate", "Basic")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_POST = do_HEAD = do_GET  # noqa: N815 - the names of http.server

            def log_message(self, *_: object) -> None:
                pass

        self._wheel = wheel
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        if path.startswith("/v1/"):
            self.signed.append(authorization)
            if self.refuses:
                return self.refuses, b'{"message": "no"}'
            if path.startswith("/v1/authorization-token?"):
                return 200, json.dumps({"authorizationToken": TOKEN, "expiration": 2e9}).encode()
            return 200, json.dumps({"repositoryEndpoint": f"{self.address}/pypi/my-repo/"}).encode()
        if authorization != "Basic " + base64.b64encode(f"aws:{TOKEN}".encode()).decode():
            return 401, b""
        if path == "/pypi/my-repo/simple/some-name-of-ours/":
            return 200, f'<a href="/pypi/my-repo/files/{self._wheel.name}">{self._wheel.name}</a>'.encode()
        if path.endswith(self._wheel.name):
            return 200, self._wheel.read_bytes()
        return 404, b""


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    if not (BED / ".ready").exists():
        pytest.skip("needs the test bed .beds/storage (scripts/beds/storage), for its botocore")
    wheel = tmp_path / "some_name_of_ours-1.0-py3-none-any.whl"
    info = "some_name_of_ours-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("some_name_of_ours.py", "WORD = 'ours'\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: some-name-of-ours\nVersion: 1.0\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", f"some_name_of_ours.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    server = Repository(wheel)
    yield server
    server.close()


def environ(repository: Repository, tmp_path: Path) -> dict[str, str]:
    (botocore,) = (BED / "lib").glob("python3.*/site-packages")
    return {
        "CA_REPOSITORY_ARN": ARN,
        "AWS_ENDPOINT_URL_CODEARTIFACT": repository.address,
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
        "PYTHONPATH": str(botocore),
        "PIP_TARGET": str(tmp_path / "installed"),
        "PIP_EXTRA_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
    }


def test_requirements_come_from_the_repository_and_the_token_stays_secret(
    base: Base, repository: Repository, tmp_path: Path
) -> None:
    base.program("print('ran')\n")
    (base.code / "requirements.txt").write_text("some-name-of-ours\n")

    done = base.train(environ(repository, tmp_path))

    assert (done.status, done.stdout.splitlines()[-1]) == (0, b"ran"), done
    assert (tmp_path / "installed/some_name_of_ours.py").exists()
    assert f"[toolkit] packages are installed from {ARN} alone" in done.log
    assert repository.asked[0].startswith("POST /v1/authorization-token?")
    assert "domain=my-domain" in repository.asked[0]
    assert "domain-owner=123456789012" in repository.asked[0]
    assert all(header.startswith("AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/") for header in repository.signed)
    assert TOKEN not in done.log


def test_a_package_that_the_repository_lacks_fails_without_another_index(
    base: Base, repository: Repository, tmp_path: Path
) -> None:
    base.program("print('ran')\n")
    (base.code / "requirements.txt").write_text("six\n")

    done = base.train(environ(repository, tmp_path))

    assert done.status != 0
    assert done.failure is not None
    assert done.failure.startswith("InstallRequirementsError:")
    assert "127.0.0.1:9" not in done.log
    written = b"".join(path.read_bytes() for path in base.output.rglob("*") if path.is_file())
    assert TOKEN not in done.log
    assert TOKEN.encode() not in written


@pytest.mark.parametrize(
    "line",
    ["--extra-index-url https://other.example/simple", "-i https://other.example/simple", "--index-url=https://x/"],
)
def test_requirements_with_another_index_end_the_job_with_78(
    base: Base, repository: Repository, tmp_path: Path, line: str
) -> None:
    base.program("print('ran')\n")
    (base.code / "requirements.txt").write_text("-r more.txt\n")
    (base.code / "more.txt").write_text(f"some-name-of-ours\n{line}\n")

    done = base.train(environ(repository, tmp_path))

    assert (done.status, done.stdout, repository.asked) == (78, b"", [])
    assert done.failure is not None
    assert f"found another index: {line}" in done.failure


@pytest.mark.parametrize(("status", "code"), [(404, 78), (403, 75), (400, 75)])
def test_a_service_that_refuses_ends_the_job_before_pip(
    base: Base, repository: Repository, tmp_path: Path, status: int, code: int
) -> None:
    base.program("print('ran')\n")
    (base.code / "requirements.txt").write_text("some-name-of-ours\n")
    repository.refuses = status

    done = base.train(environ(repository, tmp_path))

    assert (done.status, done.stdout) == (code, b""), done
    assert done.failure is not None
    assert f"CA_REPOSITORY_ARN={ARN}: " in done.failure


def test_a_wrong_arn_is_named(base: Base, repository: Repository, tmp_path: Path) -> None:
    base.program("print('ran')\n")
    (base.code / "requirements.txt").write_text("some-name-of-ours\n")

    done = base.train({**environ(repository, tmp_path), "CA_REPOSITORY_ARN": "arn:aws:s3:::bucket"})

    assert done.status == 78
    assert "CA_REPOSITORY_ARN: expected arn:aws:codeartifact:REGION:ACCOUNT:repository/" in (done.failure or "")


def test_a_job_with_nothing_to_install_asks_nobody(base: Base, repository: Repository, tmp_path: Path) -> None:
    base.program("print('ran')\n")

    done = base.train(environ(repository, tmp_path))

    assert (done.status, done.stdout, repository.asked) == (0, b"ran\n", [])


@pytest.mark.skipif(not Path(sys.executable).with_name("uv").exists(), reason="needs uv beside this interpreter")
def test_uv_gets_packages_from_codeartifact_alone(
    base: Base,
    repository: Repository,
    tmp_path: Path,
) -> None:
    (botocore,) = (BED / "lib").glob("python3.*/site-packages")
    modules = tmp_path / "modules"  # Without what says that they are packages, which uv would not see.
    modules.mkdir()
    for path in botocore.iterdir():
        if path.suffix != ".dist-info":
            (modules / path.name).symlink_to(path)
    base.program("print('ran')\n")
    (base.code / "requirements.txt").write_text("some-name-of-ours\n")
    (base.folder / "uv.toml").write_text('[[index]]\nurl = "http://127.0.0.1:9/simple"\n')
    variables = {**environ(repository, tmp_path), "PYTHONPATH": str(modules), "TOOLKIT_INSTALLER": "uv"}

    done = base.train({**variables, "UV_CONFIG_FILE": str(base.folder / "uv.toml")})

    assert (done.status, done.stdout.splitlines()[-1]) == (0, b"ran"), done
    assert (tmp_path / "installed/some_name_of_ours.py").exists()
    assert TOKEN not in done.log
    assert f"packages are installed from {ARN} alone" in done.log
