-- A request is done with its lane: settle, free, grant the next. Arguments: id, lane, epoch, n, measured cost.
-- Replies 1, or 0 when the lease was not the holder's any more.
local lane, epoch, n = ARGV[FIRST + 1], tonumber(ARGV[FIRST + 2]), tonumber(ARGV[FIRST + 3])
check_epoch()
local lease = lease_on(lane)
local held = lease and lease.id == ARGV[FIRST]
if held then free(lane, lease, tonumber(ARGV[FIRST + 4])) end
if not is_over(lane, epoch, n) then note_fence(lane, epoch, n, 1) end
sweep()
promote_aged()
grant_all('')
return held and 1 or 0
