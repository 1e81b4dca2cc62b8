import pytest
from rackweave.errors import ProvisionError
from rackweave.provision import storage

NFS = {"path": "/mnt/shared", "type": "nfs", "source": "nas:/export/training"}
LUSTRE = {"path": "/mnt/fast", "type": "lustre", "source": "10.0.0.1@o2ib:10.0.0.2@o2ib:/training"}


def test_defaults_keep_a_node_bootable_and_a_save_from_failing():
    (line,) = storage.fstab_lines([NFS])
    options = line.split()[3].split(",")
    assert {"nofail", "_netdev", "hard"} <= set(options)


def test_gpfs_stays_out_of_the_mount_table():
    assert storage.fstab_lines([{"path": "/gpfs", "type": "gpfs", "source": "fs1"}]) == []


def test_a_parent_is_mounted_before_what_lies_below_it():
    below = {**NFS, "path": "/mnt/shared/scratch", "source": "nas:/scratch"}
    assert [mount["path"] for mount in storage.mounts([below, NFS])] == ["/mnt/shared", "/mnt/shared/scratch"]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({**NFS, "type": "nfs5"}, "nfs5"),
        ({**NFS, "source": "nas"}, "form that nfs takes"),
        ({**LUSTRE, "source": "/training"}, "form that lustre takes"),
        ({**NFS, "path": "mnt"}, "absolute path"),
        ({**NFS, "path": "/mnt/../etc"}, "absolute path"),
        ({**NFS, "path": "/mnt/a b"}, "absolute path"),
        ({**NFS, "opts": "ro"}, "unknown key opts"),
        ({"path": "/mnt"}, "source"),
    ],
)
def test_a_mount_that_cannot_work_is_refused(row, complaint):
    with pytest.raises(ProvisionError, match=complaint):
        storage.mounts([row])


def test_two_mounts_of_one_path_are_refused():
    with pytest.raises(ProvisionError, match="more than one"):
        storage.mounts([NFS, {**NFS, "source": "nas:/other"}])


TABLE = (
    "proc /proc proc rw 0 0\n"
    "nas:/export/training /mnt/shared nfs4 rw,vers=4.2 0 0\n"
    "nas:/a\\040b /mnt/x\\040y nfs4 rw 0 0\n"
)


def test_a_right_mount_is_right_also_when_the_kernel_says_nfs4():
    assert storage.mounted_wrongly(storage.mounts([NFS])[0], TABLE) is None


def test_an_absent_and_a_foreign_mount_are_told_apart():
    assert storage.mounted_wrongly(storage.mounts([LUSTRE])[0], TABLE) == "absent"
    other = storage.mounts([{**NFS, "source": "other:/export"}])[0]
    assert "nas:/export/training" in storage.mounted_wrongly(other, TABLE)


def test_the_last_mount_of_a_path_is_the_one_that_is_seen():
    table = TABLE + "tmpfs /mnt/shared tmpfs rw 0 0\n"
    assert "tmpfs" in storage.mounted_wrongly(storage.mounts([NFS])[0], table)


def test_targets_become_lines_of_discovery():
    assert storage.discovery_lines(
        [{"transport": "rdma", "address": "10.0.0.2", "subsystem": "nqn.2014-08.org:a"}]
    ) == ["--transport=rdma --traddr=10.0.0.2 --trsvcid=4420 --nqn=nqn.2014-08.org:a"]
    with pytest.raises(ProvisionError, match="rdma or tcp"):
        storage.discovery_lines([{"transport": "fc", "address": "10.0.0.2"}])


def test_striping_is_set_once():
    stripe = {"count": -1, "size": "16M"}
    assert storage.stripe_arguments(stripe) == ["-c", "-1", "-S", "16M"]
    assert storage.stripe_is_set(stripe, "-1\n16777216\n")
    assert not storage.stripe_is_set(stripe, "1\n16777216\n")
    assert not storage.stripe_is_set(stripe, "")


@pytest.mark.parametrize("stripe", [{"count": 0}, {"count": -2}, {"count": True}, {"size": "16 MB"}, {"size": "big"}])
def test_impossible_striping_is_refused(stripe):
    with pytest.raises(ProvisionError, match="stripe"):
        storage.stripe_arguments(stripe)


