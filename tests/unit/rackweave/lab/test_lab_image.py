import dataclasses

from rackweave.lab.image import ImageRecipe, image_key, mmdebstrap_arguments, removable_images

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


def test_only_unused_images_of_the_repository_are_removed():
    images = (
        "localhost/rackweave-node:aaa sha256:1111111111111111aa\n"
        "localhost/rackweave-node:bbb sha256:2222222222222222bb\n"
        "localhost/rackweave-node-other:ccc sha256:3333333333333333cc\n"
        "docker.io/library/debian:12 sha256:4444444444444444dd\n"
    )
    repository = "localhost/rackweave-node"
    assert removable_images(images, "222222222222\n", repository) == ["localhost/rackweave-node:aaa"]
    assert removable_images(images, "sha256:2222222222222222bb", repository) == ["localhost/rackweave-node:aaa"]
    assert len(removable_images(images, "", repository)) == 2
    assert removable_images("", "", repository) == []
