"""Ties a program to its parent's life, then becomes that program. Run by path, never imported by the launcher.

    python -I -S leash.py PARENT_PID PROGRAM [ARGUMENT...]

On Linux the kernel sends SIGKILL to the program when the parent dies, even by SIGKILL (PR_SET_PDEATHSIG survives exec).
Elsewhere there is no such call: there the next `up` or `down` ends what a killed launcher left behind.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_EXIT_CANNOT_RUN = 127


def main(arguments: list[str]) -> int:
    """Set the parent-death signal and exec; returns only when the program cannot be run."""
    parent_pid, program = int(arguments[0]), arguments[1:]
    if sys.platform.startswith("linux"):
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.stderr.write(f"cannot tie {program[0]} to its parent: {os.strerror(ctypes.get_errno())}\n")
            return _EXIT_CANNOT_RUN
        if os.getppid() != parent_pid:
            return _EXIT_CANNOT_RUN  # the parent died before the call: nobody is left to tell
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.stderr.write(f"cannot run {program[0]}: {error.strerror}\n")
    return _EXIT_CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
