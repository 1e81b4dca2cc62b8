"""`rackweave operate` around a runner that plays a script: events in, journal, notices and exit status out."""

from __future__ import annotations

import http.server
import io
import json
import os
import signal
import socketserver
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from rackweave.cli import main
from rackweave.cli.notify import Notices, notices_from
from rackweave.cli.playbooks import Gathered, Screen
from rackweave.errors import DocumentError

ROOT = Path(__file__).parents[4]
SECRET = "s3cr3t-token"
DECISION = {
    "action": "retry", "why": "it was killed", "msg": "retry: it was killed", "job_live": False, "completed": False,
    "resubmit": True, "stuck": False, "leave": [], "suspected": [], "drain": {}, "repair": [], "hosts": [],
    "usable": [], "nodes": 0, "shrink": "drained", "rebuild_ok": False, "notify": True,
}  # fmt: skip
DONE = {**DECISION, "action": "observe", "completed": True, "resubmit": False, "notify": False}


class FakeRunner:
    """Has `run` as ansible-runner has it, and sends the events of a script instead of starting Ansible."""

    def __init__(self, state, *rounds):
        self.state, self.rounds, self.calls = str(state), list(rounds), []

    def run(self, **words):
        name = Path(words["playbook"]).stem if "playbook" in words else words["module"]
        self.calls.append((name, words.get("extravars") or {}))
        send = words["event_handler"]
        if name == "ansible.builtin.debug":
            send({"event": "runner_on_ok", "event_data": {"res": {"rackweave_state_dir": self.state}}})
        if name == "status":
            send(answer("run_list", {"runs": [{"run": "demo", "job_id": "7"}]}))
        if name == "launch":
            send(answer("job_submit", {"job_id": "8", "attached": False}))
        if name == "operate":
            send({"event": "verbose", "stdout": "[demo] step 5/10 | loss 2.5", "event_data": {}})
            send(answer("recovery_decision", self.rounds.pop(0)))
        return SimpleNamespace(rc=0)


def answer(action, result):
    data = {"task_action": f"rackweave.cluster.{action}", "task": "t", "res": result}
    return {"event": "runner_on_ok", "event_data": data, "stdout": ""}


@pytest.fixture
def webhook():
    """Bodies that a local web server received."""
    bodies = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if "fail" in self.path else 200)
            self.end_headers()

        def log_message(self, *words):
            pass

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield SimpleNamespace(bodies=bodies, url=f"http://127.0.0.1:{server.server_address[1]}/{SECRET}")
        server.shutdown()


class Done:
    """How an operation ended, and its journal."""

    def __init__(self, code, runner, journal):
        self.code, self.runner, self.journal = code, runner, journal

    @property
    def entries(self):
        return [json.loads(line) for line in self.journal.read_text().splitlines()] if self.journal.is_file() else []


@pytest.fixture
def operate(tmp_path, monkeypatch):
    def call(*rounds, words=()):
        state = tmp_path / "state"
        plan = state / "plan" / "demo"
        plan.mkdir(parents=True, exist_ok=True)
        if not (plan / "plan.json").exists():
            (plan / "plan.json").write_text((ROOT / "tests/fixtures/contracts/plan.json").read_text())
        runner = FakeRunner(state, *rounds)
        monkeypatch.setattr("rackweave.cli.operate.load_runner", lambda: runner)
        code = main(["operate", "demo", "--checkout", str(ROOT), "--inventory", str(ROOT / "inventory/lab"), *words])
        return Done(code, runner, state / "recovery" / "journal.jsonl")

    return call


def test_a_run_is_submitted_again_watched_to_its_end_and_journaled(operate, capsys):
    done = operate(DECISION, DONE)
    assert done.code == 0
    assert [name for name, _ in done.runner.calls] == [
        "ansible.builtin.debug", "status", "operate", "launch", "operate",
    ]  # fmt: skip
    assert [entry["kind"] for entry in done.entries] == ["notify", "submit", "end", "notify"]
    assert all(entry["why"] for entry in done.entries)
    assert "[demo] step 5/10 | loss 2.5" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_operation_and_leaves_the_job_alone(operate, monkeypatch, number):
    cancelled = []
    play = FakeRunner.run

    def run(self, **words):
        if Path(words.get("playbook", "")).stem != "operate":
            return play(self, **words)
        os.kill(os.getpid(), number)
        cancelled.append(words["cancel_callback"]())  # how ansible-runner learns that it has to end the playbook
        return SimpleNamespace(rc=254)

    before = signal.getsignal(number)
    monkeypatch.setattr(FakeRunner, "run", run)
    done = operate(DECISION)
    assert (done.code, cancelled) == (143, [True])
    assert [entry["kind"] for entry in done.entries] == ["note"]
    assert "launch" not in [name for name, _ in done.runner.calls]
    assert signal.getsignal(number) is before


