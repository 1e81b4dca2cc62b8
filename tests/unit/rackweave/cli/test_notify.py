"""A notice that cannot be sent is a sentence, whatever is wrong with address, server or text; it ends nothing."""

import socket
import threading

import pytest
from rackweave.cli.notify import Notices, notices_from
from rackweave.errors import DocumentError

MAIL = {"RACKWEAVE_MAIL_TO": "a@example.org", "RACKWEAVE_MAIL_FROM": "b@example.org", "RACKWEAVE_MAIL_HOST": "mail"}


@pytest.fixture
def server():
    """Return a function that starts a server which gives one answer to all; it returns the port."""
    listeners = []

    def start(answer):
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return listener.getsockname()[1]

    yield start
    for listener in listeners:
        listener.close()


@pytest.mark.parametrize("answer", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n"])
def test_a_webhook_that_answers_nonsense_is_a_sentence(server, answer):
    (problem,) = Notices(webhook=f"http://127.0.0.1:{server(answer)}/secret").send("subject", "text")
    assert problem.startswith("the webhook ")
    assert "secret" not in problem


@pytest.mark.parametrize("answer", [b"", b"garbage\r\n", b"554 no\r\n"])
@pytest.mark.parametrize(("subject", "text"), [("two\nlines", "text"), ("half \ud800", "of a pair \udfff\x00")])
def test_a_mail_server_that_answers_nonsense_is_a_sentence_whatever_the_notice_says(server, answer, subject, text):
    notices = Notices(to="a@example.org", sender="b@example.org", host="127.0.0.1", port=server(answer))
    (problem,) = notices.send(subject, text)
    assert problem.startswith("mail could not be sent (")


@pytest.mark.parametrize(
    "address", ["ftp://host/", "http://", "https://[::1", "http://host:99999/", "http://host/a b", "http://host/\n"]
)
def test_a_webhook_that_is_no_address_is_refused_and_not_shown(address):
    with pytest.raises(DocumentError, match="RACKWEAVE_WEBHOOK_URL must be") as refused:
        notices_from({"RACKWEAVE_WEBHOOK_URL": address})
    assert address not in str(refused.value)


@pytest.mark.parametrize("port", ["0", "99999", "²", "-1", "smtp", "9" * 5000])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(DocumentError, match="RACKWEAVE_MAIL_PORT must be a number from 1 to 65535"):
        notices_from({**MAIL, "RACKWEAVE_MAIL_PORT": port})


@pytest.mark.parametrize("name", MAIL)
def test_an_address_of_two_lines_is_refused(name):
    with pytest.raises(DocumentError, match=f"{name} must be one line"):
        notices_from({**MAIL, name: "a@example.org\nBcc: everybody@example.org"})
