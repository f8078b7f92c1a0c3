"""The engine as its callers see it: one terminal event, queue of one, fences, cancel, refusals, crash, numbers."""

import itertools
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from contracts.errors import (
    ContextTooLong,
    EngineBusy,
    InvalidRequest,
    NotFound,
    ServiceError,
    ShuttingDown,
    StaleLease,
    Unsupported,
)
from contracts.generate import (
    Accepted,
    CancelRequest,
    Constraint,
    Failed,
    Finished,
    GenerateRequest,
    ImageRef,
    Prefill,
    Tokens,
)
from engine.engine import Engine
from support.tiny_engine import TINY, Collector, make_home, make_request, start_engine

NO_STOP = {"logit_bias": {0: -100.0, 2: -100.0}}
LONG = 900
PROMPT = [(17 * i) % TINY.vocab_size for i in range(100)]


def generate(engine: Engine, request: GenerateRequest) -> Collector:
    collector = Collector()
    engine.submit(request, collector)
    for _ in collector:
        pass
    return collector


def new_ids(collector: Collector) -> list[int]:
    return [token_id for event in collector.events if isinstance(event, Tokens) for token_id in event.ids]


def last(collector: Collector) -> Finished:
    event = collector.events[-1]
    assert isinstance(event, Finished), event
    return event


def start_long(engine: Engine, **fields: object) -> Collector:
    """A request that runs until it is stopped, seen decoding."""
    collector = Collector()
    engine.submit(make_request([5], LONG, sampling=NO_STOP, **fields), collector)
    collector.wait_for(Tokens)
    return collector


def test_events_come_in_order_and_the_numbers_add_up(engine: Engine) -> None:
    collector = generate(engine, make_request(PROMPT, 12, sampling=NO_STOP))
    kinds = [kind for kind, _ in itertools.groupby(type(event) for event in collector.events)]
    assert kinds == [Accepted, Prefill, Tokens, Finished]
    accepted = collector.events[0]
    assert isinstance(accepted, Accepted) and (accepted.cached_tokens, accepted.tier) == (0, "none")
    progress = [event for event in collector.events if isinstance(event, Prefill)]
    assert (progress[-1].done, progress[-1].total) == (100, 100)
    finished = last(collector)
    assert finished.reason == "length" and len(new_ids(collector)) == 12
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (100, 12)
    timings = finished.timings
    assert timings.ttft_ms is not None and 0 < timings.prefill_ms <= timings.ttft_ms and timings.decode_ms > 0
    assert collector.is_quiet()


def test_a_repeated_prompt_is_reused_and_answered_alike(engine: Engine) -> None:
    sampling = {"temperature": 1.0, "seed": 3, **NO_STOP}
    first = generate(engine, make_request(PROMPT, 40, sampling=sampling))
    second = generate(engine, make_request(PROMPT, 40, sampling=sampling))
    assert last(second).usage.cached_tokens == 99
    assert second.events[0] == Accepted(99, "device", 0.0)
    assert new_ids(second) == new_ids(first)


def test_seeds_differ_and_greedy_ignores_them(engine: Engine) -> None:
    def run(**sampling: float) -> list[int]:
        return new_ids(generate(engine, make_request(PROMPT, 30, sampling={**sampling, **NO_STOP})))

    assert run(seed=1) != run(seed=2)
    assert run(seed=1, temperature=0.0) == run(seed=2, temperature=0.0)


