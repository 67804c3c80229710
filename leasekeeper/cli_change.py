"""`leasekeeper change-membership`: for ensembles whose registry is a file."""

from __future__ import annotations

import argparse
import sys

from leasekeeper.cli_options import (
    TLS_OPTIONS,
    Option,
    Stopped,
    add_options,
    password_file,
    read_membership,
    stop_at_signals,
    tls_of,
)
from leasekeeper.lease import ConfigurationError
from leasekeeper.redlock.registry import FileRegistry

EXIT_DONE, EXIT_NOT_YET = 0, 1

_EPILOG = """\
The lists are files like `membership.json`; the new one has the next `number`. It may have other
nodes, more of them or fewer, and other timings (maxTtlSeconds, quarantineSeconds, capSeconds).

  1. Start the new nodes with the new file. They announce themselves, and wait.
  2. Run this command. For one quarantine of the old list nobody can hold a lock: leaders lose their
     leases, and a new one is elected when it is over.
  3. Give the new file to all agents and candidates (those who run follow by themselves), and end
     the nodes that are no longer in it.

Nodes keep running. The command may be killed, and run again with the same files: it goes on. Do
so soon: a change that was begun can only be brought to its end, and nobody is elected before.

exit codes:
  0  the new list is in use
  1  not yet: stopped, or gave up; run it again
  2  an option or a file cannot be used, or the registry does not allow this change

example:
  leasekeeper change-membership --from membership.json --to membership-2.json \\
      --registry registry.json --credentials /etc/leasekeeper/credentials
"""

_OPTIONS: list[Option] = [
    ("from", "FILE", "the list that is in use", True),
    ("to", "FILE", "the list that is to be used", True),
    ("registry", "FILE", "the record of births, as the agents have it", True),
    ("credentials", "DIR", "a folder with the file `operator`: its password", True),
    *TLS_OPTIONS,
]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "change-membership",
        help="replace, add or remove nodes of an ensemble, or change its timings, while it runs",
        description="Takes an ensemble from one list of nodes to the next. Never two leaders, also"
        " while nodes restart; at most one quarantine without one.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(command, _OPTIONS)
    command.add_argument(
        "--give-up-after",
        metavar="SECONDS",
        type=float,
        default=600.0,
        help="how long to wait for nodes that do not answer or are not ready (600)",
    )


def run(options: argparse.Namespace) -> int:
    # Not at the top: every agent would carry it in its memory.
    from leasekeeper.redlock.coordinator import Change, Coordinator, GaveUp

    old = read_membership(getattr(options, "from"), "--from")
    new = read_membership(options.to, "--to")
    if not options.give_up_after >= 0:
        raise ConfigurationError("--give-up-after must be a number of seconds, 0 or more")
    wanted = Change(
        old=old,
        new=new,
        registry=FileRegistry(options.registry),
        password=password_file(options.credentials, "operator"),
        tls=tls_of(options),
        patience=options.give_up_after,
    )
    stop_at_signals()
    try:
        voting = Coordinator(wanted, _say).run()
    except GaveUp as wrong:
        print(f"leasekeeper: gave up: {wrong}; run this again to go on", file=sys.stderr)
        return EXIT_NOT_YET
    except Stopped as stop:
        print(f"leasekeeper: stopped by {stop}; run this again to go on", file=sys.stderr)
        return EXIT_NOT_YET
    later = sorted(new.ids - set(voting))
    _say(f"epoch {new.epoch} is in use; voting: {', '.join(sorted(voting))}")
    if later:
        _say(f"not voting yet: {', '.join(later)}; they learn from the others when they are up")
    gone = sorted(old.ids - new.ids)
    if gone:
        _say(f"no longer members: {', '.join(gone)}; they may be ended")
    return EXIT_DONE


def _say(line: str) -> None:
    print(line, flush=True)
