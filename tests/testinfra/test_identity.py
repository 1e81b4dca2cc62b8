"""Who a host is to the others."""

import ipaddress


def test_a_host_bears_the_name_of_the_inventory(any_node):
    assert any_node.check_output("hostname --short") == any_node.inventory_name.split(".")[0]


def test_the_training_user_has_the_same_uid_everywhere(any_node, controller, entry):
    assert any_node.user(entry["train_user"]).uid == controller.user(entry["train_user"]).uid
    assert any_node.user(entry["train_user"]).uid != 0


def test_every_node_finds_the_others_by_name(any_node, variables):
    wrong = {}
    for name, other in variables.items():
        family = "ahostsv6" if ":" in other["address"] else "ahostsv4"
        found = any_node.run(f"getent {family} {name}").stdout.split()
        if not found or (is_address(other["address"]) and other["address"] not in found):
            wrong[name] = found
    assert wrong == {}


def is_address(text):
    """Tell an address of the inventory from a name, which is resolved to whatever it is."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def test_no_two_hosts_have_one_machine_id(any_node, connect, variables):
    mine = any_node.file("/etc/machine-id").content_string.strip()
    twins = [
        name
        for name in variables
        if name != any_node.inventory_name and connect(name).file("/etc/machine-id").content_string.strip() == mine
    ]
    assert len(mine) == 32
    assert twins == []
