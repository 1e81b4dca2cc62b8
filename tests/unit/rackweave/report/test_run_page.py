"""The page of a run: self-contained, escaped, and showing what the run was."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rackweave.cli import main
from rackweave.report.layout_picture import layout_picture
from rackweave.report.run_page import RunReport, render_run_page
from rackweave.report.svg import Series, element, line_chart, text, thin, ticks
from rackweave.run.events import parse_events
from rackweave.run.plan_file import parse_plan
from rackweave.run.progress import Progress

CONTRACTS = Path(__file__).parents[3] / "fixtures" / "contracts"
PLAN = parse_plan((CONTRACTS / "plan.json").read_text())
EVIL = "<script>alert('x')</script>&\"'"
VOID = {"meta", "br"}


class Balance(HTMLParser):
    """Counts open elements, and collects what would be fetched or run."""

    def __init__(self, page):
        super().__init__()
        self.open, self.names, self.active = [], set(), []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.names.add(tag)
        self.active += [pair for pair in attributes if pair[0] in ("src", "href") or pair[0].startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.names.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def events(*steps):
    lines = []
    for step, loss in steps:
        record = {
            "time": f"2026-01-05T10:00:{step % 60:02d}+00:00",
            "kind": "step",
            "rank": 0,
            "step": step,
            "loss": loss,
        }
        lines.append(json.dumps({**record, "tokens_per_second": 1000.0, "mfu": None, "step_time_s": 1.0}))
    return "\n".join(lines).encode() + b"\n"


def progress(name="1.0", *steps):
    made = Progress(name, 100)
    made.add(parse_events(events(*steps)).events)
    return made


def verdict(**changes):
    words = {
        "sentence": "the job FAILED",
        "first_action": "look",
        "diagnosis_class": "app.exception",
        "culprit": "rank:1",
    }
    named = {"ranks": [1], "hosts": ["node-b"], "evidence": ["a line"], "others": []}
    return {"severity": "fatal", "phase": None, **words, **named, **changes}


REPORT = RunReport(
    "demo", "2026-01-05", (progress("1.0", (1, 3.0), (2, 2.5)),), plan=PLAN, state="FAILED", verdict=verdict()
)


def test_the_page_is_well_formed_and_fetches_and_runs_nothing():
    found = Balance(render_run_page(REPORT))
    assert found.open == []
    assert found.active == []
    assert not found.names & {"script", "link", "img", "iframe", "object"}


@pytest.mark.parametrize(
    "place", ["evidence", "sentence", "first_action", "culprit", "others", "run", "state", "phase"]
)
def test_text_from_outside_is_escaped_wherever_it_stands(place):
    bad = [EVIL] if place in ("evidence", "others") else EVIL
    report = (
        replace(REPORT, **{place: bad})
        if place in ("run", "state")
        else replace(REPORT, verdict=verdict(**{place: bad}))
    )
    page = render_run_page(report)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "script" not in Balance(page).names


def test_event_text_is_escaped_too():
    made = progress("1.0", (1, 3.0))
    for kind, fields in (("phase", {"phase": EVIL}), ("checkpoint", {"step": 1, "path": EVIL, "state": EVIL})):
        made.add(parse_events(json.dumps({"time": EVIL, "kind": kind, "rank": 0, **fields}).encode() + b"\n").events)
    assert "<script" not in render_run_page(replace(REPORT, attempts=(made,)))


def test_every_rank_has_one_cell_with_its_stage_and_the_blamed_one_is_marked():
    picture = layout_picture(PLAN, [1], ["node-b"])
    assert [int(rank) for rank in re.findall(r"<title>rank (\d+) ", picture)] == [0, 1, 2, 3]
    assert picture.count("stage0") == 2
    assert picture.count("stage1") == 2
    assert picture.count("blamed") == 1
    assert picture.index("node-b") < picture.index("node-a")


def test_a_later_attempt_replaces_the_steps_that_it_repeated():
    attempts = (progress("1.0", (1, 3.0), (2, 2.9), (3, 9.0)), progress("2.0", (3, 2.8), (4, 2.7)))
    page = render_run_page(replace(REPORT, attempts=attempts, verdict=None))
    curve = re.search(r'<polyline points="([^"]+)" class="curve a"', page).group(1).split()
    assert len(curve) == 4
    heights = [float(pair.split(",")[1]) for pair in curve]
    assert heights == sorted(heights)


def test_a_run_without_a_step_says_so():
    assert "no data yet" in render_run_page(RunReport("demo", "t", (Progress("1.0"),)))


def test_what_was_predicted_stands_beside_what_was_measured():
    document = {**PLAN.document, "prediction": {"step_time_s": 0.8}, "memory": {"allocated_gib": 40.0}}
    report = RunReport("demo", "now", (progress("1.0", (1, 5.0), (2, 4.0)),), replace(PLAN, document=document))
    rows = re.findall(r"<tr>(.*?)</tr>", render_run_page(report), re.DOTALL)
    step = next(row for row in rows if "median step" in row)
    assert [cell for cell in re.sub(r"<[^>]*>", "|", step).split("|") if cell] == [
        "median step",
        "0.8 s",
        "1 s",
        "1.25",
    ]
    memory = next(row for row in rows if "peak memory (" in row)
    assert "40 GiB" in memory


def test_what_was_not_predicted_says_so():
    document = {**PLAN.document, "prediction": None, "memory": None}
    page = render_run_page(RunReport("demo", "now", (progress("1.0", (1, 5.0)),), replace(PLAN, document=document)))
    assert page.count("not predicted") == 2


def test_a_long_curve_is_thinned_and_keeps_its_peaks():
    points = tuple((float(x), 100.0 if x == 5003 else float(x % 7)) for x in range(20000))
    kept = thin(points)
    assert len(kept) < 1300
    assert (5003.0, 100.0) in kept
    assert kept[-1] == points[-1]
    assert list(kept) == sorted(kept)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (2.0, 2.5), (0, 123456), (-3, 3), (1e-9, 2e-9), (99, 101)])
def test_ticks_are_few_and_inside(low, high):
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert all(low - 1e-12 <= value <= high * (1 + 1e-9) + 1e-12 for value in found)


def test_a_chart_of_one_point_and_of_bad_numbers_is_drawn():
    chart = line_chart("t", "x", "y", [Series("s", "a", ((1.0, 2.0), (2.0, float("nan")), (3.0, float("inf"))))])
    assert "circle" in chart
    assert "nan" not in chart


def test_attributes_and_texts_of_pictures_are_escaped():
    assert EVIL not in element("rect", class_=EVIL)
    assert "<script" not in text(EVIL, 0, 0)


@pytest.fixture
def run_dir(tmp_path):
    attempt = tmp_path / "demo" / "attempts" / "12.0"
    attempt.mkdir(parents=True)
    for name in ("plan.json", "train.json", "end.json", "attempt.json"):
        (attempt / name).write_text((CONTRACTS / name).read_text())
    (attempt / "events.jsonl").write_bytes(events((1, 3.0), (2, 2.5)) + b'{"half')
    (tmp_path / "demo" / "job.json").write_text((CONTRACTS / "job.json").read_text())
    return tmp_path / "demo"


def test_the_command_writes_the_page_of_a_run_directory(run_dir, capsys):
    assert main(["report", str(run_dir)]) == 0
    assert capsys.readouterr().out.strip() == str(run_dir / "report.html")
    assert "Run demo" in (run_dir / "report.html").read_text()


def test_the_command_prints_figures_on_request_and_writes_nothing(run_dir, capsys):
    assert main(["report", str(run_dir), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["step"], figures["target_step"], figures["loss"], figures["state"]) == (2, 200, 2.5, "FAILED")
    assert not (run_dir / "report.html").exists()


def test_a_directory_that_is_no_run_is_refused_with_a_sentence(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no attempt" in capsys.readouterr().err


def test_a_clock_that_was_set_back_is_told_and_does_not_make_a_day_of_a_minute():
    made = progress("1.0", (1, 3.0), (2, 2.5), (50, 2.4))
    made.add(parse_events(events((1, 2.3))).events)
    page = render_run_page(replace(REPORT, attempts=(made,)))
    assert "jumped back by up to 49 s (1×)" in page


def test_an_attempt_that_left_nothing_says_where_to_look():
    page = render_run_page(RunReport("demo", "t", (Progress("1.0"),)))
    assert "it left no events" in page
    assert "nobody watched its end" in page


@pytest.mark.parametrize(
    "events", [None, "", "torn", '{"time": "2026-01-05T09:59:59+00:00", "kind": "environment", "rank": 0}\n']
)
def test_the_steps_of_a_program_without_events_are_read_from_its_logs(tmp_path, capsys, events):
    logs = tmp_path / "demo/attempts/4.0/logs/gpu01.example.com"
    logs.mkdir(parents=True)
    if events is not None:
        (tmp_path / "demo/attempts/4.0/events.jsonl").write_text(events)
    for rank, last in (("0", 3), ("3", 20)):
        (logs / rank).mkdir(parents=True)
        lines = (
            f"[2026-01-05 10:00:{step:02d}] iteration {step:8d}/ 100 | elapsed time per iteration (ms): 1000.0 | "
            f"lm loss: {3 - step / 10:.6E} | grad norm: 1.0 |\n"
            for step in range(1, last + 1)
        )
        (logs / rank / "stdout.log").write_text("".join(lines) + "<script>alert(1)</script>\n")
    assert main(["report", str(tmp_path / "demo"), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["step"], figures["loss"]) == (20, pytest.approx(1.0))
    assert main(["report", str(tmp_path / "demo")]) == 0
    assert "<script" not in (tmp_path / "demo/report.html").read_text()
