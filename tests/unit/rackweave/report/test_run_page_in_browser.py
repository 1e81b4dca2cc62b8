"""The page of a run as a browser shows it; its pictures stay in build/report for people to look at."""

import json
import math
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from rackweave.report.run_page import RunReport, render_run_page
from rackweave.run.events import parse_events
from rackweave.run.plan_file import parse_plan
from rackweave.run.progress import Progress

from tests.support.browser import CHROMIUM, Browser

ROOT = Path(__file__).parents[4]
PICTURES = ROOT / "build" / "report"
HOSTILE = (
    "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
    "<svg onload='window.ran = 1'></svg>\u202e]]>--></title></style></pre>" + "W" * 400
)
BEGUN = datetime(2026, 1, 5, 10, 0, 0, tzinfo=timezone.utc)

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Debian's package chromium (scripts/system-packages test)"
)


def attempt(name, after_s, first, last):
    """An attempt that starts some seconds into the run and trains from one step to another."""
    clock = BEGUN + timedelta(seconds=after_s)
    lines = []

    def event(kind, after_s, **fields):
        nonlocal clock
        clock += timedelta(seconds=after_s)
        lines.append(json.dumps({"time": clock.isoformat(), "kind": kind, "rank": 0, **fields}))

    for phase, seconds in (("nccl_init", 4), ("model_build", 9), ("optimizer_init", 3), ("checkpoint_load", 12)):
        event("phase", seconds, phase=phase)
    for step in range(first, last + 1):
        loss = 2.2 + 3.0 * math.exp(-step / 40) + 0.08 * math.sin(step * 1.7)
        event("step", 1.1, step=step, loss=loss, tokens_per_second=2400 + 90 * math.sin(step), mfu=0.38 + step / 9000,
              step_time_s=1.1, peak_memory_gib=41.5, grad_norm=1.0)  # fmt: skip
        if step % 20 == 0:
            event("phase", 0.2, phase="evaluate")
            event("evaluation", 3.0, step=step, validation_loss=loss + 0.1)
            event("phase", 0.1, phase="forward")
        if step % 25 == 0:
            path = f"/mnt/shared/runs/demo/checkpoints/step_{step}"
            for state, seconds in (("saved", 0.4), ("published", 2.0), ("validated", 5.0)):
                event("checkpoint", 0.2, step=step, path=path, state=state, seconds=seconds)
    made = Progress(name, 200)
    made.add(parse_events("\n".join(lines).encode() + b"\n").events)
    return made


def verdict(name, **changes):
    return {
        "sentence": f"rank 1 on node-b was killed by SIGKILL {HOSTILE}", "state": "FAILED", "attempt": name,
        "first_action": "Ask who killed it: the kernel log says whether memory ran out.", "code": 75,
        "diagnosis_class": "launch.sigkill_unconfirmed", "culprit": "rank:1,host:node-b", "severity": "error",
        "phase": "backward", "ranks": [1], "hosts": ["node-b"], "others": ["net.peer_closed"],
        "evidence": ["launcher: rank 1 (pid 9) exit code -9, gone 10:01:02", HOSTILE], **changes,
    }  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    document = json.loads((ROOT / "tests/fixtures/contracts/plan.json").read_text())
    document["prediction"] = {
        "step_time_s": 1.0,
        "step_time_band_s": [0.9, 1.2],
        "tokens_per_second": 2500.0,
        "mfu": {},
    }
    document["memory"] = {"allocated_gib": 39.0}
    report = RunReport(
        "demo " + HOSTILE[:60],
        "2026-01-05T10:10:00+00:00",
        (attempt("12.0", 0, 1, 61), attempt("12.1", 170, 51, 132), attempt("12.2", 330, 126, 200)),
        plan=parse_plan(json.dumps(document)),
        state="COMPLETED",
        verdict=verdict(
            "12.2",
            sentence="the job ended well",
            severity="info",
            state="COMPLETED",
            culprit="none",
            ranks=[],
            hosts=[],
            evidence=[],
            code=0,
        ),
        reference_loss=("byte unigram entropy", 3.076),
        incidents=(
            verdict("12.0"),
            verdict("12.1", diagnosis_class="slurm.node_fail", culprit="host:node-a", ranks=[]),
        ),
    )
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_run_page(report), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(page, tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        opened.width(1280)
        opened.open(page.as_uri())
        yield opened


def test_no_text_of_a_log_runs_as_a_script_and_the_page_complains_of_nothing(browser):
    assert browser.value("typeof window.ran") == "undefined"
    assert browser.value("document.querySelectorAll('script, img, iframe, object, link').length") == 0
    assert browser.complaints == []
    assert "\u202e" not in browser.value("document.body.innerText")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, False), (1280, True)])
def test_nothing_runs_over_the_edge(browser, width, dark):
    browser.width(width, dark)
    assert browser.value("document.documentElement.scrollWidth") <= width
    spilled = """[...document.querySelectorAll('body *')].filter(one => {
        if (one.closest('.wide') || one.closest('svg') !== null && one.tagName !== 'svg') return false;
        const box = one.getBoundingClientRect(); return box.right > innerWidth + 1 || box.left < -1;
    }).map(one => one.tagName + ' ' + one.className).slice(0, 5)"""
    assert browser.value(spilled) == []
    browser.screenshot(PICTURES / f"run-{width}{'-dark' if dark else ''}.png")


def test_texts_of_the_pictures_stay_inside_them_and_do_not_cover_each_other(browser):
    browser.width(1280)
    outside = """[...document.querySelectorAll('svg')].flatMap(picture => {
        const frame = picture.getBoundingClientRect();
        return [...picture.querySelectorAll('text')].filter(one => {
            const box = one.getBoundingClientRect();
            return box.right > frame.right + 2 || box.left < frame.left - 2 || box.bottom > frame.bottom + 2;
        }).map(one => one.textContent);
    })"""
    assert browser.value(outside) == []
    covered = """[...document.querySelectorAll('svg.chart')].flatMap(picture => {
        const boxes = [...picture.querySelectorAll('text')].map(one => [one.textContent, one.getBoundingClientRect()]);
        return boxes.flatMap(([name, a], index) => boxes.slice(index + 1).filter(([, b]) =>
            a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2
        ).map(([other]) => name + ' | ' + other));
    })"""
    assert browser.value(covered) == []


def test_the_page_shows_what_an_operator_asks_for(browser):
    words = browser.value("document.body.innerText")
    wanted = ("Effective-time ratio", "Incident in attempt 12.0", "Checkpoints", "validated", "exit code -9")
    for asked in (*wanted, "Predicted and measured", "first action"):
        assert asked.lower() in words.lower()
    assert browser.value("document.querySelectorAll('svg.cluster .blamed').length") == 1
    assert browser.value("document.querySelectorAll('.t-lost').length") >= 2
