-- A request is done with its lane: settle, free, grant the next. Arguments: id, lane, measured cost. Replies 1, or 0
-- when the lease was not the holder's any more.
local lane = ARGV[FIRST + 1]
check_epoch()
local lease = lease_on(lane)
local held = lease and lease.id == ARGV[FIRST]
if held then free(lane, lease, tonumber(ARGV[FIRST + 2])) end
sweep()
promote_aged()
grant_all('')
return held and 1 or 0
