"""The values of `format` that are enforced, and our own patterns where llguidance's are too wide.

llguidance 1.9.1 takes the 29th of February in every year, the year 0000, second 60 (which RFC 3339, section
5.7, allows only where a leap second was), and host names above 253 characters.
"""

_LEAP = "(?:(?:[0-9][0-9])(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DAYS = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_DAYS}|{_LEAP}-02-29)"
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)

PATTERNS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
MOST_CHARS = {"hostname": 253}
ENFORCED = frozenset({*PATTERNS, *MOST_CHARS, "duration", "email", "ipv4", "ipv6", "uuid", "uri"})
