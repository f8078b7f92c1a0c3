-- Start-time fair queueing between agents inside a band, first come first served inside an agent.
-- A flow's head starts at S = max(finish of the flow, virtual time when the head arrived); the lowest S is served,
-- virtual time becomes that S, the flow's finish S + cost. The currency is engine-seconds.
local MAX_FINISHES = 4096

local function virtual_time(band) return tonumber(redis.call('HGET', META, 'v:' .. band) or 0) end

-- Put the flow where its head belongs on the band's ring; an empty flow leaves the ring.
local function place(band, agent)
  local head = redis.call('ZRANGE', flow_key(band, agent), 0, 0)[1]
  local ring = P .. 'ring:' .. band
  if not head then
    redis.call('ZREM', ring, agent)
    return
  end
  local finish = tonumber(redis.call('ZSCORE', P .. 'finish:' .. band, agent) or 0)
  local arrival = tonumber(redis.call('HGET', ticket_key(head), 'arrival') or 0)
  redis.call('ZADD', ring, math.max(finish, arrival), agent)
  keep(ring)
end

-- Enter a ticket, whose hash exists, into its flow.
local function link(id, band, agent, seq, cost_s)
  local flow, waiting = flow_key(band, agent), P .. 'waiting:' .. band
  redis.call('ZADD', flow, seq, id)
  redis.call('ZADD', waiting, seq, id)
  redis.call('HINCRBYFLOAT', META, 'cost:' .. band, cost_s)
  keep(flow)
  keep(waiting)
  place(band, agent)
end

-- Take a ticket out of its flow; the caller places the flow again.
local function unlink(id, band, agent, cost_s)
  redis.call('ZREM', flow_key(band, agent), id)
  redis.call('ZREM', P .. 'waiting:' .. band, id)
  if redis.call('EXISTS', P .. 'waiting:' .. band) == 1 then
    redis.call('HINCRBYFLOAT', META, 'cost:' .. band, -cost_s)
  else
    redis.call('HSET', META, 'cost:' .. band, 0) -- no drift from one busy spell to the next
  end
end

-- Remove a waiting ticket for good; false when it does not wait.
local function remove(id)
  local ticket = redis.call('HMGET', ticket_key(id), 'band', 'agent', 'cost', 'owner')
  if not ticket[1] then return false end
  unlink(id, ticket[1], ticket[2], tonumber(ticket[3]))
  redis.call('DEL', ticket_key(id))
  redis.call('SREM', P .. 'owned:' .. ticket[4], id)
  place(ticket[1], ticket[2])
  return true
end

-- The band's next agent, its head and start tag; equal tags are served in order of arrival.
local function pick(band)
  local ring = P .. 'ring:' .. band
  local first = redis.call('ZRANGE', ring, 0, 0, 'WITHSCORES')
  if #first == 0 then return nil end
  local agent, id, lowest
  for _, candidate in ipairs(redis.call('ZRANGEBYSCORE', ring, first[2], first[2])) do
    local head = redis.call('ZRANGE', flow_key(band, candidate), 0, 0, 'WITHSCORES')
    local seq = tonumber(head[2] or 0)
    if not lowest or seq < lowest then agent, id, lowest = candidate, head[1] or '', seq end
  end
  return agent, id, tonumber(first[2])
end

-- Book the estimate of a ticket that starts at tag.
local function charge(band, agent, tag, cost_s)
  local finish = P .. 'finish:' .. band
  redis.call('ZADD', finish, tag + cost_s, agent)
  redis.call('HSET', META, 'v:' .. band, math.max(virtual_time(band), tag))
  redis.call('ZREMRANGEBYRANK', finish, 0, -1 - MAX_FINISHES) -- the lowest say least
  keep(finish)
end

-- Replace what a lease was charged by what it really cost.
local function settle(lease, measured_s)
  local finish = P .. 'finish:' .. lease.band
  local known = redis.call('ZSCORE', finish, lease.agent)
  local settled = tonumber(lease.tag) + measured_s
  if known then settled = tonumber(known) + measured_s - tonumber(lease.charged) end
  redis.call('ZADD', finish, settled, lease.agent)
  keep(finish)
  place(lease.band, lease.agent)
end

-- A band that nobody uses or waits for starts afresh: what was used while nobody waited is not held against anyone.
local function forget_idle(band)
  if redis.call('EXISTS', P .. 'waiting:' .. band) == 1 then return end
  for _, lane in ipairs(LANES) do
    if redis.call('HGET', lane_key(lane), 'band') == band then return end
  end
  local finish = P .. 'finish:' .. band
  local last = redis.call('ZREVRANGE', finish, 0, 0, 'WITHSCORES')
  if #last == 0 then return end
  redis.call('HSET', META, 'v:' .. band, math.max(virtual_time(band), tonumber(last[2])))
  redis.call('DEL', finish)
end
