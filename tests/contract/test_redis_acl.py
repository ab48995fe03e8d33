"""The ACL file that a deployment mounts and the documentation page match the table of Redis users."""

from tools.docs import redis_acl


def test_generated_files_are_fresh() -> None:
    remedy = "run `python -m tools.docs.redis_acl`"
    assert redis_acl.TEMPLATE.read_text() == redis_acl.render(), remedy
    page = redis_acl.PAGE.read_text()
    assert redis_acl.page(page) == page, remedy