def test_a_journal_that_cannot_be_written_is_told_and_ends_the_operation_to_be_started_again(
    operate, tmp_path, webhook, monkeypatch, capsys
):
    monkeypatch.setenv("RACKWEAVE_WEBHOOK_URL", webhook.url)
    (tmp_path / "state/recovery").mkdir(parents=True)
    (tmp_path / "state/recovery/journal.jsonl").symlink_to("/dev/full")
    done = operate(DECISION)
    assert done.code == 3
    assert "journal.jsonl cannot be written: " in capsys.readouterr().out
    assert "run demo: retry" in webhook.bodies[0]["subject"]
    assert "cannot go on" in webhook.bodies[-1]["subject"]
    assert "launch" not in [name for name, _ in done.runner.calls]


def full(recovery):
    recovery.mkdir(parents=True, exist_ok=True)
    (recovery / "journal.jsonl").unlink(missing_ok=True)
    (recovery / "journal.jsonl").symlink_to("/dev/full")


def told(webhook):
    return [body["subject"] for body in webhook.bodies if "cannot go on" in body["subject"]]


def test_a_disk_that_stays_full_over_restarts_is_told_once_and_again_after_it_worked(
    operate, tmp_path, webhook, monkeypatch
):
    monkeypatch.setenv("RACKWEAVE_WEBHOOK_URL", webhook.url)
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "runtime"))
    recovery = tmp_path / "state/recovery"
    for _ in range(3):
        full(recovery)
        assert operate(DECISION).code == 3
    assert len(told(webhook)) == 1
    (recovery / "journal.jsonl").unlink()
    assert operate(DONE).code == 0
    full(recovery)
    assert operate(DECISION).code == 3
    assert len(told(webhook)) == 2


def test_without_a_service_each_failure_is_told(operate, tmp_path, webhook, monkeypatch):
    monkeypatch.setenv("RACKWEAVE_WEBHOOK_URL", webhook.url)
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    for number in (1, 2):
        full(tmp_path / "state/recovery")
        assert operate(DECISION).code == 3
        assert len(told(webhook)) == number


def test_rounds_that_go_on_failing_over_restarts_are_told_once(operate, tmp_path, webhook, monkeypatch):
    monkeypatch.setenv("RACKWEAVE_WEBHOOK_URL", webhook.url)
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "runtime"))
    monkeypatch.setattr("rackweave.watch.operation.ERROR_PAUSE_S", 0.0)
    play = FakeRunner.run

    def run(self, **words):
        return SimpleNamespace(rc=4) if Path(words.get("playbook", "")).stem == "operate" else play(self, **words)

    with monkeypatch.context() as away:
        away.setattr(FakeRunner, "run", run)
        assert [operate().code for _ in range(3)] == [3, 3, 3]
    assert [body["subject"] for body in webhook.bodies] == ["run demo: needs a person"]
    assert [entry["kind"] for entry in operate(DONE).entries].count("end") == 4


@pytest.mark.parametrize(
    ("name", "code"), [("recovery/journal.jsonl", 2), ("plan/demo/plan.json", 2), ("recovery/journal.jsonl", 3)]
)
def test_a_memory_that_cannot_be_read_is_told_to_somebody(operate, tmp_path, webhook, monkeypatch, capsys, name, code):
    monkeypatch.setenv("RACKWEAVE_WEBHOOK_URL", webhook.url)
    path = tmp_path / "state" / name
    path.parent.mkdir(parents=True)
    if code == 2:
        path.write_text("{\n{\n")
    else:
        path.symlink_to("/proc/self/mem")  # it opens, and reading fails
    assert operate(DECISION).code == code
    assert len(told(webhook)) == 1
    assert path.name in told(webhook)[0]
    shown = capsys.readouterr()
    assert path.name in (shown.err if code == 2 else shown.out)


def test_an_operation_that_cannot_begin_is_told_to_somebody(webhook, monkeypatch):
    monkeypatch.setenv("RACKWEAVE_WEBHOOK_URL", webhook.url)
    assert main(["operate", "demo", "--checkout", str(ROOT), "--inventory", "nowhere"]) == 2
    assert "does not exist" in told(webhook)[0]


def test_a_fault_of_the_program_itself_is_told_before_it_ends(operate, webhook, monkeypatch):
    monkeypatch.setenv("RACKWEAVE_WEBHOOK_URL", webhook.url)
    monkeypatch.setattr("rackweave.cli.operate.setting", lambda *words: {}["state"])
    with pytest.raises(KeyError):
        operate(DONE)
    assert "KeyError" in told(webhook)[0]


def test_a_decision_for_a_person_ends_with_status_1(operate):
    assert operate({**DECISION, "stuck": True, "resubmit": False}).code == 1


def test_a_dry_run_submits_nothing_and_says_that_it_was_one(operate, webhook, monkeypatch):
    monkeypatch.setenv("RACKWEAVE_WEBHOOK_URL", webhook.url)
    done = operate(DECISION, words=["--dry-run"])
    assert done.code == 1
    assert "launch" not in [name for name, _ in done.runner.calls]
    assert done.runner.calls[-1][1]["operator_dry_run"] is True
    assert all(entry["dry_run"] for entry in done.entries)
    assert webhook.bodies == []


