#!/bin/sh
# Starts a service of compose.yaml: `start.sh ROLE COMMAND...`. It reads the passwords of that role (init.py), and what was planned
# for this container (`ryz plan-containers`): a worker is the group of its container's number, so `--scale worker=3` adds g3.
set -eu

role=$1
shift
. "/run/ryzanstein/$role.env"

if [ "$role" = worker ] && [ -z "${RYZ_GROUP:-}" ]; then
  RYZ_GROUP=g$(python -IS /etc/ryzanstein/container_number.py)
  export RYZ_GROUP
  plan=/plan/$RYZ_GROUP.env
  [ -e "$plan" ] || plan=/plan/more.env # of one model: groups beyond those that were planned
  [ -e "$plan" ] || {
    echo "start: the models file has no group for this container, $RYZ_GROUP: see \`docker compose logs plan\`" >&2
    exit 2
  }
  . "$plan"
elif [ "$role" = gateway ]; then
  . /plan/gateway.env
fi

exec "$@"
