"""Limits: what is configured, and what the running slurmd and a job step really have."""

import pytest

CAP_SYS_RESOURCE = 24


def to_bytes(word):
    """Read a limit of /proc/PID/limits or of systemd; -1 is unlimited."""
    return -1 if word in ("unlimited", "infinity") else int(word)


def process_limits(host, pid):
    """Return the soft and the hard limit of locked memory of a process."""
    text = host.check_output(f"grep '^Max locked memory' /proc/{pid}/limits")
    return tuple(to_bytes(word) for word in text.split()[3:5])


def slurmd_pid(host):
    pid = host.check_output("systemctl show slurmd --value --property=MainPID")
    assert pid != "0", "slurmd does not run"
    return pid


def reachable(host, wanted):
    """Return what systemd can give a service: as configured, unless it may not raise limits itself (in a container)."""
    status = host.file("/proc/1/status").content_string
    capable = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff")), 16)
    hard = process_limits(host, 1)[1]
    if capable >> CAP_SYS_RESOURCE & 1 or hard == -1:
        return wanted
    return hard if wanted == -1 else min(wanted, hard)


def configured(host):
    return to_bytes(host.check_output("systemctl show slurmd --value --property=LimitMEMLOCK"))


def test_the_running_slurmd_has_the_limit_that_is_configured(node):
    soft, _hard = process_limits(node, slurmd_pid(node))
    expected = reachable(node, configured(node))
    assert soft == expected, f"configured {configured(node)}, effective {soft}, possible {expected}"


def test_slurmd_is_configured_without_a_limit(node, entry):
    if not entry["slurm_manage"]:
        pytest.skip("this Slurm is not ours")
    shown = node.check_output("systemctl show slurmd --value --property=DropInPaths")
    assert configured(node) == -1, f"a drop-in sets another one: {shown}"


def test_a_job_step_has_the_limit_that_slurmd_should_have(node, step):
    expected = reachable(node, configured(node))
    assert step["memlock"][0] == expected, f"configured {configured(node)}, in a step {step['memlock']}"


def test_locked_memory_of_logins_is_configured(any_node, entry):
    lines = any_node.file("/etc/security/limits.d/90-rackweave.conf").content_string.splitlines()
    found = {tuple(line.split()[:2]) for line in lines if line.endswith(f" memlock {entry['memlock']}")}
    assert found == {("*", "soft"), ("*", "hard"), ("root", "soft"), ("root", "hard")}


def test_no_other_file_limits_locked_memory_of_logins(any_node):
    files = "/etc/security/limits.conf /etc/security/limits.d/*.conf"
    found = any_node.run(rf"grep --with-filename --extended-regexp '^[^#]*\smemlock\s' {files}").stdout.splitlines()
    assert [line for line in found if "/90-rackweave.conf:" not in line] == []


def test_locked_memory_of_services_is_configured(any_node, entry):
    value = "infinity" if entry["memlock"] == "unlimited" else f"{entry['memlock']}K"
    assert (
        f"DefaultLimitMEMLOCK={value}" in any_node.file("/etc/systemd/system.conf.d/90-rackweave.conf").content_string
    )


def test_no_other_file_limits_locked_memory_of_services(any_node):
    shown = any_node.check_output("systemd-analyze cat-config systemd/system.conf").splitlines()
    found, file = {}, ""
    for line in shown:
        file = line[2:] if line.startswith("# /") else file
        if line.startswith("DefaultLimitMEMLOCK="):
            found[file] = line
    assert {name: line for name, line in found.items() if not name.endswith("/90-rackweave.conf")} == {}


def test_shared_memory_is_as_large_as_the_node_document_says(node, step, document):
    assert step["shm_bytes"] == document["limits"]["shm_bytes"]