@pytest.mark.parametrize("cut", [1, 2, 13, 39])
@pytest.mark.parametrize("evicted", [False, True])
def test_a_cut_reply_goes_on_as_if_it_had_not_been_cut(tiny_home: Path, cut: int, evicted: bool) -> None:
    # fp32 keeps what an eviction recomputes in another mode within 1e-4 of the same logits; kept state is exact.
    engine = start_engine(tiny_home, kv_format="fp32" if evicted else "bf16")
    sampling = {"seed": 9, "presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.1, **NO_STOP}
    whole = new_ids(generate(engine, make_request(PROMPT, 40, sampling=sampling)))
    head = generate(engine, make_request(PROMPT, cut, sampling=sampling))
    if evicted:
        generate(engine, make_request([1, 2, 3], 1))
    resumed = generate(engine, make_request(PROMPT + whole[:cut], 40, output_start=100, sampling=sampling))
    assert new_ids(head) + new_ids(resumed) == whole
    usage = last(resumed).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (100, 40)
    assert usage.cached_tokens == (0 if evicted else 100)
    engine.close(10.0)


def test_a_resumed_reply_with_nothing_left_ends_at_once(engine: Engine) -> None:
    done = generate(engine, make_request([*PROMPT, 7, 8], 2, output_start=100))
    assert last(done).reason == "length" and new_ids(done) == []
    assert last(generate(engine, make_request([*PROMPT, 2], 9, output_start=100))).reason == "stop"


def test_stop_ids_of_model_and_request_end_the_reply(engine: Engine) -> None:
    for stop, fields in ((2, {}), (40, {"stop_token_ids": [40]})):
        request = make_request(PROMPT, 50, sampling={"temperature": 0.0, "logit_bias": {stop: 100.0}}, **fields)
        collector = generate(engine, request)
        assert last(collector).reason == "stop" and new_ids(collector) == [stop]


def test_max_new_tokens_is_clamped_to_the_window(engine: Engine) -> None:
    prompt = [5] * (TINY.context_limit - 3)
    collector = generate(engine, make_request(prompt, 10**12, sampling=NO_STOP))
    assert last(collector).reason == "length" and len(new_ids(collector)) == 3
    with pytest.raises(ContextTooLong, match="1024 tokens, the context limit is 1024"):
        engine.submit(make_request([5] * TINY.context_limit, 1), Collector())


def test_logprobs_describe_every_token(engine: Engine) -> None:
    collector = generate(engine, make_request(PROMPT, 5, logprobs=3, sampling={"temperature": 0.0, **NO_STOP}))
    for event in collector.events:
        if isinstance(event, Tokens):
            assert event.logprobs is not None and len(event.logprobs) == len(event.ids) == 1
            top = event.logprobs[0].top
            assert len(top) == 3 and top[0][1] >= top[1][1] >= top[2][1] and event.logprobs[0].logprob < 0


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"ids": [1, TINY.vocab_size]}, InvalidRequest, r"token_ids\[1\] is 260, the vocabulary has 260 ids"),
        ({"ids": [2**70]}, InvalidRequest, r"token_ids\[0\] is 1180591620717411303424"),
        ({"stop_token_ids": [3, 999]}, InvalidRequest, r"stop_token_ids\[1\] is 999"),
        ({"sampling": {"logit_bias": {-1: 1.0}}}, InvalidRequest, "logit_bias is -1"),
        ({"output_start": 3}, InvalidRequest, "output_start is 3, beyond the 2 token_ids"),
        ({"output_start": 0}, InvalidRequest, "output_start is 0"),
        ({"checkpoints": [1, 0]}, InvalidRequest, r"checkpoints\[1\] is 0, below 1 before it"),
        ({"checkpoints": [1, 3]}, InvalidRequest, r"checkpoints\[1\] is 3, beyond the 2 token_ids"),
        ({"images": [ImageRef("0" * 64, (1, 2, 2), 0)]}, Unsupported, "images"),
        ({"constraint": Constraint("regex", "a")}, Unsupported, "constraint"),
    ],
)
def test_refusals_name_the_value(engine: Engine, fields: dict, error: type[ServiceError], text: str) -> None:
    request = make_request(fields.pop("ids", [1, 2]), 1, **fields)
    with pytest.raises(error, match=text):
        engine.submit(request, Collector())
    assert len(new_ids(generate(engine, make_request([1, 2], 1)))) == 1, "the engine still works"


