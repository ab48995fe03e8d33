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
  if [ "$variable" = "$line" ]; then # no hash: `user default off`
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
exec redis-server --aclfile "$acl" "$@"