def test_options_are_one_field_of_the_mount_table():
    nfs = {"path": "/mnt/a", "type": "nfs", "source": "server:/export"}
    assert storage.mounts([{**nfs, "options": ["hard", "nofail"]}])[0]["options"] == "hard,nofail"
    assert storage.mounts([{**nfs, "options": []}]) == storage.mounts([nfs])
    for options in ("hard, nofail", "hard,,nofail", {"hard": True}, 5):
        with pytest.raises(ProvisionError, match="one text with commas"):
            storage.mounts([{**nfs, "options": options}])


def test_a_slash_at_the_end_of_an_nfs_directory_is_no_other_source():
    wanted = storage.mounts([{"path": "/mnt/a", "type": "nfs", "source": "server:/export/"}])[0]
    assert storage.mounted_wrongly(wanted, "server:/export /mnt/a nfs4 rw 0 0\n") is None
    assert "server:/other" in storage.mounted_wrongly(wanted, "server:/other /mnt/a nfs4 rw 0 0\n")


@pytest.mark.parametrize(
    "change",
    [{"address": "10.0.0.2 --nqn=x"}, {"address": ""}, {"port": 0}, {"port": "x"}, {"subsystem": "a b"}, {1: 2}],
)
def test_a_target_that_would_become_other_arguments_is_refused(change):
    with pytest.raises(ProvisionError, match="shared_storage_nvme_targets"):
        storage.discovery_lines([{"transport": "rdma", "address": "10.0.0.2", **change}])


@pytest.mark.parametrize("stripe", ["4", None, [4], {"stripe_count": 4}])
def test_a_stripe_of_another_form_is_refused(stripe):
    with pytest.raises(ProvisionError, match="a stripe has count and size"):
        storage.stripe_arguments(stripe)


def test_directories_that_can_be_made_come_back_as_they_are():
    rows = [{"path": "/mnt/a/runs", "owner": "hpc", "mode": "2775", "stripe": {"count": -1}}, {"path": "/mnt/b"}]
    rows.append({"path": "/mnt/c", "mode": "01777"})
    assert storage.directories(rows) == rows


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"mode": "0755"}, "must have path"),
        ("/mnt/a", "must have path"),
        ({"path": "/mnt/a", "user": "hpc"}, "may have group, mode, owner, stripe"),
        ({"path": "mnt/a"}, "absolute path"),
        ({"path": "/"}, "absolute path"),
        ({"path": "/mnt/../etc"}, "absolute path"),
        ({"path": "/mnt/a", "mode": 755}, "octal digits in quotes"),
        ({"path": "/mnt/a", "mode": "u+x"}, "octal digits in quotes"),
        ({"path": "/mnt/a", "stripe": {"count": 0}}, "stripe count"),
    ],
)
def test_a_directory_that_would_come_out_otherwise_is_refused(row, words):
    with pytest.raises(ProvisionError, match=words):
        storage.directories([row])


def test_hosts_that_see_another_file_system_than_the_submit_host_are_named():
    seen = {"trn02": None, "trn01": "b", "trn03": "a"}
    with pytest.raises(ProvisionError, match=r"trn02 cannot read it and trn01 read another one.*shared_storage_mounts"):
        storage.check_same_view("a", seen, "ctl01", "/mnt/shared/x")
    assert storage.check_same_view("a", {"trn03": "a"}, "ctl01", "/mnt/shared/x") == ["trn03"]


def test_of_many_hosts_without_the_file_system_a_few_are_named():
    with pytest.raises(ProvisionError, match=r"trn00, .*trn15 and 84 more cannot read it"):
        storage.check_same_view("a", {f"trn{number:02d}": None for number in range(100)}, "ctl01", "/mnt/shared/x")


def test_mounts_that_are_due_are_named():
    wanted = storage.mounts([NFS, LUSTRE])
    table = "nas:/export/training /mnt/shared nfs4 rw 0 0\n"
    assert storage.absent_mounts(wanted, table) == ["/mnt/fast"]


@pytest.mark.parametrize(
    ("path", "ready"),
    [("/mnt/fast/runs", False), ("/mnt/fast", False), ("/mnt/faster/runs", True), ("/mnt/shared/runs", True)],
)
def test_no_directory_is_made_below_a_mount_that_is_absent(path, ready):
    assert storage.directories_ready([{"path": path}], ["/mnt/fast"]) is ready
