-- The whole queue, unchanged. Replies {now in ms, {lane fields...}, {band, {waiting agent, finish...}, tickets}...}.
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
  local finishes = {}
  for _, agent in ipairs(redis.call('ZRANGE', P .. 'ring:' .. band, 0, -1)) do
    finishes[#finishes + 1] = agent
    finishes[#finishes + 1] = redis.call('ZSCORE', P .. 'finish:' .. band, agent) or '0'
  end
  bands[i] = {band, finishes, tickets}
end
return {text(now_ms), lanes, bands}
