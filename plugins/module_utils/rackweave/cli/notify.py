"""Tell people, by webhook and mail. Addresses and secrets come from the environment and are never shown."""

from __future__ import annotations

import http.client
import json
import smtplib
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import EmailMessage

from ..errors import DocumentError

TIMEOUT_S = 15.0
# Of the environment; the names that hold secrets have no default anywhere.
WEBHOOK_URL = "RACKWEAVE_WEBHOOK_URL"
MAIL = {
    "to": "RACKWEAVE_MAIL_TO",
    "sender": "RACKWEAVE_MAIL_FROM",
    "host": "RACKWEAVE_MAIL_HOST",
    "port": "RACKWEAVE_MAIL_PORT",
    "user": "RACKWEAVE_MAIL_USER",
    "password": "RACKWEAVE_MAIL_PASSWORD",
}


@dataclass(frozen=True)
class Notices:
    """Where notices go; empty texts mean nowhere. Secrets are left out of ``repr``, so no trace shows them."""

    webhook: str = field(default="", repr=False)
    to: str = ""
    sender: str = ""
    host: str = ""
    port: int = 587
    user: str = ""
    password: str = field(default="", repr=False)

    def ways(self) -> list[str]:
        """Which ways are set up, in words without an address."""
        return [name for name, value in (("webhook", self.webhook), ("mail", self.to)) if value]

    def send(self, subject: str, text: str) -> list[str]:
        """Send a notice every way that is set up; return what went wrong, without any secret in it.

        Whatever goes wrong is returned: a notice must not end the operation that it tells of.
        """
        # A subject is one line, and half of a surrogate pair (JSON can spell one) cannot be sent.
        subject, text = " ".join(_sendable(subject).split()), _sendable(text)
        problems = []
        if self.webhook:
            problems += _post(self.webhook, subject, text)
        if self.to:
            problems += self._mail(subject, text)
        return problems

    def _mail(self, subject: str, text: str) -> list[str]:
        message = EmailMessage()
        try:
            message["Subject"], message["From"], message["To"] = subject, self.sender, self.to
            message.set_content(text)
            with smtplib.SMTP(self.host, self.port, timeout=TIMEOUT_S) as server:
                if self.user:
                    server.starttls(context=ssl.create_default_context())
                    server.login(self.user, self.password)
                server.send_message(message)
        except (OSError, ValueError, smtplib.SMTPException) as error:
            return [f"mail could not be sent ({type(error).__name__})"]
        return []


def notices_from(environment: Mapping[str, str]) -> Notices:
    """Read where notices go.

    Raises:
        DocumentError: if mail is half set up, or the webhook is no http(s) address (which is not repeated).
    """
    webhook = environment.get(WEBHOOK_URL, "")
    if webhook and not _is_web_address(webhook):
        raise DocumentError(f"{WEBHOOK_URL} must be an http or https address with the name of a host (it is not shown)")
    values = {name: environment.get(variable, "") for name, variable in MAIL.items()}
    if values["to"] and not (values["sender"] and values["host"]):
        raise DocumentError(f"{MAIL['to']} is set, so {MAIL['sender']} and {MAIL['host']} must be set too")
    if values["user"] and not values["password"]:
        raise DocumentError(f"{MAIL['user']} is set, so {MAIL['password']} must be set too")
    port = values.pop("port") or "587"
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
        raise DocumentError(f"{MAIL['port']} must be a number from 1 to 65535, not {port!r}")
    for name in ("to", "sender", "host"):
        if any(character.isspace() and character != " " for character in values[name]):
            raise DocumentError(f"{MAIL[name]} must be one line")
    return Notices(webhook=webhook, port=int(port), **values)


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _is_web_address(text: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(text)
        named = bool(parts.hostname) and parts.port != 0  # .port refuses what is no port
    except ValueError:
        return False
    return named and parts.scheme in ("http", "https") and text.isprintable() and " " not in text


def _post(url: str, subject: str, text: str) -> list[str]:
    body = json.dumps({"subject": subject, "text": f"{subject}\n{text}"}).encode()
    try:
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"}, method="POST")
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            return []
    except urllib.error.HTTPError as error:
        return [f"the webhook answered with status {error.code}"]
    except (OSError, ValueError, http.client.HTTPException) as error:
        return [f"the webhook could not be reached ({type(error).__name__})"]
