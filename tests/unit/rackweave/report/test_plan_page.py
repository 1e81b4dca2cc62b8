"""The plan's page: self-contained, escaped, its drawings true, and looked at in a real headless browser."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rackweave.plan.cluster import Cluster
from rackweave.plan.layout import plan_layout
from rackweave.plan.request import LayoutRequest
from rackweave.plan.sizing import size_task
from rackweave.report.plan_page import one_forward_one_backward, render_plan_page

from tests.support.browser import CHROMIUM, Browser

PICTURES = Path(__file__).parents[4] / "build" / "report"


def page(name="llama3-70b", cluster="4x8xH100", **wish):
    plan = plan_layout(Cluster.from_shorthand(cluster), name, LayoutRequest(**wish))
    return plan, render_plan_page(plan, size_task(plan.model, "pretrain", None, None, None).as_dict())


@pytest.fixture(scope="module")
def usual():
    return page(tensor_parallel_size=8, pipeline_parallel_size=4)


class _Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        self.found += [names[key] for key in ("src", "href", "xlink:href") if key in names]


def test_the_page_fetches_nothing(usual):
    links = _Links()
    links.feed(usual[1])
    assert links.found == []
    assert "url(" not in usual[1]
    assert "<script" not in usual[1]


def test_every_rank_is_drawn_once(usual):
    plan, text = usual
    ranks = [int(number) for number in re.findall(r"<title>rank (\d+):", text)]
    assert ranks == list(range(plan.layout.sizes.world_size))


def test_every_candidate_is_a_point(usual):
    plan, text = usual
    assert text.count('class="other"') + text.count('class="chosen"') == len(plan.candidates)
    assert text.count('class="chosen"') == 1


def test_a_name_with_markup_is_escaped():
    model = {
        "name": "<script>alert(1)</script>",
        "num_layers": 8,
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "vocab_size": 32000,
    }
    assert "<script>" not in page(model, "1x8xH100")[1]


def test_the_schedule_is_1f1b():
    slots = one_forward_one_backward(4, 8, 1.0, 2.0)
    assert len(slots) == 2 * 4 * 8
    end = max(finish for *_, finish in slots)
    assert end == pytest.approx((8 + 4 - 1) * 3.0)
    for stage in range(4):
        mine = sorted((start, finish) for where, _m, _k, start, finish in slots if where == stage)
        assert all(before[1] <= after[0] + 1e-9 for before, after in zip(mine, mine[1:]))
        alive, most = 0, 0
        for _start, kind in sorted((start, kind) for where, _m, kind, start, _f in slots if where == stage):
            alive += 1 if kind == "forward" else -1
            most = max(most, alive)
        assert most == 4 - stage


@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's package chromium")
def test_a_browser_draws_the_page(usual, tmp_path):
    path = tmp_path / "plan.html"
    path.write_text(usual[1], encoding="utf-8")
    with Browser(tmp_path / "profile") as browser:
        browser.width(1000)
        browser.open(path.as_uri())
        browser.screenshot(PICTURES / "plan.png")
        # The browser's own tree: all drawings are SVG elements it understood, each with colour and size.
        assert browser.value("document.querySelectorAll('svg').length") == 4
        rects = "[...document.querySelectorAll('svg rect')]"
        assert browser.value(f"{rects}.length") > 32
        assert browser.value(f"{rects}.every(one => one.getBoundingClientRect().width > 0)")
        assert browser.value(f"new Set({rects}.map(one => getComputedStyle(one).fill)).size") > 3
        assert browser.value("document.documentElement.scrollWidth") <= 1000
        assert browser.complaints == []
