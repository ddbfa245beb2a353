"""Sends a message: three tries, each of 5 s. It blocks, so it runs in a fork of `train`."""

import os
import threading
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from toolkit.records import encode
from toolkit.train.notify.message import EXTRA, Form, Message, make_body

TRY_S = 5.0
PAUSES_S = (0.5, 1.0)  # Between the tries.
WHOLE_S = 3 * TRY_S + 3.0  # A server that answers a byte a second is not waited for longer.


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the message would go to a host that nobody named, and urllib would ask it by GET."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


def send(address: str, form: Form, message: Message) -> str:
    """Send *message* to *address*; return "", or why it did not arrive."""
    guard = threading.Timer(WHOLE_S, os._exit, (1,))
    guard.daemon = True
    guard.start()
    post = _post_by_apprise if form == "apprise" else _post
    return try_again(lambda: post(address, form, message), threading.Event().wait)


def try_again(post: Callable[[], tuple[str, bool]], wait: Callable[[float], object]) -> str:
    """Call *post*, again after a pause if it says (why it failed, whether another try may help); return why it failed
    at last, "" if it did not."""
    for pause_s in (*PAUSES_S, None):
        trouble, may_help = post()
        if not trouble or not may_help or pause_s is None:
            return trouble
        wait(pause_s)
    raise AssertionError  # The loop returns at its last pause.


def _post(address: str, form: Form, message: Message) -> tuple[str, bool]:
    headers = {"Content-Type": "application/json", "User-Agent": "container-training-toolkit"}
    parts = urlsplit(address)
    if "@" in parts.netloc:  # urllib takes https://USER:PASSWORD@HOST for the name of a host.
        user, _, host = parts.netloc.rpartition("@")
        headers["Authorization"] = f"Basic {b64encode(unquote_to_bytes(user)).decode()}"
        address = parts._replace(netloc=host).geturl()
    request = urllib.request.Request(address, encode(make_body(message, form)), headers, method="POST")  # noqa: S310
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TRY_S):
            return "", False
    except urllib.error.HTTPError as error:
        if 300 <= error.code < 400:
            return f"the server answers {error.code}, a redirect, which is not followed: name the address itself", False
        return f"the server answers {error.code} {error.reason}", error.code >= 500 or error.code in (408, 429)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return f"the server does not answer: {getattr(reason, 'strerror', None) or reason}", True
    except Exception as error:  # noqa: BLE001 - http.client's own
        return f"the server's answer is no HTTP ({type(error).__name__})", True


def _post_by_apprise(address: str, _form: Form, message: Message) -> tuple[str, bool]:
    try:
        from apprise import Apprise
    except ImportError as error:
        return f"it needs the package apprise, which cannot be imported ({error}): {EXTRA}", False
    service = Apprise()
    if not service.add(address):
        return "apprise does not know this address (https://appriseit.com/services)", False
    body = make_body(message, "json")
    text = "\n".join((body["text"].partition("\n")[2], *message.last_lines))
    return ("", False) if service.notify(title=message.title, body=text) else ("apprise could not send it", True)
