#!/bin/sh
# Starts Prometheus with the key for /metrics in a file of its own memory: in its configuration it would be shown on the pages.
set -eu
umask 077
printf '%s' "${RYZ_METRICS_KEY:-}" > /run/prometheus/metrics-key
unset RYZ_METRICS_KEY
exec prometheus "$@"
