"""`python -m venv` and `pip install` for tests of the launcher: the same traces on disk, no network, no packages.

    python fake_install.py venv FOLDER | pip install ... NAME...

FAKE_PIP: ok (default), fail (no network), slow (sleeps until killed). Calls are appended to FAKE_EVENTS.
"""

import os
import sys
import time
from pathlib import Path


def note(text: str) -> None:
    with Path(os.environ["FAKE_EVENTS"]).open("a", encoding="utf-8") as events:
        events.write(text + "\n")


def make_venv(folder: Path) -> None:
    note("venv")
    (folder / "bin").mkdir(parents=True)
    (folder / "lib/python3.11/site-packages").mkdir(parents=True)
    (folder / "bin/python").symlink_to(os.path.realpath(sys.executable))
    (folder / "pyvenv.cfg").write_text("version = 3.11.7\n", encoding="ascii")


def install(names: list[str]) -> int:
    note(f"pip {' '.join(names)}")
    for name in names:
        print(f"Collecting {name} (from -c constraints.txt)", flush=True)
    mode = os.environ.get("FAKE_PIP", "ok")
    if mode == "fail":
        print("WARNING: Retrying: NewConnectionError('Failed to establish a new connection')")
        print("ERROR: No matching distribution found for torch==2.13.0", flush=True)
        return 1
    if mode == "slow":
        print("  Downloading https://a.b/c/torch-2.13.0-cp311-cp311-linux.whl (530.1 MB)", flush=True)
        time.sleep(60)
    print(f"Installing collected packages: {', '.join(names)}", flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "venv":
        make_venv(Path(sys.argv[2]))
    else:
        sys.exit(install([a for a in sys.argv[sys.argv.index("-c") + 2 :] if not a.startswith("-")]))
