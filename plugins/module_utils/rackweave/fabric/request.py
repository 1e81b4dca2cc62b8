"""What a NCCL environment is made for, and what comes out: the dataclasses shared by the rules that make it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import FabricError
from ..hardware.node import Gid
from ..hardware.version import version_numbers
from .block import Fabric
from .findings import Finding, ordered
from .gid import gid_table
from .nccl_conf import checked_value, conf_text
from .rails import RailPlan

REASONS_SCHEMA = "rackweave.nccl-reasons/1"
PROFILES = ("production", "acceptance", "lab")


@dataclass(frozen=True)
class EnvironmentRequest:
    """One request for all hosts.

    Attributes:
        nccl_version: of the library that the job will load; None only where no RDMA fabric is declared.
        torch_version: of the job's PyTorch; None where unknown.
        nccl_plugins: network plugins of the job's image; None means unknown for an image, see `image`.
        image: whether the job runs in a container image, whose plugins are not those of the host.
        log_directory: where NCCL and PyTorch may write per-rank files; None leaves that to the launcher.
        collective_timeout_s: after which a collective is given up.
    """

    fabric: Fabric
    nccl_version: str | None = None
    torch_version: str | None = None
    profile: str = "production"
    nccl_plugins: tuple[str, ...] | None = None
    image: bool = False
    log_directory: str | None = None
    collective_timeout_s: int = 600

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise FabricError(f"profile={self.profile!r} must be one of {', '.join(PROFILES)}")
        if self.fabric.kind != "ethernet" and len(version_numbers(self.nccl_version or "")) < 2:
            raise FabricError(
                f"nccl_version={self.nccl_version!r}: name the NCCL that the job loads (like 2.22.3); which variables "
                f"help or harm on a fabric of kind {self.fabric.kind} depends on it"
            )
        if self.collective_timeout_s < 1:
            raise FabricError(f"collective_timeout_s={self.collective_timeout_s} must be at least 1 second")

    @property
    def nccl(self) -> str:
        """The NCCL version as text, empty where none was named."""
        return self.nccl_version or ""


@dataclass(frozen=True)
class Setting:
    """One variable of the environment; `source` says where the value comes from (document, fabric block, rule)."""

    name: str
    value: str
    reason: str
    source: str


@dataclass(frozen=True)
class GidPrediction:
    """The GID row that NCCL will use on one port; `fault` says why packets sent with it would not arrive."""

    device: str
    port: int
    index: int
    gid: str | None
    fault: str | None
    gids: tuple[Gid, ...] = ()

    def as_dict(self) -> dict[str, object]:
        return {
            "device": self.device,
            "port": self.port,
            "index": self.index,
            "gid": self.gid,
            "fault": self.fault,
            "table": gid_table(self.gids),
        }


@dataclass
class Draft:
    """An environment in the making: rules append to it."""

    settings: dict[str, Setting] = field(default_factory=dict)
    omitted: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def set(self, name: str, value: str, reason: str, source: str) -> None:
        self.settings[name] = Setting(name, checked_value(name, value), reason, source)
        self.omitted.pop(name, None)

    def omit(self, name: str, reason: str) -> None:
        self.omitted[name] = reason
        self.settings.pop(name, None)


@dataclass(frozen=True)
class NodeEnvironment:
    """The environment of one host with the reason for every value, and for every value left out."""

    host: str
    settings: tuple[Setting, ...]
    omitted: tuple[tuple[str, str], ...]
    rails: RailPlan
    gids: tuple[GidPrediction, ...]
    findings: tuple[Finding, ...]

    @property
    def variables(self) -> dict[str, str]:
        return {setting.name: setting.value for setting in self.settings}

    def conf(self) -> str:
        """Return the text of ``nccl/<host>.conf``."""
        return conf_text(self.variables)

    def reasons(self, request: EnvironmentRequest) -> dict[str, object]:
        """Return the content of ``nccl/<host>.reasons.json``."""
        return {
            "schema": REASONS_SCHEMA,
            "host": self.host,
            "nccl_version": request.nccl_version,
            "profile": request.profile,
            "variables": {
                setting.name: {"value": setting.value, "reason": setting.reason, "source": setting.source}
                for setting in self.settings
            },
            "omitted": dict(self.omitted),
            "rails": rails_as_dicts(self.rails),
            "devices": [
                {"device": it.device, "bdf": it.bdf, "role": it.role, "reason": it.reason} for it in self.rails.verdicts
            ],
            "gids": [prediction.as_dict() for prediction in self.gids],
            "findings": [finding.as_dict() for finding in ordered(list(self.findings))],
        }


def rails_as_dicts(plan: RailPlan) -> list[dict[str, object]]:
    """Return the rails of a host as plain values."""
    return [
        {
            "rail": rail.index,
            "hcas": [f"{member.device}:{member.port}" for member in rail.members],
            "bdfs": [member.bdf for member in rail.members],
            "gpus": list(rail.gpus),
            "distance": rail.distance,
            "rate_gbps": rail.rate_gbps,
            "subnet": rail.subnet,
        }
        for rail in plan.rails
    ]
