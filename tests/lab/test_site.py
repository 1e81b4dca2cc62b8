"""The whole life cycle on the lab: real Slurm, the real trainer, and what happens when a rank dies or stands still.

One module, in this order, since each run takes the lab for itself; steps are few, so most of the time is start-up.
"""

import json
import os
import shlex
import shutil
import subprocess
import threading
import time

import ansible_runner
import pytest

from tests.support.lab import BIN, ROOT, STATE, leaks, play, secrets_of

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1500)]
RUN = "site-test"
SHARED = STATE / "shared"
QUICK = {
    "training_job_checkpoint_interval": 4,
    "training_job_evaluation_interval": 4,
    "training_job_requeue_ok": False,
    "training_job_collective_timeout_s": 30,
}
NODES = ("gpu01", "gpu02")


def extra(**values):
    return ["-e", json.dumps({**QUICK, **values})]


def forget(*runs):
    """Remove what an earlier call left of runs, and the strikes that nodes earned then: two would drain a node."""
    (STATE / "recovery" / "strikes.json").unlink(missing_ok=True)
    for run in runs:
        for path in (SHARED / "runs" / run, STATE / "plan" / run, STATE / "report" / run):
            shutil.rmtree(path, ignore_errors=True)
        (STATE / "runs" / f"{run}.json").unlink(missing_ok=True)


def site(tmp_path, verbosity=0, **values):
    """Run site.yml as an operator's service would: through ansible-runner, whose events are then looked at."""
    return ansible_runner.run(
        private_data_dir=str(tmp_path),
        project_dir=str(ROOT),
        playbook=str(ROOT / "site.yml"),
        inventory=str(ROOT / "inventory/lab"),
        extravars={**QUICK, "training_job_run": RUN, **values},
        envvars={
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "PATH": f"{BIN}:{os.environ['PATH']}",
        },
        quiet=True,
        verbosity=verbosity,
    )


def results(run, task):
    """Return the results of a task's successful events."""
    return [
        event["event_data"]["res"]
        for event in run.events
        if event["event"] == "runner_on_ok" and event["event_data"].get("task") == task
    ]


def report_of(run):
    text = "".join(event.get("stdout", "") + "\n" for event in run.events)
    return f"{run.status}:\n{text[-5000:]}"


@pytest.fixture(scope="module")
def first_site(lab, tmp_path_factory):
    forget(RUN)
    return site(tmp_path_factory.mktemp("first"), verbosity=3, training_job_steps=8)


@pytest.fixture(scope="module")
def second_site(first_site, tmp_path_factory):
    return site(tmp_path_factory.mktemp("second"), training_job_steps=12)


def test_the_whole_site_ends_with_a_trained_model(first_site):
    assert first_site.status == "successful", report_of(first_site)
    (watched,) = results(first_site, "Watch the job to its end")
    assert watched["state"] == "COMPLETED"
    assert (watched["first_step"], watched["last_step"]) == (1, 8)
    assert watched["validation_losses"][-1] < watched["validation_losses"][0]
    assert watched["reference_loss"] > 2.5


def test_no_task_failed_and_the_phases_come_in_the_order_of_the_life_cycle(first_site):
    failed = [
        (event["event_data"]["task"], event["event_data"]["res"].get("msg"))
        for event in first_site.events
        if event["event"] == "runner_on_failed" and not event["event_data"].get("ignore_errors")
    ]
    assert failed == []
    plays = [event["event_data"]["name"] for event in first_site.events if event["event"] == "playbook_on_play_start"]
    names = ("Validate", "Prepare", "Observe", "Set up Slurm", "Plan", "Launch", "Watch")
    places = [next(index for index, play in enumerate(plays) if play.startswith(name)) for name in names]
    assert places == sorted(places)


def test_no_secret_is_in_the_output_of_the_whole_life_cycle_at_the_highest_verbosity(lab, first_site):
    output = json.dumps([event.get("event_data") for event in first_site.events]) + "".join(
        event.get("stdout", "") + "\n" for event in first_site.events
    )
    assert "EXEC" in output
    assert leaks(output, secrets_of(lab)) == []


