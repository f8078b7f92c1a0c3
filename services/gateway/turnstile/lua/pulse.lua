-- A gateway reports: its leases live on, its tickets keep their places, the dead are removed, free lanes granted.
-- Arguments: number of leases, nine fields for each (id, lane, epoch, n, band, agent, cost, request id, tokens), then
-- ticket ids. Replies {grace left in ms, {'held' or 'lost' for each lease}, {where() for each ticket}}.
local num_leases = tonumber(ARGV[FIRST])
check_epoch()
renew_owner()

-- A lease that the store forgot (data lost, or swept while its gateway was frozen) is taken back with its old fence,
-- unless the lane was granted to anyone since, or a release overtook this heartbeat.
local function adopt(id, lane, epoch, n, at)
  if is_over(lane, epoch, n) then return 'lost' end
  local key, owned, band = lane_key(lane), P .. 'owned:' .. OWNER, ARGV[at + 4]
  redis.call('HSET', key, 'id', id, 'owner', OWNER, 'epoch', epoch, 'n', n, 'band', band, 'agent', ARGV[at + 5],
    'cost', ARGV[at + 6], 'request', ARGV[at + 7], 'tokens', ARGV[at + 8], 'tag', virtual_time(band), 'charged', 0,
    'granted', now_ms, 'expires', now_ms + TTL_MS)
  note_fence(lane, epoch, n, 0)
  redis.call('PEXPIRE', key, KEEP_MS)
  redis.call('SADD', owned, id)
  keep(owned)
  return 'held'
end

local leases = {}
for i = 1, num_leases do
  local at = FIRST + 1 + (i - 1) * 9
  local id, lane = ARGV[at], ARGV[at + 1]
  local holder = redis.call('HGET', lane_key(lane), 'id')
  if holder == id then
    redis.call('HSET', lane_key(lane), 'expires', now_ms + TTL_MS)
    redis.call('PEXPIRE', lane_key(lane), KEEP_MS)
    leases[i] = 'held'
  elseif holder then
    leases[i] = 'lost'
  else
    leases[i] = adopt(id, lane, tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), at)
  end
end
for _, key in ipairs({META, P .. 'owned:' .. OWNER}) do keep(key) end
sweep()
promote_aged()
grant_all('')

local tickets = {}
for i = FIRST + 1 + num_leases * 9, #ARGV do tickets[#tickets + 1] = where(ARGV[i]) end
return {text(grace_left_ms()), leases, tickets}
