"""The process that talks to the Hugging Face hub: `python -m engine.fetch.hub_child REPOSITORY FOLDER`. Owns the call.

Apart from the fetch, so that a download can be ended at once and its library is loaded only when it is needed. Exit
codes: 0 all files are in FOLDER; 3 no network; 1 anything else. The reason is the last line of its output.
"""

import sys

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from engine.fetch.child import NO_NETWORK

PATTERNS = ["*.safetensors", "*.json", "*.jinja"]


def main(arguments: list[str]) -> int:
    """Download what a conversion needs; what an earlier call left there is kept and completed."""
    repository, folder = arguments
    try:
        snapshot_download(repository, local_dir=folder, allow_patterns=PATTERNS)
    except LocalEntryNotFoundError as error:  # what the library raises when it gives up, whatever the reason
        answered = isinstance(error.__cause__, HfHubHTTPError)
        return _end(1 if answered else NO_NETWORK, error.__cause__ or error)
    except HfHubHTTPError as error:
        return _end(1, error)
    except OSError as error:
        return _end(NO_NETWORK if isinstance(error, ConnectionError) else 1, error)
    return 0


def _end(code: int, error: BaseException) -> int:
    first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    sys.stdout.write(f"\n{first_line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
