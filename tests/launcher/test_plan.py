"""The verb `plan`: explained before anything is installed, its options checked at once, the answer passed through."""

import json
from typing import get_args

import pytest

from engine.plan.card import cards
from engine.plan.demand import ExecutorName
from engine.spec import KvFormat, RecipeName
from support.launcher_stack import FakeStack

NAMES = [*(card.name for card in cards()), *get_args(KvFormat), *get_args(RecipeName), *get_args(ExecutorName)]


@pytest.mark.parametrize("arguments", [["plan", "--help"], ["plan", "memory", "-h"]])
def test_help_needs_no_packages_and_explains_everything(new_stack: FakeStack, arguments: list[str]) -> None:
    done = new_stack.run(*arguments)
    assert done.returncode == 0, done.stderr
    assert not new_stack.venv.exists()
    missing = [name for name in NAMES if name not in done.stdout]
    assert not missing, "a value that --help does not name"
    assert "Exit codes: 0 fits" in done.stdout and "soloist plan" in done.stdout


def test_a_wrong_option_is_one_line_and_needs_no_packages(new_stack: FakeStack) -> None:
    done = new_stack.run("plan", "--model", "smollm2-135m", "--context", "much")
    assert done.returncode == 2
    assert done.stderr == "soloist plan: argument --context: invalid int value: 'much'; see --help\n"
    assert not new_stack.venv.exists()


@pytest.mark.parametrize("kind", [[], ["memory"]])
def test_arguments_output_and_exit_code_are_the_planners(stack: FakeStack, kind: list[str]) -> None:
    done = stack.run("plan", *kind, "--model", "m", "--gpu", "c", "--json")
    assert (done.returncode, done.stderr) == (2, "")
    assert json.loads(done.stdout) == [*kind, "--model", "m", "--gpu", "c", "--json"]


def test_the_verb_is_listed(stack: FakeStack) -> None:
    assert "plan " in stack.run("--help").stdout
