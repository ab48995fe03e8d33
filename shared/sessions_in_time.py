"""How long services remember sessions; the values depend on each other. Times are in seconds."""

TOMBSTONE_S = 86_400.0  # for which the KV state service remembers that a session was deleted
# For which a leader's copy of a session serves when the store lacks it or is away. A copy that is older than
# the tombstone would bring a deleted session back; a quarter leaves room for clocks and for turns under way.
COPY_S = TOMBSTONE_S / 4
