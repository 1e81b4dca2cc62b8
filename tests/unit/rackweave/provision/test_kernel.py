"""The kernel of a node: which one boots next, what its line lacks, what is due for a reboot."""

import pytest
from rackweave.errors import ProvisionError
from rackweave.provision import kernel

RUNNING = "6.1.0-18-amd64"


def facts(running=RUNNING, headers=True, others=(), arguments=(), modules=()):
    rows = [{"release": running, "headers": headers}] + [{"release": r, "headers": h} for r, h in others]
    lists = {"kernels": rows, "kernel_arguments": list(arguments), "modules": list(modules)}
    return {"kernel": running, "headers": headers, **lists}


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("6.1.0-9-amd64", "6.1.0-18-amd64"),
        ("6.1.0-18-amd64", "6.12.0-1-amd64"),
        ("5.14.0-362.el9.x86_64", "5.14.0-362.8.1.el9_3.x86_64"),
        ("5.14.0-284.el9.x86_64", "5.14.0-362.el9.x86_64"),
        ("6.1.0-0.deb11.13-amd64", "6.1.0-0.deb11.21-amd64"),
        ("5.15.0-1063-nvidia", "6.8.0-45-generic"),
    ],
)
def test_releases_are_ordered_as_the_package_managers_do(older, newer):
    assert kernel.kernel_order(older) < kernel.kernel_order(newer)


def test_another_flavour_of_the_running_version_is_no_newer_kernel():
    assert kernel.newest_kernel(facts(others=[("6.1.0-18-cloud-amd64", False)])) == RUNNING


def test_an_older_kernel_that_is_kept_is_no_finding():
    assert kernel.kernel_findings(facts(others=[("6.1.0-9-amd64", False)])) == []


def test_p059_a_kernel_that_moved_is_named_with_both_releases():
    (finding,) = kernel.kernel_findings(facts(others=[("6.1.0-21-amd64", True)]))
    assert "6.1.0-18-amd64 runs" in finding
    assert "6.1.0-21-amd64" in finding


def test_p061_missing_headers_are_named_for_the_running_and_the_next_kernel():
    findings = kernel.kernel_findings(facts(headers=False, others=[("6.1.0-21-amd64", False)]))
    assert len(findings) == 3
    assert "/lib/modules/6.1.0-18-amd64/build" in findings[1]
    assert "/lib/modules/6.1.0-21-amd64/build" in findings[2]


def test_a_driver_that_would_be_gone_after_the_next_boot_is_refused_and_one_that_stays_is_not():
    assert "6.1.0-21-amd64" in kernel.kernel_moved(facts(others=[("6.1.0-21-amd64", False)]))
    assert kernel.kernel_moved(facts(others=[("6.1.0-21-amd64", True)])) is None
    assert kernel.kernel_moved(facts()) is None


def test_facts_without_images_know_the_running_kernel_only():
    bare = {**facts(), "kernels": []}
    assert kernel.newest_kernel(bare) == RUNNING
    assert kernel.kernel_findings(bare) == []


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        (["intel_iommu=on"], ["iommu=pt"]),
        (["iommu=pt"], []),
        (["iommu=pt", "iommu=nopt"], ["iommu=pt"]),
        (["iommu=nopt", "iommu=pt"], []),
        ([], ["iommu=pt"]),
    ],
)
def test_the_last_value_of_a_key_counts_on_a_kernel_line(line, missing):
    assert kernel.missing_arguments(line, ["iommu=pt"]) == missing


@pytest.mark.parametrize(
    ("consent", "multi_tenant", "virtual", "action", "words"),
    [
        (False, False, False, "report", "node_base_iommu_ok"),
        (True, False, False, "set", "gets iommu=pt (now iommu=strict)"),
        (False, True, False, "report", "WARNING: tenants"),
        (True, True, False, "report", "WARNING: tenants"),
        (True, False, True, "skip", "hypervisor"),
    ],
)
def test_the_kernel_line_is_written_only_with_consent_on_a_host_of_ones_own(
    consent, multi_tenant, virtual, action, words
):
    report = kernel.kernel_line_report(
        ["iommu=pt"], ["iommu=strict"], consent=consent, multi_tenant=multi_tenant, virtual=virtual
    )
    assert report["action"] == action
    assert words in report["message"]


@pytest.mark.parametrize(
    "arguments", [["iommu=pt quiet"], ["iommu='pt'"], ['a="b"'], ["$(reboot)"], ["iommu=pt", "iommu=on"], [""]]
)
def test_arguments_that_would_arrive_as_others_are_refused(arguments):
    with pytest.raises(ProvisionError, match="node_base_kernel_arguments"):
        kernel.check_kernel_arguments(arguments)


def test_boot_entries_are_searched_for_whole_words():
    entries = 'linux /vmlinuz root=UUID=1 iommu=ptx\nargs="ro iommu=pt quiet"'
    assert kernel.arguments_absent(entries, ["iommu=pt", "iommu=ptx", "intel_iommu=on"]) == ["intel_iommu=on"]


@pytest.mark.parametrize(
    ("listing", "stale"),
    [
        ("etc/modprobe.d/other.conf\nusr/lib/modules/6.1/kernel/drivers/gpu/drm/nouveau/nouveau.ko", True),
        ("etc/modprobe.d/rackweave-nouveau.conf", False),
        ("-rw-r--r-- 1 root root 56 Jan 1 2026 etc/modprobe.d/rackweave-nouveau.conf", False),
        ("./etc/modprobe.d/rackweave-nouveau.conf", False),
        ("", True),
    ],
)
def test_p063_an_initial_ram_disk_without_the_blacklist_file_is_stale(listing, stale):
    assert kernel.initramfs_stale(listing, "/etc/modprobe.d/rackweave-nouveau.conf") is stale


def test_parameters_that_the_kernel_lacks_are_no_difference():
    wanted = {"kernel.numa_balancing": 0, "vm.zone_reclaim_mode": 0, "net.ipv4.tcp_rmem": "4096 87380  16777216"}
    text = "kernel.numa_balancing = 1\nnet.ipv4.tcp_rmem = 4096\t87380\t16777216\n"
    assert kernel.sysctl_differences(wanted, text) == ["kernel.numa_balancing"]


@pytest.mark.parametrize("values", [{"numa": 1}, {"vm.x": ""}, {"vm.x": "1\n2"}, {"vm.x; reboot": 1}])
def test_a_parameter_that_is_none_is_refused(values):
    with pytest.raises(ProvisionError, match="node_base_sysctl"):
        kernel.sysctl_lines(values)


def test_sizes_are_read_and_percents_refused():
    assert kernel.size_bytes("64G", "node_base_shm_size") == 64 * 1024**3
    for text in ("75%", "64", "0G", "64GB", "-1G"):
        with pytest.raises(ProvisionError, match="node_base_shm_size"):
            kernel.size_bytes(text, "node_base_shm_size")


def test_the_reasons_of_a_reboot_are_all_listed():
    reasons = kernel.base_reboot_reasons(
        facts(others=[("6.1.0-21-amd64", True)], modules=["nouveau"]),
        arguments=["iommu=pt"], arguments_set=True, nouveau_blocked=True,
    )  # fmt: skip
    assert [word in reason for word, reason in zip(("6.1.0-21", "iommu=pt", "nouveau"), reasons)] == [True] * 3


def test_nothing_is_due_where_nothing_was_set():
    moved = facts(modules=["nouveau"])
    assert kernel.base_reboot_reasons(moved, arguments=["iommu=pt"], arguments_set=False, nouveau_blocked=False) == []
