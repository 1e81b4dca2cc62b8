#!/usr/bin/env python3
"""Build a small apt repository of stand-in packages: names, versions, units and relations as NVIDIA's have them.

The fabric manager has the branch in its name up to 575 and not from 580 on, as in NVIDIA's repository for Debian 12.

A stand-in fabric manager refuses another driver than its own version, as the real one does. Driver 575.51.03 exists
without a fabric manager of that version (there is 575.51.02): the trap that the role must find.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DRIVERS = ("570.86.10", "575.51.03", "580.65.06")
FABRIC_MANAGERS = ("570.86.10", "575.51.02", "580.65.06")
LOADED = "/run/fixture/root/proc/driver/nvidia/version"

SMI = """#!/bin/sh
loaded=$(grep -o '[0-9][0-9]*[.][0-9.]*' {loaded} 2>/dev/null | head -n 1)
case "$*" in
  --version) echo "NVIDIA-SMI version  : {version}" ;;
  *--query*) printf '    Fabric\\n        State    : %s\\n        Status   : %s\\n' \\
    "$(systemctl is-active -q nvidia-fabricmanager && echo Completed || echo 'In Progress')" \\
    "$(systemctl is-active -q nvidia-fabricmanager && echo Success || echo N/A)" ;;
  *) echo "NVIDIA-SMI {version}  Driver Version: $loaded" ;;
esac
"""
FABRIC_MANAGER = """#!/bin/sh
if [ "$1" = --version ]; then echo "Fabric Manager version is : {version}"; exit 0; fi
grep -q ' {version} ' {loaded} || {{ echo "fabric manager {version}: not the loaded driver's version" >&2; exit 1; }}
exec sleep infinity
"""
UNIT = """[Unit]
Description={name} (stand-in)
[Service]
ExecStart={command}
[Install]
WantedBy=multi-user.target
"""
DOCKER = """#!/bin/sh
echo "docker $*" >>/var/log/docker-stand-in.log
for word in "$@"; do last=$word; done
if [ "$1" = run ]; then exec sh /usr/local/libexec/rackweave/container-probe; fi
"""


def unit(name, command):
    return {f"lib/systemd/system/{name}.service": (UNIT.format(name=name, command=command), 0o644)}


def with_branch(name, version):
    """Return the name that a package of the NVSwitches has in the branch of a version."""
    branch = version.split(".")[0]
    return name if int(branch) >= 580 else f"{name}-{branch}"


def relations(name):
    """Return the fields by which one branch takes another one's place where names carry the branch."""
    family = name.rstrip("0123456789").rstrip("-")
    if family not in ("nvidia-fabricmanager", "libnvidia-nscq"):
        return ""
    provides = f"Provides: {family}\n" if name != family else ""
    return f"{provides}Conflicts: {family}\nReplaces: {family}\n"


def definitions():
    """Yield (name, version, depends, files, service) of each package."""
    for version in DRIVERS:
        text = SMI.format(version=version, loaded=LOADED)
        yield (
            "nvidia-driver-cuda",
            f"{version}-1",
            f"nvidia-kernel-open-dkms (= {version}-1)",
            {"usr/bin/nvidia-smi": (text, 0o755)},
            "",
        )
        yield "nvidia-kernel-open-dkms", f"{version}-1", "", {}, ""
        yield with_branch("libnvidia-nscq", version), f"{version}-1", "", {}, ""
        files = unit("nvidia-persistenced", "/bin/sleep infinity")
        yield "nvidia-persistenced", f"{version}-1", "", files, "nvidia-persistenced"
    for version in FABRIC_MANAGERS:
        text = FABRIC_MANAGER.format(version=version, loaded=LOADED)
        files = {"usr/bin/nv-fabricmanager": (text, 0o755), **unit("nvidia-fabricmanager", "/usr/bin/nv-fabricmanager")}
        yield with_branch("nvidia-fabricmanager", version), f"{version}-1", "", files, "nvidia-fabricmanager"
    yield "datacenter-gpu-manager-4-cuda12", "1:4.2.3-1", "", unit("nvidia-dcgm", "/bin/sleep infinity"), "nvidia-dcgm"
    exporter = unit("nvidia-dcgm-exporter", "/bin/sleep infinity")
    yield "datacenter-gpu-manager-exporter", "4.2.0-1", "", exporter, "nvidia-dcgm-exporter"
    yield "nvidia-container-toolkit", "1.17.8-1", "", {"usr/bin/nvidia-container-runtime": ("#!/bin/sh\n", 0o755)}, ""
    docker = {"usr/bin/docker": (DOCKER, 0o755), **unit("docker", "/bin/sleep infinity")}
    yield "docker-stand-in", "28.0.0-1", "adduser", docker, "docker"
    yield "enroot-stand-in", "3.5.0-1", "", {"usr/bin/enroot": ("#!/bin/sh\n", 0o755)}, ""
    yield "pyxis-stand-in", "0.20.0-1", "", {"usr/lib/slurm/spank_pyxis.so": ("", 0o644)}, ""


def build(directory, name, version, depends, files, service):
    """Build one package with dpkg-deb and return its entry of the package index."""
    file_name = f"{name}_{version.replace(':', '%3a')}_all.deb"
    with tempfile.TemporaryDirectory() as work:
        root = Path(work)
        for path, (text, mode) in files.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            target.chmod(mode)
        control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\n"
        control += f"Depends: {depends}\n" if depends else ""
        control += relations(name)
        control += f"Description: stand-in for {name}\n"
        debian = root / "DEBIAN"
        debian.mkdir(mode=0o755)
        (debian / "control").write_text(control)
        if service:
            group = "getent group docker >/dev/null || addgroup --system docker\n" if service == "docker" else ""
            script = f"#!/bin/sh\n{group}systemctl daemon-reload\nsystemctl try-restart {service}.service || true\n"
            (debian / "postinst").write_text(script)
            (debian / "postinst").chmod(0o755)
        root.chmod(0o755)
        subprocess.run(["dpkg-deb", "--build", "--root-owner-group", work, str(directory / file_name)], check=True)
    data = (directory / file_name).read_bytes()
    return f"{control}Filename: ./{file_name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"


def ofed(release, kernel):
    """Return the packages of one release of OFED, which is a repository of its own."""
    yield "mlnx-ofed-kernel-dkms", kernel, "", {}, ""
    yield "doca-ofed", release, f"mlnx-ofed-kernel-dkms (= {kernel})", {}, ""


def repository(directory, packages):
    """Build the packages of one repository and its index."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / "Packages").write_text("\n".join(build(directory, *package) for package in packages))


def main():
    directory = Path(sys.argv[1])
    repository(directory, definitions())
    repository(directory.parent / "ofed-2.9.1", ofed("2.9.1-018000", "24.10.OFED.24.10.1.1.4.1-1"))
    repository(directory.parent / "ofed-3.0.0", ofed("3.0.0-058000", "25.04.OFED.25.04.0.6.1.1-1"))


if __name__ == "__main__":
    main()