def test_notices_reach_the_webhook_and_its_secret_reaches_no_output(operate, webhook, monkeypatch, capsys):
    monkeypatch.setenv("RACKWEAVE_WEBHOOK_URL", webhook.url)
    done = operate(DECISION, DONE)
    assert [body["subject"] for body in webhook.bodies] == ["run demo: retry", "run demo: done"]
    shown = capsys.readouterr()
    assert SECRET not in shown.out + shown.err + json.dumps(done.entries)


def test_a_notice_that_is_lost_is_journaled_without_its_address_and_ends_nothing(operate, monkeypatch):
    monkeypatch.setenv("RACKWEAVE_WEBHOOK_URL", f"http://127.0.0.1:9/{SECRET}")
    done = operate(DONE)
    assert done.code == 0
    text = json.dumps(done.entries)
    assert "could not be reached" in text
    assert SECRET not in text


def test_a_second_operation_of_the_same_run_is_refused(operate, tmp_path, capsys):
    import fcntl

    directory = tmp_path / "state" / "recovery"
    directory.mkdir(parents=True)
    with (directory / ".operate-demo.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert operate(DONE).code == 2
    assert "operated already" in capsys.readouterr().err


def test_variables_reach_every_playbook_and_a_bad_one_is_one_sentence(operate, capsys):
    done = operate(DONE, words=["--set", "training_job_steps=5"])
    assert all(given["training_job_steps"] == "5" for name, given in done.runner.calls if "." not in name)
    assert operate(DONE, words=["--set", "steps"]).code == 2
    assert "must read NAME=VALUE" in capsys.readouterr().err


def test_an_inventory_that_is_not_there_is_one_sentence(capsys):
    assert main(["operate", "demo", "--checkout", str(ROOT), "--inventory", "nowhere"]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RACKWEAVE_WEBHOOK_URL": f"file:///{SECRET}"}, "must be an http or https address"),
        ({"RACKWEAVE_MAIL_TO": "a@example.org"}, "RACKWEAVE_MAIL_FROM"),
        (
            {
                "RACKWEAVE_MAIL_TO": "a",
                "RACKWEAVE_MAIL_FROM": "b",
                "RACKWEAVE_MAIL_HOST": "c",
                "RACKWEAVE_MAIL_USER": "d",
            },
            "RACKWEAVE_MAIL_PASSWORD",
        ),
        ({"RACKWEAVE_MAIL_PORT": "many"}, "must be a number"),
    ],
)
def test_half_set_notices_are_refused_without_repeating_a_secret(environment, message):
    with pytest.raises(DocumentError, match=message) as caught:
        notices_from(environment)
    assert SECRET not in str(caught.value)


def test_secrets_are_in_no_representation():
    assert SECRET not in repr(Notices(webhook=SECRET, password=SECRET))


def test_mail_is_sent_as_asked(monkeypatch):
    sent = []

    class Server:
        def __init__(self, host, port, timeout):
            sent.append((host, port))

        def __enter__(self):
            return self

        def __exit__(self, *problem):
            pass

        def starttls(self, context):
            sent.append("tls")

        def login(self, user, password):
            sent.append((user, password))

        def send_message(self, message):
            sent.append((message["To"], message["Subject"]))

    monkeypatch.setattr("smtplib.SMTP", Server)
    notices = Notices(to="a@example.org", sender="b@example.org", host="mail", user="u", password="p")
    assert notices.send("subject", "text") == []
    assert sent == [("mail", 587), "tls", ("u", "p"), ("a@example.org", "subject")]
    assert Notices(to="a", sender="b", host="127.0.0.1", port=9).ways() == ["mail"]


def test_progress_is_a_bar_on_a_terminal_and_a_line_elsewhere():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    plain, live = io.StringIO(), Terminal()
    for stream in (plain, live):
        screen = Screen(stream, False)
        for text in ("[demo] step 5/10 | loss 2.5", "[demo] step 6/10 | loss 2.4", "[demo] attempt 1.1"):
            Gathered(screen).take({"event": "verbose", "stdout": text})
    assert plain.getvalue().count("\n") == 3
    assert live.getvalue().count("\n") == 1
    assert "\rdemo [" in live.getvalue()


def test_a_failed_task_is_named_with_its_message_and_gives_no_result():
    gathered = Gathered(Screen(io.StringIO(), False))
    data = {"task": "Ask", "task_action": "rackweave.cluster.run_list", "res": {"msg": "no answer"}}
    gathered.take({"event": "runner_on_failed", "event_data": data})
    assert gathered.problem == "Ask: no answer"
    assert gathered.results == {}


def test_only_operate_needs_the_runner(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ansible_runner", None)
    assert main(["plan", "--model", "llama3-8b", "--cluster", "1x8xH100", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)
