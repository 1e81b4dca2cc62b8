import pytest
from rackweave.slurm.accounting import Accounting, database_statements, slurmdbd_conf
from rackweave.slurm.munge import SlurmError

PASSWORD = "dGhpcyBpcyBub3QgYQ=="


def accounting(**changes):
    values = {
        "host": "ctl01", "storage_host": "localhost", "storage_name": "slurm_acct_db", "storage_user": "slurm",
        "storage_password": PASSWORD, "parameters": {},
    }  # fmt: skip
    return Accounting(**{**values, **changes})


def test_the_file_says_where_slurmdbd_stores_and_with_which_password():
    rows = slurmdbd_conf(accounting(parameters={"PurgeJobAfter": "12months"})).splitlines()
    assert {"DbdHost=ctl01", "StorageHost=localhost", "StorageLoc=slurm_acct_db", "PurgeJobAfter=12months"} <= set(rows)
    assert f"StoragePass={PASSWORD}" in rows


@pytest.mark.parametrize(
    "password", ["", "tiny", "changeme-changeme", "with space in it", "quote'quote'quote", "a#b" * 9]
)
def test_a_password_that_is_none_or_cannot_be_written_is_refused_without_being_shown(password):
    with pytest.raises(SlurmError) as caught:
        slurmdbd_conf(accounting(storage_password=password))
    assert not password or password not in str(caught.value)


@pytest.mark.parametrize("name", ["slurm`; DROP DATABASE x", "1slurm", "", "a b"])
def test_a_name_that_is_no_plain_name_never_reaches_the_database(name):
    with pytest.raises(SlurmError, match="slurm_dbd_storage"):
        database_statements(accounting(storage_name=name))
    with pytest.raises(SlurmError, match="slurm_dbd_storage"):
        database_statements(accounting(storage_user=name))


def test_the_statements_can_run_twice():
    statements = database_statements(accounting()).splitlines()
    assert [line for line in statements if line.startswith("CREATE")] == [
        "CREATE DATABASE IF NOT EXISTS `slurm_acct_db`;",
        f"CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED BY '{PASSWORD}';",
    ]


def test_a_key_with_a_variable_of_its_own_is_refused():
    with pytest.raises(SlurmError, match="StoragePass"):
        slurmdbd_conf(accounting(parameters={"StoragePass": "x"}))
