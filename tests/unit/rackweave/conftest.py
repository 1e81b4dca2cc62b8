"""Property tests take the time they need: other programs of the machine must not fail them."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
