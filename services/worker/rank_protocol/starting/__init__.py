"""How ranks come into being: forked on this host, or joined from another one."""
