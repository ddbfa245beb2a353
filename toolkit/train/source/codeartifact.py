"""The package index of AWS CodeArtifact that CA_REPOSITORY_ARN names: pip gets packages from there alone.

A user who names a private repository must not get packages of the same names from the public index. So pip and uv read
no other configuration, and requirements that name another index are refused. botocore signs the two requests; AWS's
images have it. The token never stands on a command line, and the log masks it.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkit.errors import PlatformError, ToolkitError, UserError
from toolkit.masking.excerpt import beginning
from toolkit.patterns import lazy
from toolkit.records import Record

VARIABLE = "CA_REPOSITORY_ARN"
_ARN = lazy(
    r"arn:(?P<partition>aws[a-z-]*):codeartifact:(?P<region>[a-z0-9-]+):(?P<account>\d{12}):repository/"
    r"(?P<domain>[a-z][a-z0-9-]{1,49})/(?P<repository>[A-Za-z0-9][A-Za-z0-9._-]{1,99})"
)
_EXPECTED = "arn:aws:codeartifact:REGION:ACCOUNT:repository/DOMAIN/REPOSITORY"
# pip's options that name another index, as pip 25 takes them in a requirements file, abbreviated or not.
_INDEX = lazy(r"(?:-i|--index-u\S*|--pypi-u\S*|--extra-i\S*)(?:[\s=]|$)|(?:-f|--find-l\S*)[\s=]*\w+://")
# pip's options, by their long names, which CA_REPOSITORY_ARN replaces.
INDEX_OPTIONS = ("index-url", "extra-index-url", "find-links", "no-index")
_OTHERS = (
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_NO_INDEX",
    "UV_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_CONFIG_FILE",
)
# A token for as long as pip may take (the service's least is 15 minutes).
TOKEN_S = 3600


class Index(Record, frozen=True, kw_only=True):
    """An index of packages: its URL, which holds the secret *token*."""

    url: str
    token: str


def check(arn: str, lines: Iterator[tuple[Path, str]]) -> None:
    """Check *arn*, and that no line of the requirements, with its file, names another index.

    Raises:
        UserError: one is wrong.
    """
    _parsed(arn)
    for file, line in lines:
        if _INDEX.match(line):
            raise UserError(
                f"expected packages from the repository in {VARIABLE} alone, found another index: "
                f"{beginning(line, 200)}",
                where=str(file),
                hint=f"Remove the line, or unset {VARIABLE}.",
            )


def index(arn: str) -> Index:
    """Return the index of the repository *arn*, with a new token.

    Raises:
        UserError: there is no such repository, or botocore is missing.
        PlatformError: the service cannot be reached, or refuses.
    """
    parts = _parsed(arn)
    try:
        import botocore.exceptions
        import botocore.session
        from botocore.config import Config
    except ImportError as error:
        message = f"needs the package botocore, which cannot be imported ({error})"
        hint = "Install it in the image: pip install 'container-training-toolkit[codeartifact]'"
        raise UserError(message, where=VARIABLE, hint=hint) from None
    config = Config(connect_timeout=5, read_timeout=20, retries={"max_attempts": 4, "mode": "standard"})
    owner = {"domain": parts["domain"], "domainOwner": parts["account"]}
    try:
        client = botocore.session.Session().create_client("codeartifact", region_name=parts["region"], config=config)
        token = client.get_authorization_token(**owner, durationSeconds=TOKEN_S)["authorizationToken"]
        request = {**owner, "repository": parts["repository"], "format": "pypi"}
        endpoint = client.get_repository_endpoint(**request)["repositoryEndpoint"]
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        raise _told(error, arn) from None
    scheme, _, rest = endpoint.partition("://")
    return Index(url=f"{scheme}://aws:{token}@{rest.rstrip('/')}/simple/", token=token)


def environ_of(environ: Mapping[str, str], package_index: Index) -> dict[str, str]:
    """Return pip's environment: *environ* with *package_index* as the only index."""
    inherited = {name: value for name, value in environ.items() if name not in _OTHERS}
    return {
        **inherited,
        "PIP_INDEX_URL": package_index.url,
        "UV_DEFAULT_INDEX": package_index.url,
        "UV_INDEX_URL": package_index.url,
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_CONFIG": "1",
    }


def _parsed(arn: str) -> dict[str, str]:
    match = _ARN.fullmatch(arn)
    if match is None:
        raise UserError(f"expected {_EXPECTED}, found {arn!r}", where=VARIABLE)
    return match.groupdict()


def _told(error: Exception, arn: str) -> ToolkitError:
    response: dict[str, Any] = getattr(error, "response", {})
    code = response.get("Error", {}).get("Code", "")
    if code == "ResourceNotFoundException":
        return UserError(f"there is no such repository ({error})", where=f"{VARIABLE}={arn}", hint="Correct the ARN.")
    hint = (
        "Check the network, the credentials (the role of the instance or container) and their rights:"
        " codeartifact:GetAuthorizationToken, codeartifact:GetRepositoryEndpoint, codeartifact:ReadFromRepository and"
        " sts:GetServiceBearerToken."
    )
    return PlatformError(f"no token came from AWS CodeArtifact: {error}", where=f"{VARIABLE}={arn}", hint=hint)
