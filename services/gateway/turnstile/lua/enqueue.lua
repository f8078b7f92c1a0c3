-- A request takes a place, and the lane at once when it is free and nobody is before it.
-- Arguments: id, band, agent, cost_s, tokens, request id, trace, seq (0 for a new ticket), limit. Replies where() or
-- {'full', waiting, seconds ahead}. Entering the same id again changes nothing, so a gateway may repeat it.
local id, band, agent, cost_s = ARGV[FIRST], ARGV[FIRST + 1], ARGV[FIRST + 2], tonumber(ARGV[FIRST + 3])
local seq, limit = tonumber(ARGV[FIRST + 7]), tonumber(ARGV[FIRST + 8])
check_epoch()
renew_owner()
sweep()
promote_aged()

local known = where(id)
if known[1] ~= 'unknown' then return known end
local num_waiting = redis.call('ZCARD', P .. 'waiting:interactive') + redis.call('ZCARD', P .. 'waiting:background')
if num_waiting >= limit and seq == 0 then
  local ahead_s = 0
  for _, name in ipairs(BANDS) do ahead_s = ahead_s + tonumber(redis.call('HGET', META, 'cost:' .. name) or 0) end
  return {'full', text(num_waiting), text(math.max(0, ahead_s) / #LANES)}
end

if seq == 0 then
  -- Microseconds, so that a ticket entered again after a data loss keeps its place and its age.
  seq = math.max(tonumber(redis.call('HGET', META, 'seq') or 0) + 1, math.floor(now_ms * 1000))
  redis.call('HSET', META, 'seq', seq)
end
local key, owned = ticket_key(id), P .. 'owned:' .. OWNER
redis.call('HSET', key, 'owner', OWNER, 'band', band, 'agent', agent, 'cost', cost_s, 'tokens', ARGV[FIRST + 4],
  'request', ARGV[FIRST + 5], 'trace', ARGV[FIRST + 6], 'seq', seq, 'arrival', virtual_time(band))
redis.call('PEXPIRE', key, KEEP_MS)
redis.call('SADD', owned, id)
keep(owned)
keep(META)
link(id, band, agent, seq, cost_s)
grant_all(id)
return where(id)
