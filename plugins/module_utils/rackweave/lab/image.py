"""The recipe of the node image: what mmdebstrap is asked for, and the key under which the result is kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

RECIPE_VERSION = 3
SSHD_SETTINGS = """\
PermitRootLogin prohibit-password
PasswordAuthentication no
UseDNS no
"""
# A container has no first-boot service that makes host keys; an image that carries them would give all nodes the same.
HOST_KEYS_UNIT = """\
[Unit]
Description=Make the SSH host keys of this node
ConditionPathExists=!/etc/ssh/ssh_host_ed25519_key
Before=ssh.service

[Service]
Type=oneshot
ExecStart=/usr/bin/ssh-keygen -q -N "" -t ed25519 -f /etc/ssh/ssh_host_ed25519_key

[Install]
WantedBy=multi-user.target
"""
# Units that wait for hardware or consoles that a container has not.
MASKED_UNITS = (
    "getty.target",
    "console-getty.service",
    "systemd-udevd.service",
    "systemd-udev-trigger.service",
    "tmp.mount",
)
# What the roles set up belongs to the roles: a daemon that runs before it is configured only fails.
DISABLED_UNITS = ("munge.service", "slurmd.service", "slurmctld.service", "chrony.service")


@dataclass(frozen=True)
class ImageRecipe:
    """A Debian suite, the packages on top of its minimal base, and the mirror (empty: mmdebstrap's default)."""

    suite: str
    packages: tuple[str, ...]
    mirror: str = ""


def image_key(recipe: ImageRecipe) -> str:
    """Return a short digest of everything that decides what is in the image."""
    parts = [
        RECIPE_VERSION,
        recipe.suite,
        sorted(recipe.packages),
        SSHD_SETTINGS,
        HOST_KEYS_UNIT,
        list(MASKED_UNITS),
        list(DISABLED_UNITS),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def mmdebstrap_arguments(recipe: ImageRecipe, files_dir: str, target: str) -> list[str]:
    """Return the arguments of ``mmdebstrap`` that write the image's root file system to ``target``, a tar file.

    Args:
        recipe: what goes in.
        files_dir: directory that holds :data:`HOST_KEYS_UNIT` and :data:`SSHD_SETTINGS` as
            ``rackweave-host-keys.service`` and ``rackweave.conf``.
        target: path of the tar file.
    """
    hooks = [
        f"copy-in {files_dir}/rackweave-host-keys.service /etc/systemd/system",
        f"copy-in {files_dir}/rackweave.conf /etc/ssh/sshd_config.d",
        'rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/munge/munge.key',  # no secret is baked in
        'chroot "$1" systemctl enable ssh.service rackweave-host-keys.service',
        f'chroot "$1" systemctl mask {" ".join(MASKED_UNITS)}',
        _disable(DISABLED_UNITS),
        'rm -f "$1"/etc/machine-id && touch "$1"/etc/machine-id',
    ]
    arguments = [
        "--variant=minbase",
        f"--include={','.join(sorted(recipe.packages))}",
        "--aptopt=APT::Install-Recommends false",
        "--dpkgopt=force-unsafe-io",
        # A machine has package lists; without them a node could not say in check mode what it would install.
        "--skip=cleanup/apt/lists",
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "doc", "locale")),
        *(f"--customize-hook={hook}" for hook in hooks),
        recipe.suite,
        target,
    ]
    return [*arguments, recipe.mirror] if recipe.mirror else arguments


def _disable(units: Sequence[str]) -> str:
    """Return a shell loop that disables those of the units that the image has: a recipe may leave Slurm out."""
    words = " ".join(units)
    test = '[ -e "$1/lib/systemd/system/$unit" ]'
    return f'for unit in {words}; do if {test}; then chroot "$1" systemctl disable "$unit" || exit 1; fi; done'


def removable_images(images: str, used: str, repository: str) -> list[str]:
    """Return the images of a repository that no container uses, by name and tag.

    Args:
        images: lines ``repository:tag id``.
        used: image ids of all containers, shortened or not, one a line.
        repository: image name without tag.
    """
    in_use = [_plain_id(identity) for identity in used.split()]
    found = []
    for line in images.splitlines():
        name, _, identity = line.strip().partition(" ")
        if name.rpartition(":")[0] == repository and not any(_plain_id(identity).startswith(short) for short in in_use):
            found.append(name)
    return sorted(found)


def _plain_id(identity: str) -> str:
    return identity.strip().rpartition(":")[2]


def import_changes() -> list[str]:
    """Return what ``podman import`` must note down so that the image starts systemd and stops in an orderly way."""
    return ["--change", 'CMD ["/lib/systemd/systemd"]', "--change", "STOPSIGNAL SIGRTMIN+3"]
