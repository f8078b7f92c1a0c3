"""Who asks, and what fits: the order of signs, digests instead of secrets, and the edges of the window."""

import pytest

from contracts.engine_info import Rates
from contracts.errors import ContextTooLong
from gateway.budget import Budget, estimate_cost_s, plan_budget
from gateway.identity import identify

SIGNS = {
    "x-soloist-agent": "claude-1",
    "x-session-id": "session-a",
    "x-claude-code-session-id": "session-b",
    "authorization": "Bearer sk-secret",
}


def flow(*names: str, session_key: str | None = None, address: str | None = "10.0.0.7") -> str:
    return identify({name: SIGNS[name] for name in names}, session_key, address).flow


def test_the_first_sign_names_the_flow() -> None:
    assert flow(*SIGNS, session_key="k") == "agent:claude-1"
    everything_else = [name for name in SIGNS if name != "x-soloist-agent"]
    assert flow(*everything_else, session_key="k") == flow("x-session-id", address="other")
    assert flow("x-claude-code-session-id", "authorization", session_key="k") == flow("x-claude-code-session-id")
    assert flow("authorization", session_key="k") == flow(session_key="k")
    assert flow("authorization") == flow("authorization", address="other") != flow()
    assert flow() != flow(address="10.0.0.8") and flow(address=None).startswith("address:")
    assert len({flow(name) for name in SIGNS} | {flow(), flow(session_key="k")}) == 6


def test_both_spellings_of_a_key_are_one_flow() -> None:
    assert identify({"x-api-key": "sk-secret"}, None, None) == identify(
        {"authorization": "Bearer sk-secret"}, None, None
    )


def test_nothing_secret_or_unbounded_is_in_a_flow() -> None:
    assert "secret" not in flow("authorization") and "10.0.0.7" not in flow()
    assert identify({"x-soloist-agent": "claude-1"}, None, None).label == "claude-1"
    for odd in ("a b", "x" * 500, "naïve\ud83d", "a\nb", "{lane}"):
        identity = identify({"x-soloist-agent": odd}, None, None)
        assert identity.label is None and len(identity.flow) == len("agent:") + 16
    assert identify({"x-soloist-agent": "  "}, None, None).flow.startswith("address:")


@pytest.mark.parametrize(
    ("prompt", "wanted", "expected"),
    [
        (10, None, Budget(10, 90, 100, False)),
        (10, 5, Budget(10, 5, 100, False)),
        (10, 90, Budget(10, 90, 100, False)),
        (10, 91, Budget(10, 90, 100, True)),
        (99, 32000, Budget(99, 1, 100, True)),
    ],
)
def test_the_window_bounds_the_output(prompt: int, wanted: int | None, expected: Budget) -> None:
    assert plan_budget(prompt, 100, wanted) == expected


@pytest.mark.parametrize("prompt", [100, 101, 10_000])
def test_a_prompt_without_room_for_one_token_is_refused(prompt: int) -> None:
    with pytest.raises(ContextTooLong) as caught:
        plan_budget(prompt, 100, None)
    assert (caught.value.num_tokens, caught.value.limit, caught.value.param) == (prompt, 100, "messages")


def test_cost_is_in_engine_seconds() -> None:
    measured = Rates(prefill_tok_s=100.0, decode_tok_s=10.0)
    assert estimate_cost_s(Budget(200, 50, 4096, False), measured) == pytest.approx(2.0 + 5.0)
    assert estimate_cost_s(Budget(200, 32000, 64000, False), measured) == pytest.approx(2.0 + 25.6)
    assert estimate_cost_s(Budget(200, 50, 4096, False), Rates(None, None)) > 0
