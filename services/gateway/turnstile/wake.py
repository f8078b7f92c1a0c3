"""Wake-ups: listens for grants that other gateways' transitions publish for our tickets.

Owns the subscription. Messages may be lost, then the heartbeat finds the grant; each new subscription asks for one.
"""

import asyncio
import logging
from collections.abc import Callable

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError as StoreConnectionError

from gateway.turnstile.pulse import MAX_BACKOFF_S, MIN_BACKOFF_S
from gateway.turnstile.store import STORE_ERRORS, Granted, wake_channel

_log = logging.getLogger("gateway.turnstile")
IDLE_S = 30.0
ANSWER_S = 2.0


class Wake:
    """run() never returns; on_grant gets ticket id and grant, on_subscribed is called after each (re)connection.

    A quiet connection is pinged every idle_s, so that a dead one is noticed.
    """

    def __init__(
        self,
        client: "Redis",
        owner: str,
        on_grant: Callable[[str, Granted], None],
        on_subscribed: Callable[[], None],
        idle_s: float = IDLE_S,
    ) -> None:
        self._client = client
        self._channel = wake_channel(owner)
        self._on_grant = on_grant
        self._on_subscribed = on_subscribed
        self._idle_s = idle_s

    async def run(self) -> None:
        """Subscribe, deliver, and start over whenever the connection breaks."""
        backoff_s = MIN_BACKOFF_S
        while True:
            subscription = self._client.pubsub(ignore_subscribe_messages=True)
            try:
                async with asyncio.timeout(ANSWER_S):
                    await subscription.subscribe(self._channel)
                self._on_subscribed()
                backoff_s = MIN_BACKOFF_S
                await self._deliver(subscription)
            except STORE_ERRORS as error:
                _log.debug("wake-ups interrupted: %s", error)
            finally:
                await subscription.aclose()  # type: ignore[no-untyped-call]
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _deliver(self, subscription: PubSub) -> None:
        while True:
            message = await subscription.get_message(timeout=self._idle_s)
            if message is None:
                await subscription.ping()
                message = await subscription.get_message(timeout=ANSWER_S)
                if message is None:
                    raise StoreConnectionError(f"no answer to a ping within {ANSWER_S} s")
            if message["type"] == "message":
                ticket_id, lane, epoch, n = message["data"].split(" ")
                self._on_grant(ticket_id, Granted(lane, (int(epoch), int(n))))