def test_every_rank_left_a_result(lab, first_site):
    results = lab.ssh("ctl", f"cat /mnt/shared/runs/{RUN}/attempts/*/result/*.json")
    assert results.count('"done"') == 8


def test_progress_is_shown_while_the_job_runs(first_site):
    lines = [event.get("stdout", "") for event in first_site.events]
    steps = [line for line in lines if f"[{RUN}] step " in line and "tokens/s" in line and "ETA" in line]
    assert steps, report_of(first_site)
    assert any("phase " in line for line in lines)


def test_the_job_belongs_to_the_user_and_never_to_root(lab, first_site):
    owners = lab.ssh(
        "ctl", f"stat -c %U /mnt/shared/runs/{RUN}/attempts/*/attempt.json /mnt/shared/runs/{RUN}/report.html"
    )
    assert set(owners.split()) == {"hpc"}


def test_each_rank_saw_its_own_hosts_environment(lab, first_site):
    for host, rank in (("gpu01", 0), ("gpu02", 4)):
        text = lab.ssh(host, f"cat $(ls -d /mnt/shared/runs/{RUN}/attempts/*/placement/{rank}.json | tail -1)")
        placement = json.loads(text)
        assert placement["host"] == host
        seen = placement["environment"]["GLOO_SOCKET_IFNAME"]
        assert (seen["value"], seen["origin"]) == ("eth0", "host_file")


def test_the_page_is_on_the_controller_and_with_the_run(first_site):
    page = (STATE / "report" / RUN / "report.html").read_text()
    assert "<svg" in page
    assert "byte unigram entropy" in page
    assert page == (SHARED / "runs" / RUN / "report.html").read_text()


def test_the_second_site_changes_no_node_and_trains_on(second_site):
    assert second_site.status == "successful", report_of(second_site)
    (watched,) = results(second_site, "Watch the job to its end")
    assert (watched["first_step"], watched["last_step"]) == (9, 12)
    changed = {
        (event["event_data"]["play"], event["event_data"]["task"])
        for event in second_site.events
        if event["event"] == "runner_on_ok" and event["event_data"].get("res", {}).get("changed")
    }
    # Only what the new number of steps asks for: the plan's train.json, and a job.
    assert {play for play, _ in changed} <= {"Plan the job", "Launch the job"}
    assert {task for _, task in changed} == {"Write the run files", "Submit the job, or attach to the live one"}


def test_status_shows_runs_side_by_side(lab, second_site):
    output = play("playbooks/status.yml").output
    row = next(line for line in output.splitlines() if RUN in line and "12/12" in line)
    assert "COMPLETED" in row
    assert "the job ended well" in row


