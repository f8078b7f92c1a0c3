"""Whether a request can run on this model: ids, room, features. Owns these refusals; turns a request into a Job.

Everything here is decided before the stream opens, so a refusal is a status code and never an event.
"""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contracts.errors import ContextTooLong, InvalidRequest, Unsupported
from contracts.generate import GenerateRequest
from engine.runtime.interrupt import Interrupt
from engine.runtime.job import Job


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What holds for every request: the model's numbers (vocab_size is the tokenizer's), and the guard of replies."""

    context_limit: int
    vocab_size: int
    stop_token_ids: tuple[int, ...]
    guards_repetition: bool = True


def make_job(request: GenerateRequest, limits: RequestLimits) -> Job:
    """The request as a job.

    max_new_tokens beyond the window is clamped; the reply then ends with reason length. The model's stop ids hold
    beside the request's.
    Raises: InvalidRequest, ContextTooLong, Unsupported.
    """
    _refuse_missing_features(request)
    ids = _check_ids(request, limits)
    _check_checkpoints(request)
    output_start = len(ids) if request.output_start is None else request.output_start
    if output_start > len(ids):
        raise InvalidRequest(f"output_start is {output_start}, beyond the {len(ids)} token_ids", param="output_start")
    if output_start == 0:
        raise InvalidRequest("output_start is 0: a prompt has at least one token", param="output_start")
    if len(ids) >= limits.context_limit:
        raise ContextTooLong(len(ids), limits.context_limit, param="token_ids")
    return Job(
        request=request,
        ids=ids,
        output_start=output_start,
        max_tokens=min(request.max_new_tokens, limits.context_limit - output_start),
        stop_token_ids=frozenset(limits.stop_token_ids).union(request.stop_token_ids),
        guards_repetition=limits.guards_repetition,
        interrupt=Interrupt(),
        arrived_s=time.monotonic(),
    )


def _refuse_missing_features(request: GenerateRequest) -> None:
    if request.images:
        raise Unsupported("images: this model cannot see", param="images")
    if request.constraint is not None:
        raise Unsupported("constraint: this version cannot constrain the output", param="constraint")


def _check_ids(request: GenerateRequest, limits: RequestLimits) -> NDArray[np.int64]:
    ids = _to_array(request.token_ids)
    bad = np.flatnonzero(ids >= limits.vocab_size)
    if len(bad):
        index = int(bad[0])
        raise _outside_vocabulary(f"token_ids[{index}]", request.token_ids[index], limits)
    for index, token_id in enumerate(request.stop_token_ids):
        if token_id >= limits.vocab_size:
            raise _outside_vocabulary(f"stop_token_ids[{index}]", token_id, limits)
    for token_id in request.sampling.logit_bias:
        if not 0 <= token_id < limits.vocab_size:
            raise _outside_vocabulary("sampling.logit_bias", token_id, limits)
    return ids


def _check_checkpoints(request: GenerateRequest) -> None:
    before = 0
    for index, position in enumerate(request.checkpoints):
        if position < before:
            raise InvalidRequest(
                f"checkpoints[{index}] is {position}, below {before} before it", param=f"checkpoints[{index}]"
            )
        before = position
    if before > len(request.token_ids):
        raise InvalidRequest(
            f"checkpoints[{len(request.checkpoints) - 1}] is {before}, beyond the {len(request.token_ids)} token_ids",
            param=f"checkpoints[{len(request.checkpoints) - 1}]",
        )


def _to_array(ids: list[int]) -> NDArray[np.int64]:
    try:
        return np.asarray(ids, dtype=np.int64)
    except OverflowError:  # JSON integers have no upper limit
        return np.asarray([min(token_id, np.iinfo(np.int64).max) for token_id in ids], dtype=np.int64)


def _outside_vocabulary(param: str, token_id: int, limits: RequestLimits) -> InvalidRequest:
    return InvalidRequest(f"{param} is {token_id}, the vocabulary has {limits.vocab_size} ids", param=param)
