#!lua flags=allow-oom
-- Head of every transition: the arguments all share, the clock and the names of keys (README.md has the schema).
-- allow-oom: the queue is bounded, so it must go on when others filled the store.
local P = KEYS[1]
local META, OWNERS = P .. 'meta', P .. 'owners'
local BANDS = {'interactive', 'background'}
local KEEP_MS = 86400000

local now_ms = tonumber(ARGV[1]) -- 0 means the store's own clock, the one clock that all gateways share
local OWNER = ARGV[2]
local FLOOR = {tonumber(ARGV[3]), tonumber(ARGV[4])}
local TTL_MS, AGEING_MS, GRACE_MS = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local LANES = {}
for lane in string.gmatch(ARGV[8], '[^,]+') do LANES[#LANES + 1] = lane end
local FIRST = 9 -- index of the transition's own first argument

if now_ms <= 0 then
  local time = redis.call('TIME')
  now_ms = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
end

-- A reply carries numbers as text, because Redis cuts Lua numbers to integers.
local function text(number) return string.format('%.17g', number) end

-- Every key has a life of a day, renewed when half of it is gone.
local function keep(key)
  if redis.call('PTTL', key) < KEEP_MS / 2 then redis.call('PEXPIRE', key, KEEP_MS) end
end

local function ticket_key(id) return P .. 'ticket:' .. id end
local function flow_key(band, agent) return P .. 'flow:' .. band .. ':' .. agent end
local function lane_key(lane) return P .. 'lane:' .. lane end
