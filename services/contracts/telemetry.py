"""Every telemetry name the stack emits, once: spans, attributes, metrics with unit and edges. No other file spells one.

Source: OpenTelemetry GenAI conventions v0.1.0 for gen_ai.*; soloist.* covers what they lack (queue, reuse, energy).
Names carry no unit; the unit is a field. Labels of metrics are bounded, ids live on spans only.
"""

from dataclasses import dataclass
from typing import Literal

GENAI_CONVENTIONS = "v0.1.0"
PROVIDER = "soloist"

# Spans
SPAN_ADMIT = "soloist.admit"
SPAN_TOKENIZE = "soloist.tokenize"
SPAN_QUEUE_WAIT = "soloist.queue.wait"
SPAN_CHAT = "chat"  # the span's name is "chat {model}"
SPAN_GENERATE = "soloist.engine.generate"
SPAN_PREFILL = "soloist.engine.prefill"
SPAN_DECODE = "soloist.engine.decode"

# Attributes, GenAI
GEN_AI_OPERATION = "gen_ai.operation.name"
GEN_AI_PROVIDER = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL = "gen_ai.request.model"
GEN_AI_REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P = "gen_ai.request.top_p"
GEN_AI_REQUEST_TOP_K = "gen_ai.request.top_k"
GEN_AI_REQUEST_SEED = "gen_ai.request.seed"
GEN_AI_REQUEST_STREAM = "gen_ai.request.stream"
GEN_AI_RESPONSE_ID = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL = "gen_ai.response.model"
GEN_AI_RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
GEN_AI_USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
GEN_AI_USAGE_CACHE_READ = "gen_ai.usage.cache_read.input_tokens"
ERROR_TYPE = "error.type"
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"

# Attributes, ours
REQUEST_ID = "soloist.request.id"
AGENT = "soloist.agent"
BAND = "soloist.band"
TIER = "soloist.tier"
REGION = "soloist.region"
PHASE = "soloist.phase"
OUTCOME = "soloist.outcome"
REASON = "soloist.reason"
TOKEN_KIND = "soloist.token.kind"
QUEUE_POSITION = "soloist.queue.position"
FENCE_EPOCH = "soloist.fence.epoch"
FENCE_NUMBER = "soloist.fence.number"
TOKENS_PROMPT = "soloist.tokens.prompt"
TOKENS_CACHED = "soloist.tokens.cached"
TOKENS_COMPUTED = "soloist.tokens.computed"
TOKENS_CLAMPED = "soloist.tokens.clamped"
TOKENS_LIMIT = "soloist.tokens.limit"
DECODE_ROUNDS = "soloist.decode.rounds"
DECODE_MAX_GAP = "soloist.decode.max_gap"

# Histogram edges, in the metric's unit
EDGES_REQUEST = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
    163.84, 327.68, 655.36, 1310.72, 2621.44,
)  # fmt: skip
EDGES_FIRST_TOKEN = (
    0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0,
    192.0, 256.0, 384.0, 640.0, 1280.0,
)  # fmt: skip
EDGES_PER_TOKEN = (
    0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.010, 0.012, 0.015, 0.020,
    0.030, 0.050, 0.100, 0.250,
)  # fmt: skip
EDGES_INTER_CHUNK = (
    0.005, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.050, 0.075, 0.1, 0.2, 0.35, 0.5,
    0.75, 1.0, 2.0, 5.0,
)  # fmt: skip
EDGES_TOKENIZE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
EDGES_OVERHEAD = (
    0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Metric:
    """One instrument: name without unit, unit as OpenTelemetry writes it, edges for histograms, label names."""

    name: str
    kind: Literal["counter", "up_down", "histogram", "gauge"]
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()


REQUEST_DURATION = Metric(
    "gen_ai.server.request.duration", "histogram", "s", "Arrival to last byte",
    (GEN_AI_OPERATION, GEN_AI_PROVIDER, GEN_AI_REQUEST_MODEL, ERROR_TYPE), EDGES_REQUEST,
)  # fmt: skip
TIME_TO_FIRST_TOKEN = Metric(
    "gen_ai.server.time_to_first_token", "histogram", "s", "Arrival to first token, queue included",
    (GEN_AI_OPERATION, GEN_AI_PROVIDER, GEN_AI_REQUEST_MODEL), EDGES_FIRST_TOKEN,
)  # fmt: skip
TIME_PER_OUTPUT_TOKEN = Metric(
    "gen_ai.server.time_per_output_token", "histogram", "s", "(last - first) / (n - 1) over one request",
    (GEN_AI_OPERATION, GEN_AI_PROVIDER, GEN_AI_REQUEST_MODEL), EDGES_PER_TOKEN,
)  # fmt: skip
QUEUE_DEPTH = Metric("soloist.queue.depth", "up_down", "{request}", "Waiting tickets of this gateway", (BAND,))
QUEUE_WAIT = Metric("soloist.queue.wait", "histogram", "s", "Ticket to lane", (BAND, OUTCOME), EDGES_REQUEST)
ADMISSIONS = Metric("soloist.admission.requests", "counter", "{request}", "Admission decisions", (OUTCOME, REASON))
REQUESTS_ACTIVE = Metric("soloist.requests.active", "up_down", "{request}", "Requests between first and last byte")
REQUESTS_CANCELLED = Metric("soloist.requests.cancelled", "counter", "{request}", "Clients that left", (PHASE,))
GATEWAY_OVERHEAD = Metric(
    "soloist.gateway.overhead", "histogram", "s", "Gateway time outside queue, tokenising and engine", (),
    EDGES_OVERHEAD,
)  # fmt: skip
TOKENIZE_DURATION = Metric(
    "soloist.tokenize.duration", "histogram", "s", "Rendering and tokenising", (), EDGES_TOKENIZE
)
LEASE_LOST = Metric("soloist.lease.lost", "counter", "{lease}", "Leases that expired or were superseded")
TOKENS = Metric("soloist.tokens", "counter", "{token}", "Tokens by kind", (TOKEN_KIND,))
ENGINE_BUSY = Metric("soloist.engine.busy", "counter", "s", "Engine seconds by phase", (PHASE,))
INTER_CHUNK = Metric("soloist.engine.inter_chunk", "histogram", "s", "Gap between token events", (), EDGES_INTER_CHUNK)
CONTEXT_USED = Metric("soloist.context.used", "gauge", "{token}", "Depth of the resident sequence")
CONTEXT_LIMIT = Metric("soloist.context.limit", "gauge", "{token}", "Context window")
MEMORY_PLANNED = Metric("soloist.memory.planned", "gauge", "By", "Planned bytes by region", (REGION,))