class Watched:
    """watch.yml in the background, with its lines as they come; the shared directory may be hidden from it."""

    def __init__(self, run, hidden):
        words = [
            str(BIN / "ansible-playbook"),
            "-i",
            "inventory/lab",
            "playbooks/watch.yml",
            *extra(training_job_run=run),
        ]
        if hidden:
            words = hide_shared_from(words)
        env = {**os.environ, "ANSIBLE_NOCOLOR": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}
        self.process = subprocess.Popen(
            words, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(iter(self.process.stdout.readline, "")))
        self.reader.start()

    def wait_for(self, words, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            if any(words in line for line in self.lines):
                return
            time.sleep(0.2)
        raise AssertionError(f"no {words!r} within {seconds} s:\n{self.output}")

    def end(self, seconds):
        self.process.wait(seconds)
        self.reader.join()
        return self.process.returncode

    @property
    def output(self):
        return "".join(self.lines)


def hide_shared_from(words):
    """Return a command with an empty file system where the lab's shared directory is; 99 if it wrote there."""
    check = f'code=$?; [ -z "$(ls -A {SHARED})" ] && exit $code; exit 99'
    return ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none {SHARED} && {shlex.join(words)}; {check}"]


def launch(run, steps, hidden=False, **values):
    words = [
        "playbooks/plan.yml",
        "playbooks/launch.yml",
        *extra(training_job_run=run, training_job_steps=steps, **values),
    ]
    command = [str(BIN / "ansible-playbook"), "-i", "inventory/lab", *words]
    env = {**os.environ, "ANSIBLE_NOCOLOR": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        hide_shared_from(command) if hidden else command, cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    return done.stdout


def send(lab, host, rank, signal):
    """Send a signal to the trainer's process of one rank."""
    find = (
        f"for d in /proc/[0-9]*; do tr '\\0' '\\n' 2>/dev/null <$d/environ | grep -qx RANK={rank} && "
        "tr '\\0' ' ' 2>/dev/null <$d/cmdline | grep -q -- '-m trainer' && echo ${d#/proc/} && break; done"
    )
    pid = lab.ssh(host, find, check=False).strip()
    assert pid.isdigit(), f"no process of rank {rank} on {host}"
    lab.ssh(host, f"kill -{signal} {pid}")
    return pid


def survivors(lab):
    return {host: lab.ssh(host, "pgrep --full 'trainer --attemp[t]|torchru[n]' || true").split() for host in NODES}


def lasting_survivors(lab, seconds=60):
    """Return what is left of the job; a process that was killed may need a moment to go on a busy machine."""
    deadline = time.monotonic() + seconds
    while any((left := survivors(lab)).values()) and time.monotonic() < deadline:
        time.sleep(1)
    return left


@pytest.fixture
def cancelled_afterwards(lab):
    yield
    lab.ssh("ctl", "scancel --user=hpc")


def test_a_killed_rank_is_named_within_a_minute_and_fails_the_play(lab, cancelled_afterwards):
    forget("killed-test")
    submitted = launch("killed-test", 500, hidden=True)
    assert "requeue our own job off" in submitted
    watched = Watched("killed-test", hidden=True)
    watched.wait_for("] step ", 240)
    send(lab, "gpu02", 6, "KILL")
    killed_at = time.monotonic()
    watched.wait_for("names rank:6: rank 6 on gpu02 was killed by SIGKILL", 60)
    assert watched.end(120) == 2, watched.output
    assert time.monotonic() - killed_at < 120, watched.output
    assert "FAILED" in watched.output
    assert "rank 6 on gpu02 was killed by SIGKILL" in watched.output
    assert lasting_survivors(lab) == {"gpu01": [], "gpu02": []}
    verdict = json.loads(next((SHARED / "runs/killed-test/attempts").glob("*/verdict.json")).read_text())
    assert (verdict["culprit"], verdict["state"]) == ("rank:6", "FAILED")
    assert {host: states["processes"] for host, states in verdict["collectors"].items()} == dict.fromkeys(NODES, "ok")
    assert "rank 6" in (STATE / "report/killed-test/report.html").read_text()


def test_a_stopped_rank_ends_the_job_everywhere_within_three_minutes(lab, cancelled_afterwards):
    forget("stopped-test")
    launch("stopped-test", 500)
    watched = Watched("stopped-test", hidden=False)
    watched.wait_for("] step ", 240)
    # A watcher that dies does not hurt the job, and its successor finds it again.
    watched.process.kill()
    watched.end(10)
    assert "RUNNING" in lab.ssh("ctl", "squeue --noheader --format %T")
    again = launch("stopped-test", 500)
    assert "attached to job" in again
    watched = Watched("stopped-test", hidden=False)
    watched.wait_for("] step ", 240)
    send(lab, "gpu01", 1, "STOP")
    stopped_at = time.monotonic()
    assert watched.end(240) == 2, watched.output
    assert time.monotonic() - stopped_at < 180, watched.output
    assert "rank 1 on gpu01 stood still" in watched.output
    assert lasting_survivors(lab) == {"gpu01": [], "gpu02": []}
