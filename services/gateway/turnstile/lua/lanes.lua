-- Leases, fences and the dead. A lane's key is the ticket it was granted to, renamed, plus the lease's own fields.

-- Start a new epoch: the store is empty, or restarted and may have lost its last second. Whoever was alive gets one
-- time to live to report again, and nothing is granted during the grace, so that no running lease is overlooked.
local function begin_epoch(run)
  local before = tonumber(redis.call('HGET', META, 'epoch') or 0)
  local epoch = math.max(before + 1, FLOOR[1] + 1, math.floor(now_ms))
  redis.call('HSET', META, 'run', run, 'epoch', epoch, 'n', 0, 'grants_from', now_ms + GRACE_MS)
  keep(META)
  for _, lane in ipairs(LANES) do
    if redis.call('EXISTS', lane_key(lane)) == 1 then redis.call('HSET', lane_key(lane), 'expires', now_ms + TTL_MS) end
  end
  for _, owner in ipairs(redis.call('ZRANGE', OWNERS, 0, -1)) do redis.call('ZADD', OWNERS, now_ms + TTL_MS, owner) end
end

-- First step of every transition: there is an epoch, and the fence is not below the floor the gateway knows of.
local function check_epoch()
  local fence = redis.call('HMGET', META, 'epoch', 'n')
  if not fence[1] then begin_epoch('') end
  local epoch, n = tonumber(fence[1] or FLOOR[1] + 1), tonumber(fence[2] or 0)
  if FLOOR[1] > epoch or (FLOOR[1] == epoch and FLOOR[2] > n) then
    redis.call('HSET', META, 'epoch', FLOOR[1], 'n', FLOOR[2])
  end
end

local function grace_left_ms()
  local left_ms = tonumber(redis.call('HGET', META, 'grants_from') or 0) - now_ms
  if left_ms > GRACE_MS then return 0 end -- the clock was set back
  return math.max(0, left_ms)
end

local function renew_owner()
  redis.call('ZADD', OWNERS, now_ms + TTL_MS, OWNER)
  keep(OWNERS)
end

local function lease_on(lane)
  local flat = redis.call('HGETALL', lane_key(lane))
  if #flat == 0 then return nil end
  local lease = {}
  for i = 1, #flat, 2 do lease[flat[i]] = flat[i + 1] end
  return lease
end

local function lane_of(id)
  for _, lane in ipairs(LANES) do
    if redis.call('HGET', lane_key(lane), 'id') == id then return lane end
  end
end

-- Remember a lane's last fence, and whether its holder is done with it: then a late heartbeat must not revive it.
local function note_fence(lane, epoch, n, done)
  redis.call('HSET', META, 'epoch:' .. lane, epoch, 'n:' .. lane, n, 'done:' .. lane, done)
end

-- Whether this fence is older than the lane's last, or is the last and done.
local function is_over(lane, epoch, n)
  local last = redis.call('HMGET', META, 'epoch:' .. lane, 'n:' .. lane, 'done:' .. lane)
  local last_epoch, last_n = tonumber(last[1] or 0), tonumber(last[2] or 0)
  if last_epoch ~= epoch then return last_epoch > epoch end
  return last_n > n or (last_n == n and last[3] == '1')
end

local function held_s(lease) return math.max(0, now_ms - tonumber(lease.granted)) / 1000 end

local function free(lane, lease, measured_s)
  redis.call('DEL', lane_key(lane))
  redis.call('SREM', P .. 'owned:' .. lease.owner, lease.id)
  settle(lease, measured_s)
  forget_idle(lease.band)
end

-- Remove the tickets of a gateway that stopped reporting, a batch at a time.
local function bury(owner)
  local owned = P .. 'owned:' .. owner
  for _, id in ipairs(redis.call('SRANDMEMBER', owned, 64)) do
    remove(id)
    redis.call('SREM', owned, id)
  end
  if redis.call('EXISTS', owned) == 0 then redis.call('ZREM', OWNERS, owner) end
end

