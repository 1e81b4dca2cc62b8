import dataclasses

from rackweave.lab.image import ImageRecipe, image_key, mmdebstrap_arguments

RECIPE = ImageRecipe("bookworm", ("systemd", "python3"))


def test_the_order_of_packages_does_not_make_another_image():
    assert image_key(dataclasses.replace(RECIPE, packages=("python3", "systemd"))) == image_key(RECIPE)


def test_another_package_or_suite_makes_another_image():
    keys = {
        image_key(recipe)
        for recipe in (RECIPE, dataclasses.replace(RECIPE, suite="trixie"), ImageRecipe("bookworm", ("systemd",)))
    }
    assert len(keys) == 3


def test_the_mirror_decides_where_from_not_what():
    mirrored = dataclasses.replace(RECIPE, mirror="http://mirror.example/debian")
    assert image_key(mirrored) == image_key(RECIPE)
    assert mmdebstrap_arguments(mirrored, "/files", "/t.tar")[-3:] == ["bookworm", "/t.tar", mirrored.mirror]
    assert mmdebstrap_arguments(RECIPE, "/files", "/t.tar")[-2:] == ["bookworm", "/t.tar"]


def test_host_keys_are_never_part_of_the_image():
    assert any("ssh_host_" in argument for argument in mmdebstrap_arguments(RECIPE, "/files", "/t.tar"))
