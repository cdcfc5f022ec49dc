"""What is raised for a file that is not whole, or not what it says."""


class DamagedFile(ValueError):
    """The bytes are not those that were written."""
