"""The streams of JetStream and their subjects, spelled once; `subjects.py` has all others.

Names from outside are escaped as there.
"""

from shared.subjects import PREFIX, token

# Streams of JetStream: the records of batches, their requests that wait, and the results
BATCHES_STREAM, LINES_STREAM, RESULTS_STREAM = "RYZ_BATCHES", "RYZ_BATCH_LINES", "RYZ_BATCH_RESULTS"
# tenants, keys and prices, one message each; what was changed; what requests have used; sums of that
ACCOUNTS_STREAM, AUDIT_STREAM = "RYZ_ACCOUNTS", "RYZ_AUDIT"
USAGE_STREAM, USAGE_SUMS_STREAM = "RYZ_USAGE", "RYZ_USAGE_SUMS"
FILES_BUCKET = "ryz-files"  # of the object store, as `nats object ls` shows it
FILES_STREAM = f"OBJ_{FILES_BUCKET}"


def account_record(name: str) -> str:
    """Returns the subject of a tenant's, a key's or a price's record; `*` for any."""
    return f"{PREFIX}.stream.account.{name if name == '*' else token(name)}"


def audit_entry() -> str:
    """Returns the subject of entries of the audit log."""
    return f"{PREFIX}.stream.audit"


def usage(tenant: str) -> str:
    """Returns the subject of a tenant's usage records; `*` for any."""
    return f"{PREFIX}.stream.usage.{tenant}"


def usage_sum(day: str, tenant: str, rest: str) -> str:
    """Returns the subject of a day's sums; `*` for any."""
    return f"{PREFIX}.stream.usage-sum.{day}.{tenant}.{rest if rest == '*' else token(rest)}"


def batch_record(tenant: str, batch_id: str) -> str:
    """Returns the subject of a batch's record; `*` for any tenant or batch."""
    return f"{PREFIX}.batch.record.{tenant}.{batch_id}"


def batch_line(batch_id: str, number: int | str) -> str:
    """Returns the subject of a batch's request that waits; `*` for any."""
    return f"{PREFIX}.batch.line.{batch_id}.{number}"


def batch_result(batch_id: str, number: int | str) -> str:
    """Returns the subject of the result of a batch's request; `*` for any."""
    return f"{PREFIX}.batch.result.{batch_id}.{number}"


def file_pieces(nuid: str) -> str:
    """Returns the subject of the pieces of a file in the object store."""
    return f"$O.{FILES_BUCKET}.C.{nuid}"


def file_known(name: str) -> str:
    """Returns the subject of what is known of a file in the object store; `name` in base64."""
    return f"$O.{FILES_BUCKET}.M.{name}"
