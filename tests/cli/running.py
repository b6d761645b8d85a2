"""The command run in this process, against the data folder that HEADSTART_DATA_DIR names."""

from dataclasses import dataclass

from typer.testing import CliRunner

from cli.main import app


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str


def headstart(*args: str, answer: str | None = None) -> Outcome:
    result = CliRunner().invoke(app, args, input=answer)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def refused(*args: str) -> str:
    """Run a command that is refused; give its one message."""
    outcome = headstart(*args)
    assert (outcome.status, outcome.out) == (1, ""), outcome
    message = outcome.err.removeprefix("Error: ").removesuffix("\n")
    assert outcome.err == f"Error: {message}\n"
    assert "\n" not in message
    return message


def done(*args: str, answer: str | None = None) -> str:
    """Run a command that succeeds; give what it printed."""
    outcome = headstart(*args, answer=answer)
    assert outcome.status == 0, outcome
    return outcome.out
