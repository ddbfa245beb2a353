"""Pure: the message of an event, and its form for the address that gets it."""

from collections.abc import Callable, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from toolkit.errors import UserError
from toolkit.job.cause import Cause
from toolkit.job.explanation import Explanation, LogLine, choose_action, describe_culprit, make_document, write_text
from toolkit.job.outcome import Outcome
from toolkit.records import Record

SETTING = "TOOLKIT_NOTIFY"
SCHEMA_VERSION = 1
Event = Literal["end", "hang", "restart", "finding"]
Form = Literal["json", "slack", "teams", "apprise"]
# Slack's incoming webhooks (https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks), and those of
# Teams: connectors and Power Automate's workflows, which take the same cards
# (https://learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors, seen 2026-11).
SLACK = ("hooks.slack.com", "hooks.slack-gov.com")
TEAMS = (".webhook.office.com", ".logic.azure.com", ".api.powerplatform.com", ".logic.azure.us")
EXTRA = "pip install 'container-training-toolkit[notify]'"
MOST_LINES, MOST_LINE = 10, 300


class Message(Record, frozen=True, kw_only=True):
    """An event of a job, with secrets masked. `last_lines`: of the traceback, or of the output."""

    event: Event
    explanation: Explanation
    last_lines: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The message in a line."""
        state = self.explanation.state if self.event == "end" else self.event
        return f"{self.explanation.job}: {state}"


def form_of(address: str) -> Form:
    """Return the form in which *address* takes messages.

    Raises:
        UserError: it is none. The error does not show it, since it may be a secret.
    """
    scheme, separator, rest = address.partition("://")
    expected = "expected https://HOST/PATH, or an address of apprise (mailtos://..., ntfys://..., pushover://...)"
    if not separator or not scheme.isascii() or not scheme.replace("+", "").isalnum() or not rest.strip("/"):
        raise UserError(f"{expected}, found no address", where=SETTING)
    if scheme.lower() not in ("http", "https"):
        return "apprise"
    try:
        parts = urlsplit(address)
        host, _ = (parts.hostname or "").lower(), parts.port
    except ValueError as error:
        raise UserError(f"{expected}, found a damaged one ({error})", where=SETTING) from None
    if not host or not address.isascii() or any(letter.isspace() for letter in address):
        raise UserError(f"{expected}, found one without a host, or with other letters than ASCII's", where=SETTING)
    if host in SLACK:
        return "slack"
    return "teams" if f".{host}".endswith(TEAMS) else "json"


def check_package(form: Form) -> None:
    """Check that the package that *form* needs is installed.

    Raises:
        UserError: it is not.
    """
    if form != "apprise":
        return
    from importlib.util import find_spec

    if find_spec("apprise") is None:
        message = "an address that is not https:// needs the package apprise, which is not installed"
        raise UserError(message, where=SETTING, hint=f"Install it in the image: {EXTRA}")


def make_body(message: Message, form: Form) -> dict[str, Any]:
    """Return the JSON document to post."""
    text = write_text(message.explanation)
    lines = "\n".join(message.last_lines)
    if form == "slack":
        escaped = f"{text}\n{lines}".strip().replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return {"text": f"*{message.title}*\n```{escaped}```"}
    if form == "teams":
        blocks: list[dict[str, Any]] = [{"type": "TextBlock", "text": message.title, "weight": "Bolder", "wrap": True}]
        blocks += [{"type": "TextBlock", "text": line, "wrap": True} for line in text.splitlines()[1:]]
        if lines:
            blocks.append({"type": "TextBlock", "text": lines, "fontType": "Monospace", "wrap": True})
        card = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": blocks,
        }
        kind = "application/vnd.microsoft.card.adaptive"
        return {"type": "message", "attachments": [{"contentType": kind, "contentUrl": None, "content": card}]}
    return {
        "schema_version": SCHEMA_VERSION,
        "event": message.event,
        "job": message.explanation.job,
        "text": text,
        "why": make_document(message.explanation),
        "last_lines": list(message.last_lines),
    }


def describe_end(outcome: Outcome, job: str, folder: str, document: bytes) -> Message:
    """Return the message of a job's end. *outcome* is masked; *document* is outcome.json in *folder*, b"": none."""
    cause = outcome.cause
    offset = document.find(b'"message"')
    first = next(iter(cause.message.splitlines()), "")
    evidence = LogLine(text=first[:MOST_LINE], file="outcome.json", offset_bytes=offset) if offset >= 0 else None
    succeeded = outcome.status == "succeeded"
    explanation = Explanation(
        job=job,
        folder=folder,
        state=outcome.status,
        exit_code=outcome.exit_code,
        kind=cause.kind,
        blame=cause.blame,
        cause="The job ended with 0." if succeeded else cause.message or outcome.plugin_failure_text,
        next_action=choose_action(outcome.status, outcome.exit_code, cause),
        culprit="" if outcome.status != "failed" else describe_culprit(cause, outcome.cause_host),
        host=outcome.cause_host if outcome.status == "failed" else "",
        rank=cause.rank,
        evidence=None if succeeded else evidence,
        healthy=f"this host {outcome.this_host_end}" if outcome.this_host_end.startswith("was ") else "",
        look=(f"toolkit why {folder}", f"toolkit report {folder}"),
    )
    return Message(event="end", explanation=explanation, last_lines=list_last_lines(cause))


def list_last_lines(cause: Cause) -> tuple[str, ...]:
    """Return the last lines of the traceback of *cause*, else of what its process said last."""
    lines = (cause.traceback.strip() or cause.message).splitlines()[-MOST_LINES:]
    return tuple(line[:MOST_LINE] for line in lines)


def masked(message: Message, mask: Callable[[str], str]) -> Message:
    """Return *message* with *mask* applied to its texts."""
    explanation = message.explanation
    texts: Mapping[str, str] = {
        name: mask(getattr(explanation, name)) for name in ("cause", "next_action", "culprit", "healthy")
    }
    return msgspec.structs.replace(
        message,
        explanation=msgspec.structs.replace(explanation, **texts),
        last_lines=tuple(map(mask, message.last_lines)),
    )
