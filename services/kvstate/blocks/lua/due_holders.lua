-- Lists holders that are due to be checked.
-- ARGV: how many at most. Answer: members of holders.
return redis.call('ZRANGEBYSCORE', HOLDERS, '-inf', now, 'LIMIT', 0, ARGV[3])