-- Drop leases and gateways whose time is over. A term far ahead means the clock was set back: it is cut to one TTL.
local function sweep()
  for _, lane in ipairs(LANES) do
    local lease = lease_on(lane)
    if lease then
      local expires = tonumber(lease.expires)
      if expires <= now_ms then
        free(lane, lease, held_s(lease))
      elseif expires > now_ms + TTL_MS then
        redis.call('HSET', lane_key(lane), 'expires', now_ms + TTL_MS)
      end
    end
  end
  for _, owner in ipairs(redis.call('ZRANGEBYSCORE', OWNERS, '-inf', now_ms, 'LIMIT', 0, 4)) do bury(owner) end
  for _, owner in ipairs(redis.call('ZRANGEBYSCORE', OWNERS, '(' .. text(now_ms + TTL_MS), '+inf', 'LIMIT', 0, 4)) do
    redis.call('ZADD', OWNERS, now_ms + TTL_MS, owner)
  end
end

-- A background ticket that waited too long becomes interactive, in its agent's own flow, by its time of arrival.
local function promote_aged()
  local before = (now_ms - AGEING_MS) * 1000
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'waiting:background', '-inf', before, 'LIMIT', 0, 8)) do
    local ticket = redis.call('HMGET', ticket_key(id), 'agent', 'cost', 'seq')
    if ticket[1] then
      unlink(id, 'background', ticket[1], tonumber(ticket[2]))
      place('background', ticket[1])
      redis.call('HSET', ticket_key(id), 'band', 'interactive', 'arrival', virtual_time('interactive'))
      link(id, 'interactive', ticket[1], ticket[3], tonumber(ticket[2]))
    else
      redis.call('ZREM', P .. 'waiting:background', id)
    end
  end
end

-- The next ticket whose gateway lives: id, band, agent, start tag, cost, owner.
local function next_ticket()
  for _, band in ipairs(BANDS) do
    local agent, id, tag = pick(band)
    while agent do
      local ticket = redis.call('HMGET', ticket_key(id), 'cost', 'owner')
      local alive = ticket[2] and redis.call('ZSCORE', OWNERS, ticket[2])
      if alive and tonumber(alive) > now_ms then return id, band, agent, tag, tonumber(ticket[1]), ticket[2] end
      if not remove(id) then
        unlink(id, band, agent, 0) -- its hash is gone
        place(band, agent)
      end
      agent, id, tag = pick(band)
    end
  end
end

-- Grant every free lane. quiet names the ticket whose gateway learns of the grant from the reply.
local function grant_all(quiet)
  if grace_left_ms() > 0 then return end
  for _, lane in ipairs(LANES) do
    local key = lane_key(lane)
    if redis.call('EXISTS', key) == 0 then
      local id, band, agent, tag, cost_s, owner = next_ticket()
      if not id then return end
      unlink(id, band, agent, cost_s)
      charge(band, agent, tag, cost_s)
      place(band, agent)
      local n = redis.call('HINCRBY', META, 'n', 1)
      local epoch = redis.call('HGET', META, 'epoch')
      redis.call('RENAME', ticket_key(id), key)
      redis.call('HSET', key, 'id', id, 'epoch', epoch, 'n', n, 'tag', tag, 'charged', cost_s,
        'granted', now_ms, 'expires', now_ms + TTL_MS)
      note_fence(lane, epoch, n, 0)
      if id ~= quiet then
        redis.call('PUBLISH', P .. 'wake:' .. owner, table.concat({id, lane, epoch, n}, ' '))
      end
    end
  end
end

-- Where a ticket stands: {'granted', lane, epoch, n}, {'waiting', seq, ahead, seconds ahead} or {'unknown'}.
local function where(id)
  local lane = lane_of(id)
  if lane then
    local fence = redis.call('HMGET', lane_key(lane), 'epoch', 'n')
    return {'granted', lane, fence[1], fence[2]}
  end
  local ticket = redis.call('HMGET', ticket_key(id), 'band', 'cost', 'seq')
  if not ticket[1] then return {'unknown'} end
  local num_ahead, cost_s = 0, -tonumber(ticket[2])
  for _, band in ipairs(BANDS) do
    num_ahead = num_ahead + redis.call('ZCARD', P .. 'waiting:' .. band)
    cost_s = cost_s + tonumber(redis.call('HGET', META, 'cost:' .. band) or 0)
    if band == ticket[1] then break end
  end
  for _, name in ipairs(LANES) do
    local lease = lease_on(name)
    if lease then cost_s = cost_s + math.max(0, tonumber(lease.charged) - held_s(lease)) end
  end
  return {'waiting', ticket[3], text(num_ahead), text(math.max(0, cost_s) / #LANES)}
end
