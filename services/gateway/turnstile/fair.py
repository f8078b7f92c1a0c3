"""The order in which waiting tickets would be served, for positions and estimates. Owns no state and grants nothing.

The same rule as lua/fair.lua, run ahead: bands in order, inside a band the lowest start tag S = max(finish of the
agent, virtual time at arrival), equal tags by arrival; serving moves the agent's finish to S + cost.
"""

import heapq
from collections.abc import Iterator

from contracts.generate import Fence
from gateway.turnstile.model import BANDS, Band, LaneView, QueueSnapshot, WaitingTicket
from gateway.turnstile.store import BandRow, FlowTicket, LaneRow, SnapshotReply


def predict(reply: SnapshotReply) -> QueueSnapshot:
    """Order the tickets of a snapshot and estimate their waits, assuming that estimates of cost hold."""
    lanes = tuple(_view(row, reply.now_ms) for row in reply.lanes)
    ends_s = [max(0.0, lane.cost_s - lane.held_s) for lane in lanes]
    heapq.heapify(ends_s)
    rows = {row.band: row for row in reply.bands}
    waiting: list[WaitingTicket] = []
    for band in BANDS:
        for ticket in service_order(rows[band]):
            start_s = ends_s[0]
            heapq.heapreplace(ends_s, start_s + ticket.cost_s)
            waited_s = max(0.0, reply.now_ms / 1000 - ticket.seq / 1e6)
            waiting.append(_waiting(ticket, band, len(waiting) + 1, start_s, waited_s))
    return QueueSnapshot(lanes, tuple(waiting))


def service_order(row: BandRow) -> Iterator[FlowTicket]:
    """Tickets of one band as they would be granted."""
    flows: dict[str, list[FlowTicket]] = {}
    for ticket in sorted(row.tickets, key=lambda ticket: ticket.seq, reverse=True):
        flows.setdefault(ticket.agent, []).append(ticket)
    finishes = dict(row.finishes)
    heads = [_tagged(flow[-1], finishes) for flow in flows.values()]
    heapq.heapify(heads)
    while heads:
        tag, _, agent = heapq.heappop(heads)
        ticket = flows[agent].pop()
        finishes[agent] = tag + ticket.cost_s
        if flows[agent]:
            heapq.heappush(heads, _tagged(flows[agent][-1], finishes))
        yield ticket


def _tagged(ticket: FlowTicket, finishes: dict[str, float]) -> tuple[float, int, str]:
    return max(finishes.get(ticket.agent, 0.0), ticket.arrival), ticket.seq, ticket.agent


def _view(row: LaneRow, now_ms: float) -> LaneView:
    if row.request_id is None:
        return LaneView(row.lane)
    band: Band = "background" if row.band == "background" else "interactive"
    fence: Fence | None = row.fence
    held_s = max(0.0, (now_ms - row.granted_ms) / 1000)
    return LaneView(row.lane, row.request_id, row.agent, band, fence, held_s, row.charged_s)


def _waiting(ticket: FlowTicket, band: Band, position: int, estimate_s: float, waited_s: float) -> WaitingTicket:
    return WaitingTicket(
        ticket_id=ticket.ticket_id,
        request_id=ticket.request_id,
        agent=ticket.agent,
        band=band,
        position=position,
        estimate_s=estimate_s,
        waited_s=waited_s,
        cost_s=ticket.cost_s,
        num_prompt_tokens=ticket.num_prompt_tokens,
    )
