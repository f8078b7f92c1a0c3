"""Every contract message against its golden JSON, and what the codec refuses."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import codec
from contracts.engine_info import EngineInfo, MemoryReport, Rates, Readiness, Region
from contracts.errors import InvalidRequest
from contracts.generate import (
    Accepted,
    CancelRequest,
    Constraint,
    Energy,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    ImageRef,
    Prefill,
    Sampling,
    Timings,
    TokenLogprob,
    Tokens,
    Usage,
)
from contracts.model_folder import FileEntry, ModelManifest, TensorDirectory, TensorEntry

GOLDEN = Path(__file__).parent / "golden"
SHA = "ab" * 32

MESSAGES: dict[str, msgspec.Struct] = {
    "generate_request": GenerateRequest(
        request_id="req-1",
        token_ids=[1, 2, 3],
        max_new_tokens=64,
        output_start=2,
        fence=(7, 42),
        stop_token_ids=[2],
        sampling=Sampling(temperature=0.7, top_p=0.9, top_k=20, min_p=0.05, seed=11, logit_bias={5: -1.5}),
        images=[ImageRef(sha256=SHA, grid=(1, 4, 6), offset=1)],
        constraint=Constraint(kind="regex", value="[0-9]+", after_token_id=9),
        checkpoints=[2],
        logprobs=3,
    ),
    "generate_request_minimal": GenerateRequest(request_id="r", token_ids=[1], max_new_tokens=1),
    "cancel_request": CancelRequest(reason="preempt", fence=(7, 43)),
    "accepted": Accepted(cached_tokens=128, tier="host", restore_ms=1.5),
    "prefill": Prefill(done=64, total=200),
    "tokens": Tokens(ids=[5, 6]),
    "tokens_logprobs": Tokens(ids=[5], logprobs=[TokenLogprob(logprob=-0.25, top=[(5, -0.25), (6, -1.5)])]),
    "finished": Finished(
        reason="stop",
        usage=Usage(
            prompt_tokens=3,
            cached_tokens=2,
            completion_tokens=7,
            drafted_tokens=6,
            accepted_tokens=4,
            drafted_by_position=[2, 2, 2],
            accepted_by_position=[2, 1, 1],
        ),
        timings=Timings(queue_ms=0.5, restore_ms=0.0, prefill_ms=10.0, decode_ms=70.0, ttft_ms=11.0),
        energy=Energy(prefill_j=1.0, decode_j=2.0, idle_w=20.0, source="nvml"),
        guard="repetition",
    ),
    "failed": Failed(code="numerical_error", message="logits of position 9 are not finite", retryable=False),
    "engine_info": EngineInfo(
        model_id="smollm2-135m",
        family="llama",
        context_limit=8192,
        vocab_size=49152,
        tokenizer_sha256=SHA,
        stop_token_ids=[2],
        kv_format="bf16",
        speculation="none",
        executor="reference-cpu",
        memory=MemoryReport(regions=[Region(name="kv", bytes=1024)], total_bytes=1024, left_bytes=None),
        rates=Rates(prefill_tok_s=300.0, decode_tok_s=None),
        fence=(7, 42),
        version="0.1.0",
    ),
    "readiness": Readiness(status="loading", progress=0.25, message="weights"),
    "manifest": ModelManifest(
        format_version=1,
        name="smollm2-135m",
        family="llama",
        context_limit=8192,
        vocab_size=49152,
        stop_token_ids=[2],
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        license="Apache-2.0",
        files={"weights.gguf": FileEntry(bytes=3, sha256=SHA)},
        default_sampling=Sampling(temperature=0.2, top_p=0.9),
    ),
    "tensor_directory": TensorDirectory(
        weights_bytes=3,
        weights_sha256=SHA,
        architecture="llama",
        metadata={"llama.block_count": 30, "llama.rope.freq_base": 100000.0, "general.name": "SmolLM2"},
        tensors=[TensorEntry(name="token_embd.weight", kind="Q8_0", shape=[49152, 576], offset=64, bytes=30081024)],
    ),
}

DECODERS = {
    "generate_request": codec.decode_generate_request,
    "generate_request_minimal": codec.decode_generate_request,
    "cancel_request": codec.decode_cancel_request,
    "engine_info": codec.decode_engine_info,
    "readiness": codec.decode_readiness,
    "manifest": codec.decode_manifest,
    "tensor_directory": codec.decode_tensor_directory,
}


@pytest.mark.parametrize("name", MESSAGES)
def test_message_equals_its_golden_json(name: str) -> None:
    golden = (GOLDEN / f"{name}.json").read_bytes().rstrip(b"\n")
    assert codec.encode(MESSAGES[name]) == golden, "the wire changed: raise the version or fix the change"
    assert DECODERS.get(name, codec.decode_event)(golden) == MESSAGES[name]


def test_every_golden_file_has_its_message() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(MESSAGES)


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        (b"", None, "the body is empty"),
        (b" \n", None, "the body is empty"),
        (b"{", None, "not valid JSON"),
        (b"[1]", None, "Expected `object`"),
        (b"[" * 100_000, None, ""),
        (b'{"request_id":"r","token_ids":[],"max_new_tokens":1}', "token_ids", "length >= 1"),
        (b'{"request_id":"r","token_ids":[1,-2],"max_new_tokens":1}', "token_ids[1]", "must be a whole number >= 0"),
        (b'{"request_id":"r","token_ids":[1],"max_new_tokens":-3}', "max_new_tokens", "must be a whole number >= 1"),
        (b'{"request_id":"r","token_ids":[1],"max_new_tokens":1e999}', "max_new_tokens", "out of range: beyond"),
        (b'{"request_id":"r","token_ids":[1],"max_new_tokens":1,"tempratur":1}', None, "tempratur"),
        (
            b'{"request_id":"r","token_ids":[1],"max_new_tokens":1,"sampling":{"top_p":0}}',
            "sampling.top_p",
            "must be a number > 0.0",
        ),
        (b'{"request_id":"r","token_ids":[1],"max_new_tokens":1,"sampling":{"temperature":NaN}}', None, "not valid"),
        (b'{"request_id":"r","token_ids":"1","max_new_tokens":1}', "token_ids", "`array`"),
        (b'{"request_id":"r","token_ids":[1],"max_new_tokens":1,"fence":[1]}', "fence", "length 2"),
    ],
)
def test_bad_request_names_field_and_limit(body: bytes, param: str | None, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        codec.decode_generate_request(body)
    assert text in caught.value.message
    assert caught.value.param == param


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
events = st.one_of(
    st.builds(Accepted, st.integers(0, 2**31), st.sampled_from(["device", "host", "disk", "none"]), finite),
    st.builds(Prefill, st.integers(0, 2**20), st.integers(0, 2**20)),
    st.builds(Tokens, st.lists(st.integers(0, 2**20), max_size=8)),
    st.builds(Failed, st.text(), st.text(), st.booleans()),
)


@given(events)
def test_event_survives_its_line(event: Event) -> None:
    line = codec.encode_line(event)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert codec.decode_event(line) == event


def test_a_finished_event_without_the_later_fields_is_read() -> None:
    old = codec.encode(Finished("stop", Usage(3, 2, 7), Timings(0.0, 0.0, 1.0, 2.0, None)))
    event = msgspec.json.decode(old)
    del event["guard"], event["usage"]["drafted_by_position"], event["usage"]["accepted_by_position"]
    finished = codec.decode_event(msgspec.json.encode(event))
    assert isinstance(finished, Finished) and finished.guard is None and finished.usage.accepted_by_position == []
