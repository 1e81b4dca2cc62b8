"""The plan's page: self-contained, escaped, its drawings true, and looked at in a real headless browser."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from rackweave.plan.cluster import Cluster
from rackweave.plan.layout import plan_layout
from rackweave.plan.request import LayoutRequest
from rackweave.plan.sizing import size_task
from rackweave.report.plan_page import one_forward_one_backward, render_plan_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


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
    from struct import unpack

    path, shot = tmp_path / "plan.html", tmp_path / "plan.png"
    path.write_text(usual[1], encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    subprocess.run(
        [CHROMIUM, *flags, f"--screenshot={shot}", "--window-size=1000,1800", path.as_uri()],
        check=True,
        capture_output=True,
        timeout=120,
    )
    data = shot.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert unpack(">II", data[16:24]) == (1000, 1800)
    dump = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", path.as_uri()], check=True, capture_output=True, text=True, timeout=120
    ).stdout
    # The browser's own tree: all drawings are SVG elements it understood, and no text spilled out of them.
    assert dump.count("<svg") == 4
    assert dump.count("<rect") > 32
    assert colours(data) > 8


def colours(png):
    """Return the number of distinct colours in a PNG with 8-bit channels."""
    import zlib
    from struct import unpack

    position, parts, header = 8, [], b""
    while position < len(png):
        length, kind = unpack(">I4s", png[position : position + 8])
        body = png[position + 8 : position + 8 + length]
        header = body if kind == b"IHDR" else header
        if kind == b"IDAT":
            parts.append(body)
        position += 12 + length
    width, height, _depth, kind = unpack(">IIBB", header[:10])
    channels = {2: 3, 6: 4}[kind]
    raw, stride = zlib.decompress(b"".join(parts)), width * channels
    previous, found = bytearray(stride), set()
    for row in range(height):
        start = row * (stride + 1)
        line = unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), previous, channels)
        found |= {bytes(line[index : index + 3]) for index in range(0, stride, channels * 7)}
        previous = line
    return len(found)


def unfiltered(kind, line, above, channels):
    """Undo a PNG row filter (RFC 2083, section 6)."""
    for index in range(len(line)):
        left = line[index - channels] if index >= channels else 0
        corner = above[index - channels] if index >= channels else 0
        if kind == 1:
            line[index] = (line[index] + left) & 255
        elif kind == 2:
            line[index] = (line[index] + above[index]) & 255
        elif kind == 3:
            line[index] = (line[index] + (left + above[index]) // 2) & 255
        elif kind == 4:
            guess = left + above[index] - corner
            best = min((abs(guess - value), order, value) for order, value in enumerate((left, above[index], corner)))
            line[index] = (line[index] + best[2]) & 255
    return line