def test_one_runs_one_waits_a_third_is_refused(engine: Engine) -> None:
    running = start_long(engine, request_id="a")
    waiting = Collector()
    engine.submit(make_request(PROMPT, 3, request_id="b", sampling=NO_STOP), waiting)
    with pytest.raises(EngineBusy):
        engine.submit(make_request(PROMPT, 3, request_id="c"), Collector())
    with pytest.raises(InvalidRequest, match="'a' already runs or waits"):
        engine.submit(make_request(PROMPT, 3, request_id="a"), Collector())
    assert waiting.is_quiet()
    engine.cancel("a", CancelRequest("client"))
    assert [type(e) for e in running][-1] is Finished and last(running).reason == "cancelled"
    assert len([e for e in waiting if isinstance(e, Tokens)]) == 3
    assert last(waiting).timings.queue_ms > 0


def test_cancel_reasons_and_unknown_ids(engine: Engine) -> None:
    with pytest.raises(NotFound, match="'ghost'"):
        engine.cancel("ghost", CancelRequest("client"))
    running = start_long(engine)
    waiting = Collector()
    engine.submit(make_request([5], 3, request_id="w"), waiting)
    engine.cancel("w", CancelRequest("preempt"))
    assert [type(e) for e in waiting] == [Finished] and last(waiting).reason == "preempted"
    engine.cancel("r", CancelRequest("preempt"))
    engine.cancel("r", CancelRequest("client"))
    assert list(running)[-1] == last(running) and last(running).reason == "preempted", "the first reason stays"


def test_fences_refuse_the_past_and_pause_for_the_future(engine: Engine) -> None:
    first = start_long(engine, request_id="1", fence=(1, 5))
    assert engine.info().fence == (1, 5)
    for stale in ((1, 4), (0, 99)):
        with pytest.raises(StaleLease, match=r"is below \[1, 5\]"):
            engine.submit(make_request([5], 1, fence=stale), Collector())
        with pytest.raises(StaleLease):
            engine.cancel("1", CancelRequest("client", fence=stale))
    equal = Collector()
    engine.submit(make_request([5], LONG, request_id="2", fence=(1, 5)), equal)
    higher = Collector()
    engine.submit(make_request([5], 2, request_id="3", fence=(2, 0), sampling=NO_STOP), higher)
    assert list(first)[-1] == last(first) and last(first).reason == "preempted"
    assert [type(e) for e in equal] == [Finished] and last(equal).reason == "preempted"
    assert list(higher)[-1] == last(higher) and last(higher).reason == "length"
    assert engine.info().fence == (2, 0)


def test_a_request_without_fence_is_not_paused_by_one(engine: Engine) -> None:
    bare = start_long(engine, request_id="bare")
    engine.submit(make_request([5], 1, request_id="f", fence=(1, 0)), Collector())
    engine.cancel("bare", CancelRequest("client", fence=(1, 0)))
    assert list(bare)[-1] == last(bare) and last(bare).reason == "cancelled"


def test_cancelling_a_prefill_keeps_what_it_computed(engine: Engine) -> None:
    prompt = [5] * 1000
    collector = Collector()
    ticket = engine.submit(make_request(prompt, 5), collector)
    collector.wait_for(Prefill)
    engine.abandon(ticket)
    assert list(collector)[-1] == last(collector) and last(collector).reason == "cancelled"
    assert last(collector).timings.ttft_ms is None
    assert last(generate(engine, make_request(prompt, 1))).usage.cached_tokens > 0


def test_draining_ends_everything_as_shutting_down(tiny_home: Path) -> None:
    engine = start_engine(tiny_home)
    running = start_long(engine, request_id="a")
    waiting = Collector()
    engine.submit(make_request([5], 3, request_id="b"), waiting)
    assert engine.close(10.0)
    for collector in (running, waiting):
        final = list(collector)[-1]
        assert isinstance(final, Failed) and (final.code, final.retryable) == ("shutting_down", True)
    with pytest.raises(ShuttingDown):
        engine.submit(make_request([5], 3), Collector())


