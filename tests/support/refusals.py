"""Refusals of the command line, run in this process."""

from cortext.cli import run


def complaint(capsys, *arguments: object) -> str:
    """Return the one line that a command prints for a user's error, and nothing else."""
    capsys.readouterr()
    status = run([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert status == 2, printed
    assert not printed.out
    assert printed.err.startswith("cortext: ")
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err
    return printed.err
