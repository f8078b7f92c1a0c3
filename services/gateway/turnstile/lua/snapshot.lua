-- The whole queue, unchanged. Replies {now in ms, {lane fields...}, {band, virtual time, finishes, tickets}...}.
local lanes, bands = {}, {}
for i, lane in ipairs(LANES) do
  lanes[i] = redis.call('HMGET', lane_key(lane), 'request', 'agent', 'band', 'epoch', 'n', 'granted', 'charged')
end
for i, band in ipairs(BANDS) do
  local tickets = {}
  for j, id in ipairs(redis.call('ZRANGE', P .. 'waiting:' .. band, 0, -1)) do
    local fields = redis.call('HMGET', ticket_key(id), 'request', 'agent', 'seq', 'cost', 'tokens', 'arrival')
    table.insert(fields, 1, id)
    tickets[j] = fields
  end
  local finishes = redis.call('ZRANGE', P .. 'finish:' .. band, 0, -1, 'WITHSCORES')
  bands[i] = {band, finishes, tickets}
end
return {text(now_ms), lanes, bands}