def test_a_crash_fails_one_request_and_leaves_a_working_engine(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = new_ids(generate(engine, make_request(PROMPT, 5, sampling=NO_STOP)))
    with monkeypatch.context() as patch:
        patch.setattr("engine.runtime.decode.Sampler.draw", lambda *_: 1 / 0)
        collector = generate(engine, make_request(PROMPT, 5))
    final = collector.events[-1]
    assert isinstance(final, Failed) and final.code == "internal_error" and "Traceback" not in final.message
    assert len([record for record in caplog.records if record.exc_info]) == 1
    after = generate(engine, make_request(PROMPT, 5, sampling=NO_STOP))
    assert new_ids(after) == expected and last(after).usage.cached_tokens == 0, "the state was dropped"


def test_every_stream_ends_once_under_random_interference(engine: Engine) -> None:
    collectors: list[Collector] = []
    numbers = itertools.count(1)

    def client(kind: int) -> None:
        for _ in range(8):
            number = next(numbers)
            collector = Collector()
            fence = (number, 0) if kind == 0 else None
            try:
                engine.submit(make_request(PROMPT, 20, request_id=str(number), fence=fence), collector)
            except (EngineBusy, StaleLease):
                continue
            collectors.append(collector)
            if kind == 1:
                with suppress(NotFound):
                    engine.cancel(str(number), CancelRequest("client"))
            for _event in collector:
                pass

    threads = [threading.Thread(target=client, args=(kind,)) for kind in (0, 1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a stream never ended"
    assert len(collectors) > 8
    for collector in collectors:
        assert sum(isinstance(event, Finished | Failed) for event in collector.events) == 1
        assert collector.is_quiet(), "an event came behind the terminal one"


def test_rates_are_learned_from_requests(engine: Engine) -> None:
    assert engine.info().rates.prefill_tok_s is None and engine.info().rates.decode_tok_s is None
    generate(engine, make_request(PROMPT, 20, sampling=NO_STOP))
    rates = engine.info().rates
    assert rates.prefill_tok_s is not None and rates.prefill_tok_s > 100
    assert rates.decode_tok_s is not None and rates.decode_tok_s > 10


def test_drafting_changes_nothing_that_a_caller_sees(tiny_home: Path) -> None:
    prompt = PROMPT[:30] * 2
    sampling = {"temperature": 0.4, "seed": 3, **NO_STOP}
    replies = []
    for settings in ({"speculation": "off"}, {"speculation": "ngram", "drafts": "5"}, {"speculation": "ngram"}, {}):
        engine = start_engine(tiny_home, **settings)
        collector = generate(engine, make_request(prompt, 60, logprobs=1, sampling=sampling))
        batches = [event for event in collector.events if isinstance(event, Tokens)]
        assert all(event.logprobs is not None and len(event.logprobs) == len(event.ids) for event in batches)
        usage = last(collector).usage
        replies.append((new_ids(collector), [entry for event in batches for entry in event.logprobs or []]))
        assert engine.info().speculation == {"5": "ngram-5"}.get(
            settings.get("drafts", ""), "ngram-3" if settings == {"speculation": "ngram"} else "none"
        )
        assert (usage.drafted_tokens > 0) == (settings.get("speculation") == "ngram")
        assert usage.accepted_tokens == 60 - 1 - (len(batches) - 1) and usage.completion_tokens == 60
        engine.close(10.0)
    assert all(reply == replies[0] for reply in replies)


@pytest.mark.full
@pytest.mark.parametrize(("setting", "length"), [("on", 1024), ("off", 1100)])
def test_the_guard_ends_a_loop_unless_it_is_off(tmp_path: Path, setting: Literal["on", "off"], length: int) -> None:
    spec = replace(TINY, context_limit=1200)
    engine = start_engine(make_home(tmp_path, spec), spec, repetition_guard=setting)
    loop = {"temperature": 0.0, "logit_bias": {40: 100.0}}
    finished = last(generate(engine, make_request([5], 1100, sampling=loop)))
    assert finished.usage.completion_tokens == length
    assert (finished.reason, finished.guard) == (("stop", "repetition") if setting == "on" else ("length", None))
    engine.close(10.0)
