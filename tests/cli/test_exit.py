"""A command ends though a thread of a failed checkpoint waits on."""

import subprocess
import sys

WAITING = """
import sys, threading, time
from jaxrl.cli import app

class Waiting(threading.Thread):
    __module__ = "orbax.checkpoint.of.some.kind"
    def join(self, timeout=None):
        raise TimeoutError("as Orbax's own do")

app.ORBAX_GRACE_S = 0.2
Waiting(target=time.sleep, args=(3600.0,)).start()
try:
    print("told")
    sys.exit(2)
finally:
    app.give_up_waiting()
"""


def test_a_thread_of_orbax_does_not_keep_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAITING], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "told\n")
