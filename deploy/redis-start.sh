#!/bin/sh
# Starts Redis with the users of redis.acl: a user is on when RYZ_REDIS_<USER>_PASSWORD is set in the environment.
# Arguments go to redis-server. The passwords reach Redis as SHA-256 hashes only, in a file that its user alone reads.
set -eu
umask 077

template=${RYZ_REDIS_ACL_TEMPLATE:-/etc/ryzanstein/redis.acl}
acl=${RYZ_REDIS_ACL_FILE:-/tmp/users.acl}
served=0

: > "$acl"
while read -r line; do
  variable=${line#*#}
  if [ "$variable" = "$line" ]; then # no hash: the user `default`
    printf '%s\n' "$line" >> "$acl"
    continue
  fi
  variable=${variable%% *}
  password=$(printenv "$variable" || true)
  [ -n "$password" ] || continue
  digest=$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)
  printf '%s#%s%s\n' "${line%%#*}" "$digest" "${line#*#"$variable"}" >> "$acl"
  unset "$variable"
  served=$((served + 1))
done < "$template"

[ "$served" -gt 0 ] || { echo "redis-start: no RYZ_REDIS_<USER>_PASSWORD is set: no user could connect" >&2; exit 2; }

# What an earlier release stored and did not read back is shown to a person before it is used. Redis begins its log with
# SELECT, and writes another one after each start.
dir=$(printf '%s\n' "$@" | sed -n '/^--dir$/{n;p;}')
marker=$dir/ryz-sessions
if [ -n "$dir" ] && [ ! -e "$marker" ]; then
  starts=$(cat "$dir"/appendonlydir/*.incr.aof 2>/dev/null | grep -ac '^SELECT' || true)
  if [ "$starts" -gt 1 ]; then
    echo "redis-start: $dir has the log of an earlier release, which was not read back at restarts; see what is in it with" \
      "\`docker compose run --rm ryz sessions recover /sessions\`: \`--restore\` brings it back, \`--discard\` leaves it out" >&2
    exit 2
  fi
  echo 2 > "$marker"
fi

exec redis-server --aclfile "$acl" "$@"
