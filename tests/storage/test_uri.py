from pathlib import Path

import msgspec
import pytest

from toolkit.errors import UserError
from toolkit.storage.uri import check_outside, is_remote, parse


@pytest.mark.parametrize(
    ("text", "scheme", "bucket", "key"),
    [
        ("s3://bucket/a/b.tar.gz", "s3", "bucket", "a/b.tar.gz"),
        ("s3://bucket", "s3", "bucket", ""),
        ("gs://bucket/a/", "gs", "bucket", "a"),
        ("az://container/with space/ü", "az", "container", "with space/ü"),
        ("file:///mnt/checkpoints", "file", "", "mnt/checkpoints"),
    ],
)
def test_a_uri_has_a_bucket_and_a_key(text: str, scheme: str, bucket: str, key: str) -> None:
    location = parse(text)

    assert (location.scheme, location.bucket, location.key) == (scheme, bucket, key)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("/mnt/x", "found '/mnt/x'"),
        ("s3:/bucket/x", "found 's3:/bucket/x'"),
        ("s3:///x", "found 's3:///x'"),
        ("file://host/x", "found 'file://host/x'"),
        ("s4://bucket/x", "found 's4://bucket/x'"),
        ("s3://bucket/a/../b", "without empty parts"),
        ("s3://bucket/a//b", "without empty parts"),
        ("file:///mnt/\udcff", "a URI of UTF-8, found 'file:///mnt/"),
    ],
)
def test_anything_else_is_refused(text: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text, "TOOLKIT_CHECKPOINT_URI")

    assert says in str(caught.value)
    assert str(caught.value).startswith("TOOLKIT_CHECKPOINT_URI: expected ")


def test_a_path_is_not_remote() -> None:
    assert [is_remote(uri) for uri in ("s3://b/k", "gs://b", "az://c/k", "file:///x", "/s3://x", "s3")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/stored", "link/stored", "checkpoints/../checkpoints/x"])
def test_a_place_in_the_folder_that_is_stored_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "link").symlink_to("checkpoints")
    uri = msgspec.structs.replace(parse("file:///x"), key=f"{tmp_path}/{place}".lstrip("/"))

    with pytest.raises(UserError, match="outside the checkpoint folder"):
        check_outside(uri, tmp_path / "checkpoints", "TOOLKIT_CHECKPOINT_URI")


def test_a_folder_inside_its_own_storage_is_refused_and_places_beside_it_are_not(tmp_path: Path) -> None:
    uri = parse(f"file://{tmp_path}/stored")

    with pytest.raises(UserError, match="outside the checkpoint folder"):
        check_outside(uri, tmp_path / "stored/hosts/0/checkpoints", "")
    for folder in (tmp_path / "stored/checkpoints", tmp_path / "stored-not"):
        check_outside(uri, folder, "")
    check_outside(parse("s3://bucket/x"), tmp_path, "")
