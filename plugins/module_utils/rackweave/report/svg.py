"""Small hand-written SVG: elements with escaped text, and line charts. Colours come from the page's style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, isfinite, log10

MAX_POINTS = 1200


def element(name: str, *children: str, **attributes: object) -> str:
    """Return one element; ``class_`` and ``stroke_width`` become ``class`` and ``stroke-width``, values are escaped.

    Children are markup that this module made; text goes through `text` or `escape` first.
    """
    words = [f'{key.rstrip("_").replace("_", "-")}="{escape(_value(item))}"' for key, item in attributes.items()]
    head = " ".join([name, *words])
    return f"<{head}>{''.join(children)}</{name}>" if children else f"<{head}/>"


def text(content: object, x: float, y: float, **attributes: object) -> str:
    """Return a text element with escaped content."""
    return element("text", escape(str(content)), x=x, y=y, **attributes)


def _value(item: object) -> str:
    return f"{item:.2f}".rstrip("0").rstrip(".") if isinstance(item, float) else str(item)


@dataclass(frozen=True)
class Series:
    """One curve: name for the legend, style class of the page, points in rising order of x."""

    name: str
    style: str
    points: tuple[tuple[float, float], ...]
    dots: bool = False


@dataclass(frozen=True)
class Level:
    """A horizontal line to compare curves with."""

    name: str
    value: float


@dataclass(frozen=True)
class _Frame:
    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * self.width

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.top + self.height - (value - low) / (high - low) * self.height


def line_chart(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    levels: Sequence[Level] = (),
    from_zero: bool = False,
) -> str:
    """Return a chart as one ``svg`` element; without a point it says so instead."""
    width, height = 720.0, 300.0
    kept = [one for one in (_finite(item) for item in series) if one.points]
    parts = [text(title, 8.0, 18.0, class_="chart-title")]
    if not kept:
        parts.append(text("no data yet", width / 2, height / 2, class_="muted", text_anchor="middle"))
        return _svg(width, height, title, parts)
    xs = [x for one in kept for x, _ in one.points]
    ys = [y for one in kept for _, y in one.points] + [level.value for level in levels] + ([0.0] if from_zero else [])
    frame = _Frame(
        64.0, 44.0, width - 80.0, height - 94.0, _padded(min(xs), max(xs), 0.0), _padded(min(ys), max(ys), 0.05)
    )
    parts += _axes(frame, x_label, y_label)
    for level in levels:
        y = frame.y(level.value)
        parts.append(element("line", x1=frame.left, x2=frame.left + frame.width, y1=y, y2=y, class_="level"))
        parts.append(
            text(
                f"{level.name} {level.value:.3f}", frame.left + frame.width - 4, y - 5, class_="tick", text_anchor="end"
            )
        )
    for one in kept:
        parts.append(_curve(frame, one))
    parts += _legend(kept, height)
    return _svg(width, height, title, parts)


def _svg(width: float, height: float, title: str, parts: list[str]) -> str:
    return element(
        "svg", *parts, viewBox=f"0 0 {_value(width)} {_value(height)}", role="img", aria_label=title, class_="chart"
    )


def _finite(series: Series) -> Series:
    points = tuple(point for point in series.points if isfinite(point[0]) and isfinite(point[1]))
    return Series(series.name, series.style, thin(points), series.dots)


def thin(points: tuple[tuple[float, float], ...], limit: int = MAX_POINTS) -> tuple[tuple[float, float], ...]:
    """Return at most about ``limit`` points that keep the shape: of each stretch its lowest and its highest point."""
    if len(points) <= limit:
        return points
    stretch = -(-len(points) * 2 // limit)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), stretch):
        piece = points[start : start + stretch]
        extremes = {min(piece, key=lambda point: point[1]), max(piece, key=lambda point: point[1])}
        kept += sorted(extremes)
    return tuple(kept if kept[-1] == points[-1] else [*kept, points[-1]])


def _padded(low: float, high: float, share: float) -> tuple[float, float]:
    if low == high:
        return low - 0.5, high + 0.5
    margin = (high - low) * share
    return low - margin if low else low, high + margin


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return round values between two bounds, about as many as wanted."""
    step = 10 ** floor(log10((high - low) / wanted))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= wanted)
    first = -(-low // step)
    count = int((high - first * step) / step + 1e-9) + 1
    return [round((first + index) * step, 12) for index in range(count)]


def _axes(frame: _Frame, x_label: str, y_label: str) -> list[str]:
    bottom, right = frame.top + frame.height, frame.left + frame.width
    parts = [element("line", x1=frame.left, x2=right, y1=bottom, y2=bottom, class_="axis")]
    for value in ticks(*frame.y_range):
        y = frame.y(value)
        parts.append(element("line", x1=frame.left, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(text(short_number(value), frame.left - 6, y + 4, class_="tick", text_anchor="end"))
    for value in ticks(*frame.x_range, 8):
        parts.append(text(short_number(value), frame.x(value), bottom + 16, class_="tick", text_anchor="middle"))
    parts.append(text(x_label, right, bottom + 32, class_="tick", text_anchor="end"))
    parts.append(text(y_label, frame.left - 6, frame.top - 6, class_="tick", text_anchor="end"))
    return parts


def _curve(frame: _Frame, series: Series) -> str:
    places = [(frame.x(x), frame.y(y)) for x, y in series.points]
    marks = places if series.dots or len(places) == 1 else []
    dots = "".join(element("circle", cx=x, cy=y, r=3, class_=f"dot {series.style}") for x, y in marks)
    line = " ".join(f"{_value(x)},{_value(y)}" for x, y in places)
    return element("polyline", points=line, class_=f"curve {series.style}") + dots


def _legend(series: Sequence[Series], height: float) -> list[str]:
    parts, x = [], 64.0
    for one in series:
        parts.append(element("line", x1=x, x2=x + 18, y1=height - 10, y2=height - 10, class_=f"curve {one.style}"))
        parts.append(text(one.name, x + 24, height - 6, class_="tick"))
        x += 40 + 7 * len(one.name)
    return parts


def short_number(value: float) -> str:
    """Return a number as a tick shows it: 0.25, 1,500, 2.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
