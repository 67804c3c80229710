"""The command line of the lock library. What a command needs is imported when it runs: every agent
would carry the rest in its memory.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence

from leasekeeper import __version__, cli_agent, cli_change
from leasekeeper.lease import ConfigurationError
from leasekeeper.redlock.agent import WrongServer
from leasekeeper.redlock.blocking import BadCredentials, Untrusted

EXIT_STOPPED, EXIT_CONFIGURATION, EXIT_CREDENTIALS, EXIT_WRONG_SERVER = 0, 2, 3, 4
EXIT_HOLD_FAILED = 125  # 2 may be the exit code of the command that hold runs
EXIT_UNREAD = 141  # as if SIGPIPE had ended it: nobody reads on, as in `leasekeeper status | head`

_EPILOG = """\
examples:
  leasekeeper demo                                      break it yourself, and watch it hold
  leasekeeper hold --config lock.json -- ./report.sh    one at a time, in the whole cluster
  leasekeeper observe shop/orders --nodes a:6379,b:6379,c:6379 --password-file orders.password
  leasekeeper status --nodes a:6379,b:6379,c:6379 --password-file operator.password
  leasekeeper sql-schema postgresql | psql app
  leasekeeper node-agent --help
  leasekeeper change-membership --help

exit codes: each command's --help lists its own; 2 is always an option or a file that cannot be used
(125 for hold, whose other codes are the command's), and 141 means that nobody read the output.
"""

_DEMO = """\
Starts five real Valkey servers with their agents, and five sidecars with an app each; everything on
this machine, nothing installed, nothing left behind. On a terminal: a live view with keys to break
things. With --web: a page. Otherwise, or with --json: one line an event, breaking one thing after
another. The last line is a JSON object with tenures, faults, overlaps and regressions.

exit codes:
  0  nothing overlapped, and every token was larger than the one before
  1  something overlapped, or a token did not grow
  2  an option cannot be used, or there is no Valkey or Redis server
  3  the time was over, and nobody had ever led

examples:
  leasekeeper demo
  leasekeeper demo --web
  leasekeeper demo --seconds 20 --chaos --seed 7 --json
"""


def _parser(light: bool) -> argparse.ArgumentParser:
    """All commands; `light`: those that agents need, because they stay in memory."""
    parser = argparse.ArgumentParser(
        prog="leasekeeper",
        description="Leader election as a Kubernetes resource: the lock library's commands.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"leasekeeper {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    cli_agent.add_parser(commands)
    if not light:
        from leasekeeper import cli_hold, cli_look

        _add_demo(commands)
        cli_hold.add_parser(commands)
        cli_look.add_parsers(commands)
        cli_change.add(commands)
        _add_sql_schema(commands)
    return parser


def _number(kind: type[int] | type[float], least: int = 1) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = 0
        if not least <= number < math.inf:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} on")
        return number

    return parse


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="five nodes and five candidates on this machine, for real; watch it hold",
        description=_DEMO,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    demo.add_argument(
        "--seconds",
        type=_number(float),
        default=None,
        help="how long it runs, from the first leader on (until you end it; without hands 30)",
    )
    demo.add_argument("--lease", type=_number(float, 2), default=3.0, help="lease in seconds (3)")
    demo.add_argument("--candidates", type=_number(int), default=5, help="how many take part (5)")
    demo.add_argument(
        "--chaos",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="break something whenever the election has settled (default: if there are no keys)",
    )
    demo.add_argument("--seed", type=int, default=1, help="of what is broken, and when")
    demo.add_argument("--json", action="store_true", help="one JSON object an event")
    demo.add_argument("--web", action="store_true", help="as a page for the browser, on loopback")
    demo.add_argument("--port", type=int, default=0, help="of the page (a free one)")


def _add_sql_schema(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    schema = commands.add_parser(
        "sql-schema",
        help="print the SQL that makes the table of a SQL store",
        description="Prints the statements that make the one table of a SQL store, for a migration"
        " or for a person to run. Candidates need SELECT, INSERT and UPDATE on it.",
        allow_abbrev=False,
    )
    schema.add_argument("dialect", metavar="DIALECT", help="postgresql, mysql or sqlite")
    schema.add_argument("--table", default="leasekeeper_lease", help="its name (%(default)s)")


def _sql_schema(options: argparse.Namespace) -> int:
    from leasekeeper.sql.schema import schema

    print(schema(options.dialect, options.table), end="")
    return EXIT_STOPPED


def _run(options: argparse.Namespace) -> int:
    if options.command == "node-agent":
        return cli_agent.run(options)
    if options.command == "demo":
        from leasekeeper.demo import run

        return run.main(options)
    from leasekeeper import cli_hold, cli_look

    others: dict[str, Callable[[argparse.Namespace], int]] = {
        "change-membership": cli_change.run,
        "hold": cli_hold.run,
        "observe": cli_look.observe,
        "sql-schema": _sql_schema,
        "status": cli_look.status,
    }
    return others[options.command](options)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Behind `hold … --` everything is the command's."""
    ours, command = list(arguments), []
    if ours[:1] == ["hold"] and "--" in ours:
        at = ours.index("--")
        ours, command = ours[:at], ours[at + 1 :]
    try:
        options = _parser(light=ours[:1] == ["node-agent"]).parse_args(ours)
    except SystemExit as refused:
        if ours[:1] == ["hold"] and refused.code == EXIT_CONFIGURATION:
            raise SystemExit(EXIT_HOLD_FAILED) from None
        raise
    options.command_line = command
    return options


@contextlib.contextmanager
def _said_to_the_end() -> Iterator[None]:
    """Flushes here: a reader that is gone would else be a traceback when the interpreter ends."""
    try:
        yield
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        with _said_to_the_end():
            return _main(sys.argv[1:] if arguments is None else arguments)
    except BrokenPipeError:
        # What is left in the buffer is flushed once more at the end, and must find somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_UNREAD


def _main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    try:
        return _run(options)
    except ConfigurationError as wrong:
        code, message = EXIT_CONFIGURATION, str(wrong)
    except BadCredentials as wrong:
        code = EXIT_CREDENTIALS
        message = f"{wrong}; the file `agent` in --credentials {options.credentials} must hold it"
    except Untrusted as wrong:
        code, message = EXIT_CREDENTIALS, str(wrong)
    except WrongServer as wrong:
        code, message = EXIT_WRONG_SERVER, str(wrong)
    print(f"leasekeeper: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
