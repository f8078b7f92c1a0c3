-- A ticket leaves the queue, or gives a lane back that it was granted meanwhile and never used. Argument: id.
check_epoch()
local lane = lane_of(ARGV[FIRST])
if lane then
  local lease = lease_on(lane)
  free(lane, lease, 0)
  note_fence(lane, lease.epoch, lease.n, 1)
else
  remove(ARGV[FIRST])
end
sweep()
promote_aged()
grant_all('')
return 1
