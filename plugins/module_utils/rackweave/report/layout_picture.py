"""A picture of where ranks run: one row per host, one cell per GPU, coloured by pipeline stage."""

from __future__ import annotations

from collections.abc import Collection
from html import escape

from ..run.plan_file import RankPlace, RunPlan
from .svg import element, text

CELL_WIDTH, CELL_HEIGHT, GAP, LEFT, TOP = 84.0, 46.0, 6.0, 120.0, 30.0


def layout_picture(plan: RunPlan, blamed_ranks: Collection[int] = (), blamed_hosts: Collection[str] = ()) -> str:
    """Return the cluster picture as one ``svg`` element; blamed ranks and hosts are outlined and marked with a sign."""
    columns = max(len(plan.ranks_on(host)) for host in plan.hosts)
    by_host: dict[str, list[RankPlace]] = {host: [] for host in plan.hosts}
    for place in plan.ranks:
        by_host[place.host].append(place)
    parts = [
        text(
            f"GPU {index}",
            LEFT + index * (CELL_WIDTH + GAP) + CELL_WIDTH / 2,
            18.0,
            class_="tick",
            text_anchor="middle",
        )
        for index in range(columns)
    ]
    for row, (host, places) in enumerate(by_host.items()):
        y = TOP + row * (CELL_HEIGHT + GAP)
        mark = " ⚠" if host in blamed_hosts else ""
        parts.append(text(host + mark, LEFT - 12, y + 20, class_="host", text_anchor="end"))
        parts.append(text(f"node rank {row}", LEFT - 12, y + 36, class_="tick", text_anchor="end"))
        for column, place in enumerate(places):
            parts.append(_cell(place, LEFT + column * (CELL_WIDTH + GAP), y, place.rank in blamed_ranks))
    width = LEFT + columns * (CELL_WIDTH + GAP)
    height = TOP + len(by_host) * (CELL_HEIGHT + GAP)
    label = f"{plan.world_size} ranks on {len(by_host)} hosts"
    return element("svg", *parts, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label, class_="cluster",
                   style=f"max-width:{width:g}px")  # fmt: skip


def _cell(place: RankPlace, x: float, y: float, blamed: bool) -> str:
    words = (
        f"rank {place.rank} on {place.host}, GPU {place.gpu_bdf or place.gpu_index}, NIC {place.hca or '-'}: "
        f"pipeline stage {place.pp_rank}, tensor {place.tp_rank}, data {place.dp_rank}, context {place.cp_rank}"
    )
    style = f"cell stage{place.pp_rank % 8}" + (" blamed" if blamed else "")
    return element(
        "g",
        element("title", escape(words)),
        element("rect", x=x, y=y, width=CELL_WIDTH, height=CELL_HEIGHT, rx=5, class_=style),
        text(f"{place.rank}{' ⚠' if blamed else ''}", x + 8, y + 18, class_="rank"),
        text(f"PP{place.pp_rank}", x + CELL_WIDTH - 8, y + 18, class_="axis-name", text_anchor="end"),
        text(f"TP{place.tp_rank} · DP{place.dp_rank}", x + 8, y + 36, class_="axis-name"),
    )
