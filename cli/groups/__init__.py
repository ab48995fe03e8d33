"""`ryz groups`: lists worker groups and drains one."""
