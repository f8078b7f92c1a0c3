-- A gateway connects: a restarted store (another run id) gets a new epoch.
-- Replies {grace left in ms, epoch, n, eviction policy}.
check_epoch()
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if redis.call('HGET', META, 'run') ~= run then begin_epoch(run) end
renew_owner()
local policy = string.match(redis.call('INFO', 'memory'), 'maxmemory_policy:([%w-]+)')
local fence = redis.call('HMGET', META, 'epoch', 'n')
return {text(grace_left_ms()), fence[1], fence[2], policy or ''}
