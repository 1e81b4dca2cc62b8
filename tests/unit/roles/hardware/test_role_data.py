"""Rules that the hardware roles follow as data: systems, versions, handlers, reboots, templates, order."""

import re
from pathlib import Path

import jinja2
import pytest
import yaml
from rackweave.provision.units import unit_command

ROOT = Path(__file__).resolve().parents[4]
HARDWARE = ("rdma_fabric", "gpu_driver", "container_runtime", "shared_storage", "monitoring")
SYSTEMS = ("debian-12", "debian-13", "ubuntu-22.04", "ubuntu-24.04", "el-9")
WRITERS = {
    "ansible.builtin.template",
    "ansible.builtin.copy",
    "ansible.builtin.lineinfile",
    "ansible.builtin.blockinfile",
}


def load(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def flat(entries):
    for entry in entries or []:
        yield entry
        for key in ("block", "rescue", "always"):
            yield from flat(entry.get(key))


def tasks(role):
    for path in sorted((ROOT / "roles" / role / "tasks").glob("*.yml")):
        for task in flat(load(path)):
            yield path.name, task


def render(path, **variables):
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["comment"] = lambda text: f"# {text}"
    environment.filters["rackweave.cluster.gpu_count"] = lambda facts: facts["count"]
    environment.filters["rackweave.cluster.unit_command"] = unit_command
    environment.filters["flatten"] = lambda rows: [x for row in rows for x in (row if isinstance(row, list) else [row])]
    environment.tests["match"] = lambda text, pattern: re.match(pattern, text) is not None
    text = (ROOT / path).read_text(encoding="utf-8")
    return environment.from_string(text).render(ansible_managed="managed", **variables)


@pytest.mark.parametrize("role", HARDWARE)
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_supported_system_has_data_and_a_line_in_the_support_table(role, system):
    assert load(f"roles/{role}/vars/{system}.yml")
    named = {"debian-12": "Debian 12", "debian-13": "Debian 13", "el-9": "EL 9"}
    label = named.get(system, system.replace("ubuntu-", "Ubuntu "))
    assert label in (ROOT / f"roles/{role}/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("role", HARDWARE)
def test_what_is_called_proven_is_a_subset_of_what_is_supported(role):
    variables = load(f"roles/{role}/vars/main.yml")
    assert set(variables[f"__{role}_proven"]) <= set(variables[f"__{role}_supported"]) == set(SYSTEMS)


@pytest.mark.parametrize("system", SYSTEMS)
def test_p051_driver_modules_and_fabric_manager_must_all_have_the_same_version(system):
    for source in load(f"roles/gpu_driver/vars/{system}.yml")["__gpu_driver_sources"].values():
        assert set(source["flavours"]) == {"open", "proprietary"}
        for rows in (*source["flavours"].values(), source.get("fabric_manager") or []):
            assert all(row["same_version"] is True for row in rows)


@pytest.mark.parametrize("role", HARDWARE)
def test_p091_no_handler_acts_on_a_node_with_work(role):
    path = ROOT / f"roles/{role}/handlers/main.yml"
    for handler in load(path) if path.exists() else []:
        conditions = handler["when"] if isinstance(handler["when"], list) else [handler["when"]]
        assert f"not __{role}_dry" in conditions, handler["name"]


@pytest.mark.parametrize("role", HARDWARE)
def test_units_are_read_again_only_on_a_node_without_work(role):
    for name, task in tasks(role):
        reload = (task.get("ansible.builtin.systemd_service") or {}).get("daemon_reload")
        gated = f"not __{role}_dry" in str(task.get("when"))
        assert gated or reload in (None, "{{ not __" + role + "_dry }}"), f"{name}: {task['name']}"


@pytest.mark.parametrize("role", HARDWARE)
def test_changes_go_through_one_file_that_runs_in_check_mode_on_a_node_with_work(role):
    (change,) = [
        task
        for task in load(f"roles/{role}/tasks/main.yml")
        if (task.get("ansible.builtin.include_tasks") or {}).get("file") == "change.yml"
    ]
    mode = change["ansible.builtin.include_tasks"]["apply"]["check_mode"]
    assert mode == "{{ ansible_check_mode or not node_context_disruptive_ok }}"


@pytest.mark.parametrize("role", [*HARDWARE, "node_base", "node_context"])
def test_a_reboot_needs_the_decision_that_asked_for_consent(role):
    for name, task in tasks(role):
        if "ansible.builtin.reboot" in task:
            assert name == "reboot.yml"
            assert task["when"] == f"__{role}_reboot.action == 'reboot'"


def test_node_base_touches_the_kernel_only_behind_the_gate_of_running_jobs():
    (change,) = [
        task
        for name, task in tasks("node_base")
        if name == "kernel.yml" and (task.get("ansible.builtin.include_tasks") or {}).get("file") == "change.yml"
    ]
    mode = change["ansible.builtin.include_tasks"]["apply"]["check_mode"]
    assert mode == "{{ ansible_check_mode or not node_context_disruptive_ok }}"
    (install,) = [
        task for name, task in tasks("node_base") if task.get("ansible.builtin.import_tasks") == "install.yml"
    ]
    assert install["check_mode"] == "{{ ansible_check_mode or not __node_base_slurm.disruptive_ok }}"


@pytest.mark.parametrize("role", ["rdma_fabric", "gpu_driver", "container_runtime"])
def test_a_role_moves_the_packages_that_are_held(role):
    aptly = [task for _, task in tasks(role) if "ansible.builtin.apt" in task]
    installs = [task for task in aptly if task["ansible.builtin.apt"].get("state") == "present"]
    assert installs
    for task in installs:
        assert task["ansible.builtin.apt"]["allow_change_held_packages"] is True
        # Without it apt keeps dependencies that are held, and cannot resolve the set.
        assert task["environment"]["APT_CONFIG"] == "{{ __" + role + "_apt_config }}"
    locked = [task["ansible.builtin.dnf"] for _, task in tasks(role) if "ansible.builtin.dnf" in task]
    assert all(task.get("disable_plugin") == ["versionlock"] for task in locked)


@pytest.mark.parametrize("role", ["node_base", "rdma_fabric", "gpu_driver", "container_runtime"])
def test_what_is_installed_is_held_in_the_same_run(role):
    assert [name for name, task in tasks(role) if "rackweave.cluster.package_holds" in task]


@pytest.mark.parametrize("role", ["rdma_fabric", "gpu_driver", "shared_storage"])
def test_p059_no_transaction_brings_a_kernel_without_consent(role):
    consent = f"{role}_kernel_change_ok"
    texts = [str(task) for _, task in tasks(role)]
    assert any(f"kernel_change_ok={consent} | bool" in text for text in texts)
    excludes = [task["ansible.builtin.dnf"].get("exclude") for _, task in tasks(role) if "ansible.builtin.dnf" in task]
    assert any(consent in str(exclude) for exclude in excludes)


def test_iommu_and_acs_are_off_by_default_and_each_has_its_own_consent():
    assert load("roles/node_base/defaults/main.yml")["node_base_iommu_ok"] is False
    assert load("roles/rdma_fabric/defaults/main.yml")["rdma_fabric_acs_ok"] is False
    for role in ("node_base", "rdma_fabric", "gpu_driver"):
        assert load(f"roles/{role}/defaults/main.yml")[f"{role}_reboot_ok"] is False


def test_the_kernel_is_looked_at_before_the_driver_is_built():
    order = [
        role["role"].rpartition(".")[2] for play in load("playbooks/provision.yml") for role in play.get("roles", [])
    ]
    assert order.index("node_base") < order.index("rdma_fabric") < order.index("gpu_driver")


def test_p113_every_file_has_one_writer():
    seen = {}
    for role in HARDWARE:
        for name, task in tasks(role):
            for writer in WRITERS & set(task):
                target = task[writer].get("dest") or task[writer].get("path")
                if "repository.sources" in str(task[writer].get("src")):
                    continue  # one list of repositories for each role, named by the operator
                assert target not in seen, f"{target}: {role}/{name} and {seen[target]}"
                seen[target] = f"{role}/{name}"


def test_p045_the_peer_memory_module_is_loaded_at_boot_where_it_is_the_way_and_only_there():
    path = "roles/gpu_driver/templates/peermem.conf.j2"
    decided = {"way": "peermem", "reason": "configured"}
    assert render(path, __gpu_driver_gpudirect=decided).splitlines()[-1] == "nvidia_peermem"
    lines = render(path, __gpu_driver_gpudirect={"way": "dmabuf"}).splitlines()
    assert all(line.startswith("#") for line in lines if line)


def test_p067_slurmd_waits_for_its_gpus_bounded_within_its_time_to_start_and_starts_anyway():
    text = (ROOT / "roles/slurm/templates/slurmd.conf.j2").read_text(encoding="utf-8")
    assert "After=nvidia-persistenced.service nvidia-fabricmanager.service" in text
    (block,) = [part for part in text.split("{% if ") if "slurm-health wait" in part]
    assert re.search(r"^ExecStartPre=-\S.*slurm-health wait \{\{ slurm_gpu_wait_s \}\}", block, re.MULTILINE)
    (further,) = re.findall(r"^TimeoutStartSec=\{\{ slurm_gpu_wait_s \| int \+ (\d+) \}\}", block, re.MULTILINE)
    assert int(further) > 0


def test_no_hardware_role_writes_below_a_slurmd_that_may_be_another_ones():
    for role in HARDWARE:
        for name, task in tasks(role):
            written = [task[writer] for writer in WRITERS & set(task)]
            assert "slurmd.service.d" not in str(written), f"{role}/{name}: {task['name']}"
    (removed,) = [
        task
        for _, task in tasks("gpu_driver")
        if "slurmd.service.d" in str(task.get("ansible.builtin.file")) or "slurmd.service" in str(task.get("loop"))
    ]
    assert removed["ansible.builtin.file"]["state"] == "absent"
    assert removed["when"] == "slurm_manage | default(true) | bool"


@pytest.mark.parametrize(("subnet_manager", "gated"), [(False, True), (True, False)])
def test_p053_the_fabric_manager_is_gated_by_its_switches_where_they_have_a_device(subnet_manager, gated):
    decision = {"reason": "x", "subnet_manager": subnet_manager}
    text = render("roles/gpu_driver/templates/fabricmanager.conf.j2", __gpu_driver_fabric_manager=decision)
    assert ("ConditionPathExists=/dev/nvidia-nvswitchctl" in text) is gated


def test_the_roce_unit_comes_before_slurmd_and_slurmd_does_not_depend_on_it():
    text = render(
        "roles/rdma_fabric/templates/rackweave-rdma-qos.service.j2",
        __rdma_fabric_tool="/t",
        __rdma_fabric_config="/c",
        rdma_fabric_root="/",
    )
    assert "Before=slurmd.service" in text
    assert "RequiredBy=" not in text


def test_p035_names_are_fixed_by_slot_and_no_name_of_the_kernel_is_matched():
    text = (ROOT / "roles/rdma_fabric/templates/rdma-names.rules.j2").read_text(encoding="utf-8")
    assert 'KERNELS=="{{ bdf }}"' in text
    assert "mlx5_" not in text


def test_network_comes_before_driver_and_both_and_the_plugin_stack_before_slurmd():
    order = [
        role["role"].rpartition(".")[2] for play in load("playbooks/provision.yml") for role in play.get("roles", [])
    ]
    chain = ["rdma_fabric", "gpu_driver", "container_runtime", "slurm"]
    assert [name for name in order if name in chain] == chain


def test_p119_pyxis_enters_the_plugin_stack_in_the_role_that_runs_before_slurmd_starts():
    names = [task["name"] for name, task in tasks("container_runtime") if name == "plugstack.yml"]
    assert any(name.startswith("Load pyxis") for name in names)


def test_repositories_are_signed_unless_a_test_says_otherwise():
    path = "roles/gpu_driver/templates/repository.sources.j2"
    item = {"name": "cuda", "uris": "https://m/", "suites": "./", "signed_by": "https://m/key.asc"}
    assert "Signed-By: /etc/apt/keyrings/rackweave-cuda.asc" in render(path, item=item)
    # apt takes a binary key ring under this ending only, and an armored key under the other one only.
    assert "Signed-By: /etc/apt/keyrings/rackweave-cuda.gpg" in render(
        path, item={**item, "signed_by": "https://m/k.gpg"}
    )
    assert "Signed-By: /usr/k.gpg" in render(path, item={**item, "signed_by": "/usr/k.gpg"})
    assert "Trusted" not in render(path, item=item)


def test_a_mirror_that_nobody_signed_has_no_key_to_fetch_or_to_check():
    found = [task for role in ("node_base", *HARDWARE) for _, task in tasks(role)]
    fetched = {task["ansible.builtin.get_url"]["dest"] for task in found if "signed_by" in str(task.get("loop"))}
    assert fetched == {
        "/etc/apt/keyrings/rackweave-{{ item.name }}{{ '.gpg' if item.signed_by is match('.*[.]gpg$') else '.asc' }}"
    }
    loops = [str(task["loop"]) for task in found if "ansible.builtin.get_url" in task and "signed_by" in str(task)]
    assert len(loops) == 5
    assert all("selectattr('signed_by', 'defined')" in loop for loop in loops)
    repositories = [
        task["ansible.builtin.yum_repository"] for task in found if "ansible.builtin.yum_repository" in task
    ]
    assert len(repositories) == 5
    assert {it["gpgcheck"] for it in repositories} == {"{{ not item.trusted | default(false) }}"}
    assert {it["gpgkey"] for it in repositories} == {"{{ item.gpgkey | default(omit) }}"}


def test_provisioning_reboots_after_the_last_role_that_may_need_it():
    """One reboot of a run: roles leave it to the play that comes behind them all, in a rebuild too."""
    plays = load("playbooks/provision.yml")
    calls = [
        (number, task["ansible.builtin.include_role"].get("tasks_from"))
        for number, play in enumerate(plays)
        for task in play.get("tasks", [])
        if task.get("ansible.builtin.include_role", {}).get("name") == "rackweave.cluster.node_context"
    ]
    ((reboot, file),) = calls
    assert file == "reboot"
    for number, play in enumerate(plays):
        names = {role["role"].rpartition(".")[2] for role in play.get("roles", [])}
        if names & {"node_base", "rdma_fabric", "gpu_driver"}:
            assert number < reboot
            assert play["vars"]["rackweave_reboot_at_end"] is True
    rebuilt = [
        task for task in load("roles/rebuild/tasks/provision.yml") if "node_base_reboot_ok" in task.get("vars", {})
    ]
    assert all(task["vars"]["rackweave_reboot_at_end"] is True for task in rebuilt)
