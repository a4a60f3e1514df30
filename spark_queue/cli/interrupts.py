"""Ctrl-C, also where Python would lose it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

#: Seconds after which an interrupt that was lost is sent again.
AGAIN = 0.01


def keep_interrupts() -> None:
    """Send SIGINT to this process again if it came within a destructor.

    Python cannot raise `KeyboardInterrupt` there: it prints a note, and the program goes on.
    """
    report = sys.unraisablehook

    def hook(lost: UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, KeyboardInterrupt):
            # Not from here: what is raised within the hook is lost, too.
            again = threading.Timer(AGAIN, os.kill, (os.getpid(), signal.SIGINT))
            again.daemon = True
            again.start()
        else:
            report(lost)

    sys.unraisablehook = hook
