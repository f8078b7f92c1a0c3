"""One child process that downloads: waited for with progress, ended on every way out. Owns the process only."""

import subprocess
from collections.abc import Callable, Mapping, Sequence

NO_NETWORK = 3  # exit code of a child of ours that could not reach its server
_POLL_S = 0.2
_TERMINATE_S = 5.0


def run_child(command: Sequence[str], environ: Mapping[str, str], on_poll: Callable[[], None]) -> tuple[int, str]:
    """Run to the end, calling on_poll now and then; returns the exit code and all it printed."""
    with subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches us alone, and we end the child
    ) as child:
        try:
            output = _wait(child, on_poll)
        finally:
            _end(child)
    return child.returncode, output.decode(errors="replace")


def _wait(child: subprocess.Popen[bytes], on_poll: Callable[[], None]) -> bytes:
    while True:
        try:
            output, _ = child.communicate(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            on_poll()
        else:
            return output


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(timeout=_TERMINATE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
