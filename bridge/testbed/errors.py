"""The one error of the test bed: something that a person has to put right before it can start."""


class TestbedError(Exception):
    """The test bed cannot start or has stopped; the message says what is missing and what would help."""

    __test__ = False  # for pytest: the name starts with "Test", the class is none
