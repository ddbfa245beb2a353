"""The form of a message is that of the host that gets it, and no address is shown in an error."""

import json

import pytest

from toolkit.errors import UserError
from toolkit.job.cause import Cause
from toolkit.job.explanation import Explanation
from toolkit.train.notify.message import MOST_LINE, MOST_LINES, Message, form_of, list_last_lines, make_body

MESSAGE = Message(
    event="end",
    explanation=Explanation(job="vit", state="failed", exit_code=1, cause="ValueError: <a> & b"),
    last_lines=("Traceback", "ValueError: <a> & b"),
)


@pytest.mark.parametrize(
    ("address", "form"),
    [
        ("https://example.com/hook", "json"),
        ("http://127.0.0.1:8080/", "json"),
        ("https://hooks.slack.com/services/T0/B0/x", "slack"),
        ("https://HOOKS.SLACK.COM/services/T0/B0/x", "slack"),
        ("https://hooks.slack-gov.com/services/x", "slack"),
        ("https://hooks.slack.com.example.com/x", "json"),
        ("https://contoso.webhook.office.com/webhookb2/x", "teams"),
        ("https://prod-01.westeurope.logic.azure.com:443/workflows/x?sig=y", "teams"),
        ("https://x.99.environment.api.powerplatform.com/powerautomate/x", "teams"),
        ("https://notwebhook.office.com.example.com/x", "json"),
        ("mailtos://user:pass@example.com", "apprise"),
        ("ntfys://topic", "apprise"),
    ],
)
def test_the_host_decides_the_form(address: str, form: str) -> None:
    assert form_of(address) == form


@pytest.mark.parametrize(
    "address",
    [
        "s3cret",
        "://s3cret",
        "https://",
        "https://:s3cret@/x",
        "https://[s3cret/x",
        "https://a b/s3cret",
        "https://h:99999/s3cret",
    ],
)
def test_what_is_no_address_is_refused_without_being_shown(address: str) -> None:
    with pytest.raises(UserError) as error:
        form_of(address)

    assert "TOOLKIT_NOTIFY: expected https://HOST/PATH" in str(error.value)
    assert "s3cret" not in str(error.value)


def test_slack_gets_a_text_with_its_three_letters_escaped() -> None:
    body = make_body(MESSAGE, "slack")

    assert list(body) == ["text"]
    assert body["text"].startswith("*vit: failed*\n```vit: FAILED, exit code 1\n")
    assert "ValueError: &lt;a&gt; &amp; b" in body["text"]
    assert "<a>" not in body["text"]


def test_teams_gets_an_adaptive_card() -> None:
    [attachment] = make_body(MESSAGE, "teams")["attachments"]

    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    texts = [block["text"] for block in attachment["content"]["body"]]
    assert texts == ["vit: failed", "Cause: ValueError: <a> & b", "Traceback\nValueError: <a> & b"]


def test_others_get_the_answer_of_why_beside_its_text() -> None:
    body = json.loads(json.dumps(make_body(MESSAGE, "json")))

    assert list(body) == ["schema_version", "event", "job", "text", "why", "last_lines"]
    assert body["why"]["cause"] == "ValueError: <a> & b"
    assert body["text"].splitlines()[1] == "Cause: ValueError: <a> & b"


def test_of_a_long_traceback_the_last_lines_are_told() -> None:
    lines = list_last_lines(Cause(traceback="\n".join("x" * 1000 for _ in range(50)), message="m"))

    assert [len(line) for line in lines] == [MOST_LINE] * MOST_LINES
    assert list_last_lines(Cause(message="a\nb")) == ("a", "b")
