import pytest
from rackweave.errors import ProvisionError
from rackweave.provision import versions


@pytest.mark.parametrize(
    ("package", "upstream"),
    [
        ("535.309.01-0+deb12u1", "535.309.01"),
        ("3:550.90.07-1.el9", "550.90.07"),
        ("570.86.10-0ubuntu0.24.04.1", "570.86.10"),
        ("1:4.2.3-1", "4.2.3"),
    ],
)
def test_epoch_and_packaging_revision_are_not_part_of_the_version(package, upstream):
    assert versions.upstream_version(package) == upstream


def test_a_version_without_a_number_is_refused():
    with pytest.raises(ProvisionError, match="unknown"):
        versions.upstream_version("unknown-1")


@pytest.mark.parametrize("pin", ["535", "latest", "535.x", "", "535.309.01-1", 570.86, 535])
def test_only_a_full_driver_version_is_a_pin(pin):
    with pytest.raises(ProvisionError, match="gpu_driver_version"):
        versions.require_driver_version(pin, "gpu_driver_version")


@pytest.mark.parametrize("pin", ["535.309.01", "570.86.10", "580.65"])
def test_full_driver_versions_are_accepted(pin):
    assert versions.require_driver_version(pin, "gpu_driver_version") == pin


def test_p051_a_fabric_manager_of_the_same_branch_is_still_refused():
    with pytest.raises(ProvisionError, match=r"driver 530\.41\.03.*fabric manager 530\.30\.02"):
        versions.require_equal_versions({"driver": "530.41.03", "fabric manager": "530.30.02"})


def test_equal_versions_of_different_packagers_are_equal():
    assert versions.require_equal_versions({"a": "3:570.86.10-1.el9", "b": "570.86.10-1"}) == "570.86.10"


def test_components_that_agree_on_the_wrong_version_are_refused():
    with pytest.raises(ProvisionError, match=r"all must be 580\.65\.06"):
        versions.require_equal_versions({"a": "570.86.10-1", "b": "570.86.10-1"}, wanted="580.65.06")


def test_ordering_is_by_numbers_and_ignores_trailing_zeros():
    assert versions.version_key("5.12.0-13-generic") == versions.version_key("5.12")
    assert versions.version_key("5.9.16") < versions.version_key("5.12")
    assert versions.version_key("2.22.3") < versions.version_key("2.23")
