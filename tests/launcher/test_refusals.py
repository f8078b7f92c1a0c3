"""What the launcher refuses at once: wrong values before anything is installed, a home that is no folder."""

import json

import pytest

from launcher.health import hide_password, is_redis_url
from support.launcher_stack import FakeStack


@pytest.mark.parametrize(
    ("variables", "flags", "text"),
    [
        ({}, ["--port", "99999"], "soloist: --port 99999: a port is a number from 1 to 65535, or 0 for any free one"),
        ({}, ["--port", "-1"], "soloist: --port -1: a port is"),
        ({"GATEWAY_PORT": "x"}, [], "soloist: GATEWAY_PORT x: a port is"),
        ({"ENGINE_PORT": "70000"}, [], "soloist: ENGINE_PORT 70000: a port is"),
        ({"REDIS_URL": "foo"}, [], "soloist: REDIS_URL is foo: expected redis://"),
        ({"GATEWAY_REDIS_URL": "redis://u:secret@h:x"}, [], "soloist: GATEWAY_REDIS_URL is redis://h:x: expected"),
    ],
)
def test_wrong_values_are_refused_before_the_installation(
    new_stack: FakeStack, variables: dict[str, str], flags: list[str], text: str
) -> None:
    new_stack.behave(**variables)
    done = new_stack.run("up", *flags)
    assert done.returncode == 2
    assert done.stderr.startswith(text) and done.stderr.count("\n") == 1, done.stderr
    assert not new_stack.venv.exists()


@pytest.mark.parametrize("below", ["", "/deeper/home"])
@pytest.mark.parametrize("arguments", [["up"], ["up", "--detach"], ["down"], ["status"], ["models"], ["fetch", "m"]])
def test_a_home_that_is_a_file_is_named(new_stack: FakeStack, arguments: list[str], below: str) -> None:
    new_stack.home.write_text("a file", encoding="ascii")
    new_stack.behave(SOLOIST_HOME=f"{new_stack.home}{below}")
    done = new_stack.run(*arguments)
    assert done.returncode == 2
    assert done.stderr == (
        f"soloist: SOLOIST_HOME is {new_stack.home}{below}, but {new_stack.home} is not a folder: "
        "set SOLOIST_HOME to another folder\n"
    )
    assert not new_stack.venv.exists()


@pytest.mark.parametrize("below", ["", "/deeper/home"])
def test_doctor_names_a_home_that_is_a_file(stack: FakeStack, below: str) -> None:
    stack.home.write_text("a file", encoding="ascii")
    stack.behave(SOLOIST_HOME=f"{stack.home}{below}", GATEWAY_PORT="0")
    done = stack.run("doctor", "--json")
    assert done.returncode == 1, done.stderr
    problems = [check for check in json.loads(done.stdout)["checks"] if check["level"] == "problem"]
    assert [problem["name"] for problem in problems] == ["home"]
    assert problems[0]["detail"].startswith(f"SOLOIST_HOME is {stack.home}{below}, but {stack.home} is not a folder")
    assert problems[0]["fix"] == "set SOLOIST_HOME to another folder"


def test_doctor_names_an_address_that_is_none(stack: FakeStack) -> None:
    stack.behave(REDIS_URL="foo", GATEWAY_PORT="0")
    done = stack.run("doctor")
    assert done.returncode == 1
    assert "REDIS_URL is foo: expected redis://" in done.stdout


@pytest.mark.parametrize(
    ("url", "is_usable"),
    [
        ("redis://h", True),
        ("rediss://u:p@h:6380/1", True),
        ("unix:///run/redis.sock", True),
        ("redis://", False),
        ("http://h:6379", False),
        ("h:6379", False),
        ("redis://h:99999", False),
    ],
)
def test_addresses_of_redis(url: str, is_usable: bool) -> None:
    assert is_redis_url(url) is is_usable


@pytest.mark.parametrize("url", ["redis://u:secret@h:1", "u:secret@h:1", "redis://h?password=secret", "redis:secret@h"])
def test_no_password_in_a_message(url: str) -> None:
    assert "secret" not in hide_password(url)
