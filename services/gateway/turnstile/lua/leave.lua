-- A ticket leaves the queue, or gives a lane back that it was granted meanwhile and never used. Argument: id.
check_epoch()
local lane = lane_of(ARGV[FIRST])
if lane then
  free(lane, lease_on(lane), 0)
else
  remove(ARGV[FIRST])
end
sweep()
promote_aged()
grant_all('')
return 1
