"""Keys: the same where they must be, and readable by their owner alone."""

MUNGE_KEY = "/etc/munge/munge.key"
SECRETS = f"{MUNGE_KEY} /etc/slurm/slurmdbd.conf /etc/slurm/*.key /etc/ssh/ssh_host_*_key /root/.ssh/id_*"


def test_the_munge_key_is_one_key(any_node, controller):
    assert any_node.file(MUNGE_KEY).sha256sum == controller.file(MUNGE_KEY).sha256sum


def test_a_credential_of_the_controller_is_accepted(any_node, controller):
    credential = controller.check_output("munge --no-input")
    assert any_node.run(f"echo '{credential}' | unmunge --output /dev/null").rc == 0


def test_the_controller_accepts_a_credential_of_a_node(any_node, controller):
    credential = any_node.check_output("munge --no-input")
    assert controller.run(f"echo '{credential}' | unmunge --output /dev/null").rc == 0


def test_no_secret_is_readable_by_others(any_node):
    command = f'for f in {SECRETS}; do case $f in *.pub) ;; *) [ -e "$f" ] && stat --format=\'%a %n\' "$f";; esac; done'
    shown = any_node.run(f"bash -c '{command}'".replace("'%a %n'", '"%a %n"')).stdout.splitlines()
    assert any(line.endswith(MUNGE_KEY) for line in shown)
    assert [line for line in shown if int(line.split()[0], 8) & 0o007] == []


def test_only_munge_reads_the_munge_key(any_node):
    key = any_node.file(MUNGE_KEY)
    assert (key.user, key.mode) == ("munge", 0o400)


def test_no_secret_is_readable_by_the_training_user(any_node, entry):
    assert any_node.run(f"runuser -u {entry['train_user']} -- cat {MUNGE_KEY}").rc != 0
