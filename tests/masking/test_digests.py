import json

import msgspec
import pytest

from toolkit.log import Log
from toolkit.masking.digests import Digests, encoded
from toolkit.masking.text import MASK
from toolkit.records import decode


def log_without_the_values(**values: str) -> Log:
    """Return a log that has only the digests of what another one hides."""
    knows, log = Log(), Log()
    knows.hide(values)
    digests = knows.digests()
    assert digests is not None
    content = encoded(digests)
    assert not any(value.encode() in content for value in values.values())
    log.hide_digests(decode(content, Digests, "here"))
    return log


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("the token hunter2hunter2", f"the token {MASK}"),
        ("key=hunter2hunter2, next", f"key={MASK}, next"),
        ("['hunter2hunter2', \"it's two+words\"]", f"['{MASK}', \"{MASK}\"]"),
        ("q?k=it%27s%20two%2Bwords&n=1", f"q?k={MASK}&n=1"),
        (json.dumps({"a": json.dumps("it's two+words")}), '{"a": "\\"' + MASK + '\\""}'),
        ("b'hunter2hunter2'", f"b'{MASK}'"),
        ("aHVudGVyMmh1bnRlcjI= is its base64", f"{MASK}= is its base64"),
        ("hex 68756e7465723268756e74657232.", f"hex {MASK}."),
        ("xhunter2hunter2 is another word", "xhunter2hunter2 is another word"),
        ("", ""),
    ],
)
def test_a_secret_is_masked_by_its_digest_where_it_stands_alone(text: str, masked: str) -> None:
    log = log_without_the_values(API_KEY="hunter2hunter2", DB_PASSWORD="it's two+words")

    assert log.mask(text) == masked


def test_two_files_of_one_secret_share_no_digest() -> None:
    log = Log()
    assert log.digests() is None

    log.hide({"API_KEY": "hunter2hunter2"})

    first, second = log.digests(), log.digests()
    assert first is not None
    assert second is not None
    assert set(first.digests).isdisjoint(second.digests)
    assert msgspec.json.decode(encoded(first), type=Digests) == first
