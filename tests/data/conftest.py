"""What the tests of reading and simulating recordings share."""

from full_disk import full_disk  # noqa: F401 # a fixture
