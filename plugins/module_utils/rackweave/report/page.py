"""The frame of every page: one self-contained HTML file, style included, nothing fetched, text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { --paper: #ffffff; --ink: #1c2430; --muted: #667085; --line: #d8dee8; --card: #f6f8fb; --a: #2463c5;
  --b: #c2410c; --good: #157347; --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161d; --ink: #e6eaf2; --muted: #97a3b6; --line: #303a4a;
  --card: #1a2029; --a: #7aa7f7; --b: #f39a5b; --good: #58c48c; --bad: #f2867b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1000px; padding: 24px 20px 60px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 4px; } h2 { font-size: 1.1rem; margin: 32px 0 10px; }
.muted { color: var(--muted); } svg .muted { fill: var(--muted); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 16px 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; }
.tile b { display: block; font-size: 1.15rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.banner { border-left: 4px solid var(--muted); background: var(--card); padding: 10px 14px; border-radius: 4px; }
.banner.good { border-color: var(--good); } .banner.bad { border-color: var(--bad); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { min-width: 5.5em; } th { color: var(--muted); font-weight: 500; overflow-wrap: normal; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 10px; overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px; }
svg { width: 100%; height: auto; display: block; margin: 8px 0; } svg text { fill: var(--ink); font-size: 12px; }
svg.chart { min-width: 540px; }
svg .chart-title, svg .host, svg .rank { font-weight: 600; } svg .chart-title { font-size: 14px; }
svg .tick { fill: var(--muted); font-size: 11px; } svg .axis { stroke: var(--muted); }
svg .grid { stroke: var(--line); }
svg .level { stroke: var(--muted); stroke-dasharray: 5 4; }
svg .curve { fill: none; stroke-width: 1.8; } svg .a { stroke: var(--a); } svg .b { stroke: var(--b); }
svg .old { stroke: var(--muted); } svg .dot { stroke-width: 2; fill: var(--paper); }
svg .cell { stroke: rgb(0 0 0 / 0.15); } svg .blamed { stroke: var(--bad); stroke-width: 4; }
svg .t-start { fill: #b9c2d0; } svg .t-train { fill: #6f9fe0; } svg .t-eval { fill: #f4e08a; }
svg .t-save { fill: #a6dba8; } svg .t-lost { fill: #e89a8f; } svg .bad { fill: var(--bad); font-weight: 600; }
svg.cluster .cell ~ text { fill: #10151d; }
.stage0 { fill: #9cc3f5; } .stage1 { fill: #f7c38f; } .stage2 { fill: #a6dba8; } .stage3 { fill: #e0b3e6; }
.stage4 { fill: #f4e08a; } .stage5 { fill: #a8e0dc; } .stage6 { fill: #f2b0b0; } .stage7 { fill: #cfc6f5; }
"""


# Marks that turn the direction of text: a log line with one would read backwards, or pretend to be another.
_DIRECTION_MARKS = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\N{REPLACEMENT CHARACTER}")


def page(title: str, parts: Iterable[str]) -> str:
    """Return a whole HTML document; ``parts`` is markup made by this package."""
    text = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Nothing on the page may run or be fetched, whatever a log line holds.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )
    return text.translate(_DIRECTION_MARKS)


def tiles(pairs: Sequence[tuple[str, str]]) -> str:
    """Return a row of figures, each with its name."""
    cells = "".join(
        f'<div class="tile"><span class="muted">{escape(name)}</span><b>{escape(value)}</b></div>'
        for name, value in pairs
    )
    return f'<div class="tiles">{cells}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of escaped cells."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def heading(words: str) -> str:
    return f"<h2>{escape(words)}</h2>"


def paragraph(words: str, style: str = "") -> str:
    return f'<p class="{escape(style)}">{escape(words)}</p>' if style else f"<p>{escape(words)}</p>"
