"""The leader file on the volume that the containers of the pod share, and the programs with it."""

from __future__ import annotations

import os
from math import floor

from leasekeeper_sidecar import files
from leasekeeper_sidecar.claim import Claim

FILE, ENV_FILE = "leader", "leader.env"
PROGRAMS = ("is-leader", "run-as-leader")
TIME_TO_STOP = "time-to-stop"
MODE = 0o644  # apps run as any user


class LeaderFile:
    """The only writer of `leader` and `leader.env`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.path = os.path.join(folder, FILE)
        self.env_path = os.path.join(folder, ENV_FILE)

    def say(self, claim: Claim) -> None:
        """Both files say it, or an OSError is raised and what stood there before runs out by
        itself.
        """
        files.replace(self.path, claim.to_json().encode(), MODE)
        files.replace(self.env_path, claim.to_env().encode(), MODE)

    def say_no(self, claim: Claim) -> None:
        """Whatever it takes: on a full volume a file can still be removed, and no file means: not
        the leader.

        Raises an OSError only if the files can be neither replaced nor removed (a volume that
        became read-only).
        """
        if claim.leader:
            raise AssertionError("a bug: say_no with a claim that says yes")
        for path, text in ((self.path, claim.to_json()), (self.env_path, claim.to_env())):
            try:
                files.replace(path, text.encode(), MODE)
            except OSError:
                files.remove(path)

    def say_time_to_stop(self, seconds: float) -> None:
        """What an app has between the deadline and another leader, for `run-as-leader`'s grace: in
        hundredths and rounded down, like the deadline.
        """
        path = os.path.join(self.folder, TIME_TO_STOP)
        files.replace(path, f"{floor(seconds * 100)}\n".encode(), MODE)

    def install_programs(self) -> None:
        """Copies `is-leader` and `run-as-leader` beside the file, where an app without our package
        finds them.
        """
        source = os.path.join(os.path.dirname(__file__), "programs")
        for name in PROGRAMS:
            with open(os.path.join(source, name), "rb") as program:
                files.replace(os.path.join(self.folder, name), program.read(), 0o755)
