"""Where the process begins.

Until somebody listens, a SIGTERM would end this process with a signal's status; or, in a container,
where it is the first process, the kernel would drop it, and the pod would be deleted only when its
grace is over. Blocked, it waits until the election can act on it. So this comes before everything
else is imported, which is most of a start.
"""

from __future__ import annotations

import signal


def main() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    from leasekeeper_sidecar.main import main as run

    return run()


if __name__ == "__main__":
    raise SystemExit(main())
