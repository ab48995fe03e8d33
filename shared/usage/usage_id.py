"""The id under which all runs of a request count once."""

from hashlib import blake2b

from shared.messages import GenerateRequest


def usage_id_of(request: GenerateRequest) -> str:
    """Returns the id; only for requests of our services, which make no two requests with one id.

    A call that is repeated with its key and the same content is the same call, with whatever request id.
    """
    if request.usage_id:
        return request.usage_id
    if request.call_key:
        made = f"{request.call_key} {request.call_digest}"
        return f"once-{blake2b(made.encode(), digest_size=16).hexdigest()}"
    return request.request_id
