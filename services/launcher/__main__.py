"""`python -m launcher VERB`: the process edge of the command. Owns nothing but the exit code."""

import sys

from launcher.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
